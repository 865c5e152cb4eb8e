"""Checkpoints: audited, repaired, quantized.

Imports little, because reading a checkpoint and computing with numpy are slow to load.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from firesteel.edge.home import find_home
from firesteel.errors import FiresteelError, HostNotReady, Stopped, UsageError
from firesteel.values import Value

if TYPE_CHECKING:  # loaded only by those who use them
    from firesteel.facts.host.hardware import Host
    from firesteel.rules.checkpoint.checks import CheckpointCheck, Mend
    from firesteel.workshop.audit import AuditReport
    from firesteel.workshop.kernels.native import Kernel
    from firesteel.workshop.quantize.forecast import QuantizationForecast
    from firesteel.workshop.quantize.other_quantizers import CalibrationPlan, GgufPlan
    from firesteel.workshop.quantize.plan import QuantizationPlan
    from firesteel.workshop.quantize.results import QuantizationResult
    from firesteel.workshop.quantize.run import QuantizationProgress
    from firesteel.workshop.repair import RepairOptions, RepairReport
    from firesteel.workshop.repair.repair import WrittenLayout

BytesDone = Callable[[int, int], None]
"""Gets the bytes done, and all."""
LAYOUTS: tuple[WrittenLayout, ...] = ("compressed-tensors", "modelopt")
"""Of tensors, that `audit --fix` writes."""


# --- audit and repair ---


def known_checks() -> Mapping[str, CheckpointCheck]:
    """The checks of `audit`, by name."""
    from firesteel.rules.checkpoint.checks import CHECKS

    return CHECKS


def audit(
    model: str, *, deep: bool = False, on_progress: BytesDone = lambda done, total: None
) -> AuditReport:
    """What is wrong with a checkpoint: a folder, a GGUF file or a Hub id."""
    from firesteel.workshop import audit as workshop  # reads checkpoints, which most callers do not

    return workshop.audit(model, deep=deep, on_progress=on_progress)


def repair_options(
    kinds: Iterable[Mend],
    *,
    graft: str | None = None,
    to: WrittenLayout | None = None,
    shard_bytes: int | None = None,
    out: Path | None = None,
    in_place: bool = False,
) -> RepairOptions:
    """`kinds`: of `scales`, `index` and `config`; none of them: all that needs no other checkpoint."""
    from firesteel.workshop.repair import RepairOptions

    mends = set(kinds)
    if "scales" in mends:
        mends.add("invert")
    return RepairOptions(frozenset(mends), graft, to, shard_bytes, out, in_place)


def repair(
    model: str, options: RepairOptions, *, on_progress: BytesDone = lambda done, total: None
) -> RepairReport:
    """Repair a checkpoint as far as the options say; it is written only with `out` or `in_place`."""
    from firesteel.workshop import repair as workshop

    return workshop.repair(model, options, on_progress=on_progress)


def undo_repair(model: str) -> tuple[str, ...]:
    """Undo a repair in place; returns the files that are again as they were."""
    from firesteel.workshop import repair as workshop

    return workshop.undo_repair(model)


# --- quantize ---


class QuantizedCheckpoint(Value):
    """A quantized checkpoint that was written, and what `audit` says of it."""

    result: QuantizationResult
    audit: AuditReport

    @property
    def can_be_published(self) -> bool:
        """What no engine loads is not published."""
        return all(found.level != "stop" for found in self.audit.findings)


class QuantizationJob(Value):
    """What `quantize` would do, checked as far as that can be done before hours of work."""

    plan: QuantizationPlan
    out: Path
    kernel: Kernel
    threads: int
    forecast: QuantizationForecast | None
    """Whether the result fits and how fast it is; None: see `why_not`."""
    why_not: str = ""
    repository: str | None = None
    """Of the Hub, for the result."""
    is_public: bool = False

    @property
    def only_uploads(self) -> bool:
        """The result is there: only the upload is left of an earlier run."""
        from firesteel.workshop.quantize.run import is_result_of

        return self.repository is not None and is_result_of(self.plan, self.out)


def plan_quantization(model: str, to: str, *, keep: Sequence[str] = ()) -> QuantizationPlan:
    """What quantizing a checkpoint would write, to the byte, from its headers."""
    _require_numpy()
    from firesteel.workshop.quantize.formats import FORMATS
    from firesteel.workshop.quantize.plan import plan_quantization
    from firesteel.workshop.quantize.source import open_source

    if to not in FORMATS:
        raise UsageError(
            f"there is no format `{to}`; known are {', '.join(FORMATS)}, and GGUF labels", next="--to nvfp4"
        )
    return plan_quantization(open_source(model), to, keep)


def plan_job(
    model: str,
    to: str,
    *,
    out: Path | None = None,
    keep: Sequence[str] = (),
    threads: int | None = None,
    host_name: str | None = None,
    repository: str | None = None,
    is_public: bool = False,
    despite: Sequence[str] = (),
) -> QuantizationJob:
    """The plan with its folder, its kernel and a forecast for a host; `repository`: where to upload it.

    Raises Stopped where `audit` stops the source, unless `despite` names the check.
    """
    _require_numpy()
    from firesteel.workshop.kernels.native import load_kernel
    from firesteel.workshop.quantize.results import require_upload

    if repository:
        require_upload(repository)
    plan = plan_quantization(model, to, keep=keep)
    require_sound(model, despite)
    kernel, threads = load_kernel(find_home().root / "kernels"), threads or _cores()
    forecast, why_not = _forecast(plan, host_name, kernel, threads)
    target = _target(out, f"{plan.source.name}-{to.upper()}")
    return QuantizationJob(plan, target, kernel, threads, forecast, why_not, repository, is_public)


def require_sound(model: str, despite: Sequence[str] = ()) -> None:
    """Raises Stopped for a source whose weights are damaged: hours of work would quantize the damage."""
    if unknown := [check for check in despite if check not in known_checks()]:
        raise UsageError(f"there is no check `{unknown[0]}`", next=f"firesteel audit {shlex.quote(model)}")
    for found in audit(model).findings:
        # Engines need a tokenizer, quantizing does not.
        if found.level == "stop" and not found.check.startswith("tokenizer") and found.check not in despite:
            raise Stopped(
                f"audit-{found.check}: {found.says}: {found.effect}",
                next=f"firesteel audit {shlex.quote(model)}; if the audit is wrong: --despite {found.check}",
            )


def require_place(job: QuantizationJob) -> None:
    """Raises where the folder exists, or where its disk has no room."""
    from firesteel.workshop.quantize.run import require_place

    require_place(job.plan, job.out)


def run_job(
    job: QuantizationJob, on_progress: Callable[[QuantizationProgress], None] = lambda progress: None
) -> QuantizedCheckpoint:
    """Write it and audit what was written. `upload` is a separate step."""
    organization = job.repository.partition("/")[0] if job.repository else None
    return _written(job.plan, job.out, job.kernel, job.threads, on_progress, organization)


def quantize(plan: QuantizationPlan, out: Path, *, threads: int | None = None) -> QuantizedCheckpoint:
    """Write a quantized checkpoint and audit it; a run that was killed is resumed."""
    from firesteel.workshop.kernels.native import load_kernel

    kernel = load_kernel(find_home().root / "kernels")
    return _written(plan, out.absolute(), kernel, threads or _cores(), lambda progress: None, None)


def _written(
    plan: QuantizationPlan,
    out: Path,
    kernel: Kernel,
    threads: int,
    on_progress: Callable[[QuantizationProgress], None],
    organization: str | None,
) -> QuantizedCheckpoint:
    from firesteel.workshop.quantize.run import run_quantization

    result = run_quantization(plan, out, kernel, threads, on_progress, organization)
    return QuantizedCheckpoint(result, audit(str(out)))


def upload(job: QuantizationJob) -> str:
    """Send the result to the Hub; returns the address of the commit."""
    from firesteel.workshop.quantize.results import upload_folder

    assert job.repository is not None
    return upload_folder(job.out, job.repository, is_public=job.is_public)


def _require_numpy() -> None:
    if importlib.util.find_spec("numpy") is None:
        raise HostNotReady(
            "quantize needs numpy, which is not installed", next=f"{sys.executable} -m pip install numpy"
        )


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _target(out: Path | None, usual: str) -> Path:
    return (out or Path(usual)).expanduser().absolute()


def _forecast(
    plan: QuantizationPlan, host_name: str | None, kernel: Kernel, threads: int
) -> tuple[QuantizationForecast | None, str]:
    from firesteel.workshop.quantize.forecast import forecast
    from firesteel.workspace import find_workspace

    try:
        return forecast(plan, find_workspace(), _host(host_name), kernel, threads), ""
    except FiresteelError as error:  # a run does not depend on a forecast
        return None, error.what


def _host(name: str | None) -> Host:
    """A host without a GPU serves no safetensors, so a Spark is planned for."""
    from firesteel.library.plans import host

    found = host(name)
    return found if found.gpus or found.hardware else host("gb10")


# --- GGUF, and calibration by ModelOpt ---


class GgufJob(Value):
    """A GGUF file that llama.cpp's own quantizer makes of another."""

    plan: GgufPlan
    out: Path
    threads: int


def is_gguf_label(to: str) -> bool:
    from firesteel.workshop.quantize import other_quantizers  # slow to load

    return other_quantizers.is_gguf_label(to)


def plan_gguf_job(
    model: str,
    label: str,
    *,
    out: Path | None = None,
    imatrix: Path | None = None,
    threads: int | None = None,
) -> GgufJob:
    from firesteel.workshop.quantize.other_quantizers import plan_gguf

    plan = plan_gguf(model, label, imatrix, find_home())
    return GgufJob(plan, _target(out, f"{plan.source.stem}-{label.upper()}.gguf"), threads or _cores())


def run_gguf_job(job: GgufJob) -> int:
    """The bytes that were written."""
    from firesteel.workshop.quantize.other_quantizers import run_gguf

    return run_gguf(job.plan, job.out, job.threads)


def plan_calibration(
    model: str, data: str, *, out: Path | None = None, host_name: str | None = None
) -> CalibrationPlan:
    """W4A4 with measured activations: the command for it, where it would not wedge the host."""
    _require_numpy()
    from firesteel.workshop.quantize import other_quantizers
    from firesteel.workshop.quantize.source import open_source

    source, host = open_source(model), _host(host_name)
    target = _target(out, f"{source.name}-NVFP4-CALIBRATED")
    return other_quantizers.plan_calibration(source, data, target, host)
