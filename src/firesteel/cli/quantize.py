"""`firesteel quantize MODEL --to FORMAT`"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from firesteel.cli.options import common
from firesteel.cli.output.invocation import typed
from firesteel.cli.output.recipe_rows import speed_band
from firesteel.cli.output.show import err, grid, out, table
from firesteel.edge.files.home import find_home
from firesteel.errors import FiresteelError, HostNotReady, UsageError
from firesteel.library import documents, plans
from firesteel.units import show_bytes, show_seconds
from firesteel.workspace import find_workspace

if TYPE_CHECKING:  # load numpy, which is not always installed
    from firesteel.facts import Host
    from firesteel.workshop.audit import AuditReport
    from firesteel.workshop.kernels.native import Kernel
    from firesteel.workshop.quantize.forecast import QuantizationForecast, ServedForecast
    from firesteel.workshop.quantize.plan import QuantizationPlan
    from firesteel.workshop.quantize.results import QuantizationResult
    from firesteel.workshop.quantize.run import QuantizationProgress
    from firesteel.workshop.quantize.source import SourceCheckpoint

_WORST = 10


@click.command("quantize")
@click.argument("model", metavar="MODEL")
@click.option(
    "--to",
    "format_name",
    metavar="FORMAT",
    required=True,
    help="Write this format: fp8-dynamic, fp8-block, nvfp4, nvfp4-spark, nvfp4-w4a4, mxfp4, or a GGUF label "
    "such as q4_k_m.",
)
@click.option(
    "--out", "folder", metavar="FOLDER", type=common.PATH, help="Write there (default: NAME-FORMAT)."
)
@click.option(
    "--keep",
    "--ignore",
    "keep",
    metavar="PATTERN",
    multiple=True,
    help="Leave these modules as they are: a name, a part of one, `*` or `re:...`; repeatable.",
)
@click.option(
    "--imatrix",
    metavar="FILE",
    type=common.PATH,
    help="For a GGUF label: the importance matrix that llama-imatrix made.",
)
@click.option("--threads", type=click.IntRange(1, 512), help="Use so many cores (default: all).")
@click.option(
    "--calibrate",
    "data",
    metavar="DATA",
    help="Plan W4A4 with measured activations and print ModelOpt's command for it.",
)
@click.option("--upload", "repository", metavar="ORG/NAME", help="Send the result to the Hub, privately.")
@click.option("--public", is_flag=True, help="With --upload: create a public repository.")
@click.option("--dry-run", is_flag=True, help="Show what would be written, to the byte, and write nothing.")
@common.host_option
@common.json_option
def command(
    model: str,
    format_name: str,
    folder: Path | None,
    keep: tuple[str, ...],
    imatrix: Path | None,
    threads: int | None,
    data: str | None,
    repository: str | None,
    public: bool,
    dry_run: bool,
    host_name: str | None,
    as_json: bool,
) -> None:
    """Quantize a checkpoint, without calibration data and in bounded memory.

    MODEL is a folder with safetensors in BF16, FP16, FP32 or FP8 in blocks, or a Hub id that was pulled. The
    result is a folder that vLLM and SGLang load. A run that was interrupted goes on when the same command is
    given again. For a GGUF label, MODEL is a GGUF file in 16 bits, and llama.cpp's quantizer makes another.
    Exits 3 when a matrix would stay as it is by accident.
    """
    threads = threads or len(os.sched_getaffinity(0))
    from firesteel.workshop.quantize.gguf_file import is_gguf_label  # slow to load

    if is_gguf_label(format_name):
        _quantize_gguf(model, format_name, folder, imatrix, threads, dry_run, as_json)
        return
    if imatrix:
        raise UsageError("--imatrix is for GGUF labels", next="--to q4_k_m")
    _require_numpy()
    from firesteel.workshop.audit import audit
    from firesteel.workshop.kernels.native import load_kernel
    from firesteel.workshop.quantize.formats import FORMATS
    from firesteel.workshop.quantize.plan import plan_quantization
    from firesteel.workshop.quantize.run import is_result_of, require_place
    from firesteel.workshop.quantize.source import open_source

    if format_name not in FORMATS:
        raise UsageError(
            f"there is no format `{format_name}`; known are {', '.join(FORMATS)}, and GGUF labels",
            next="--to nvfp4",
        )
    source = open_source(model)
    if data:
        _calibrate(source, data, folder, host_name, as_json)
        return
    if repository:
        from firesteel.workshop.quantize.upload import require_upload

        require_upload(repository)
    plan = plan_quantization(source, format_name, keep)
    target = (folder or Path(f"{plan.source.name}-{format_name.upper()}")).expanduser().absolute()
    kernel = load_kernel(find_home().root / "kernels")
    found, why_not = _forecast(plan, host_name, kernel, threads)
    if dry_run and as_json:
        common.print_json(documents.quantize.quantize_plan_json(plan, str(target), found))
        return
    if not as_json:
        _show_plan(plan, target, found, why_not, kernel)
    if repository and is_result_of(plan, target):
        _upload(target, repository, public)
        return
    require_place(plan, target)
    if dry_run:
        return
    result = _run(plan, target, kernel, threads, repository.partition("/")[0] if repository else None)
    audited = audit(str(target))
    if any(found.level == "stop" for found in audited.findings):
        repository = None  # what no engine loads is not published
    if repository:
        _upload(target, repository, public)
    if as_json:
        common.print_json(documents.quantize.quantize_json(plan, str(target), result, audited))
    else:
        _show_result(plan, target, result)
        _show_audit(audited)
        click.echo(typed(f"next: firesteel plan {target}"), err=True)


def _quantize_gguf(
    model: str,
    label: str,
    file: Path | None,
    imatrix: Path | None,
    threads: int,
    dry_run: bool,
    as_json: bool,
) -> None:
    from firesteel.workshop.quantize.gguf_file import plan_gguf, run_gguf

    plan = plan_gguf(model, label, imatrix, find_home())
    target = (file or Path(f"{plan.source.stem}-{label.upper()}.gguf")).expanduser().absolute()
    planned = f"{show_bytes(plan.bytes)}" if plan.bytes else "known after the conversion"
    if not as_json:
        out.print(grid([
            ("model", f"{plan.source}, {show_bytes(plan.source_bytes)}"),
            ("result", f"{target}, tensors {planned}"),
            ("by", f"{plan.quantizer}" + (f", after {plan.converter}" if plan.converter else "")),
        ]))  # fmt: skip
    written = None
    if not dry_run:
        err.print("quantize: llama.cpp is at work ...")
        written = run_gguf(plan, target, threads)
    if as_json:
        document = documents.quantize.QuantizeGgufJson(
            model=model, format=label.lower(), out=str(target), source_bytes=plan.source_bytes,
            planned_bytes=plan.bytes, bytes=written,
        )  # fmt: skip
        common.print_json(document)
    elif written:
        out.print(f"wrote {target}: {show_bytes(written)}")
        click.echo(typed(f"next: firesteel plan {target}"), err=True)


def _calibrate(
    source: SourceCheckpoint, data: str, folder: Path | None, host_name: str | None, as_json: bool
) -> None:
    """Shows the command of ModelOpt's own container, where it would not wedge the host."""
    from firesteel.workshop.quantize.calibration import command_text, plan_calibration

    target = (folder or Path(f"{source.name}-NVFP4-CALIBRATED")).expanduser().absolute()
    host = _host(host_name)
    plan = plan_calibration(source, data, target, host)
    if as_json:
        document = documents.quantize.QuantizeCalibrateJson.of(
            plan, model=source.origin, host=host.title, out=str(target)
        )
        common.print_json(document)
        return
    hours = f"{plan.hours_low:.1f} to {plan.hours_high:.1f} h"
    err.print(
        f"about {show_bytes(plan.needed_bytes)} of memory on {host.title} for {hours}; not run by firesteel:"
    )
    out.print(command_text(plan), soft_wrap=True)
    click.echo(typed(f"next: that command, then firesteel plan {target}"), err=True)


def _upload(target: Path, repository: str, is_public: bool) -> None:
    from firesteel.workshop.quantize.upload import upload_folder

    err.print(f"upload {target.name} to {repository} ...")
    err.print(f"uploaded: {upload_folder(target, repository, is_public=is_public)}")


def _require_numpy() -> None:
    if importlib.util.find_spec("numpy") is None:
        raise HostNotReady(
            "quantize needs numpy, which is not installed", next=f"{sys.executable} -m pip install numpy"
        )


def _forecast(
    plan: QuantizationPlan, host_name: str | None, kernel: Kernel, threads: int
) -> tuple[QuantizationForecast | None, str]:
    from firesteel.workshop.quantize.forecast import forecast

    workspace = find_workspace()
    try:
        return forecast(plan, workspace, _host(host_name), kernel, threads), ""
    except FiresteelError as error:  # a plan is no condition of a run
        return None, error.what


def _host(name: str | None) -> Host:
    """A host without a GPU serves no safetensors, so a Spark is planned for."""
    host = plans.host(name)
    return host if host.gpus or host.hardware else plans.host("gb10")


def _show_plan(
    plan: QuantizationPlan, target: Path, found: QuantizationForecast | None, why_not: str, kernel: Kernel
) -> None:
    matrices = Counter(matrix.scheme for matrix in plan.matrices)
    schemes = ", ".join(f"{count:,} matrices in {scheme}" for scheme, count in matrices.items())
    kept = Counter(tensor.why for tensor in plan.kept)
    kept_bytes = sum(tensor.bytes for tensor in plan.kept)
    rows = [
        ("model", f"{plan.source.origin}, {plan.source.bytes:,} bytes ({show_bytes(plan.source.bytes)})"),
        ("format", f"{plan.format.name}: {plan.format.about}"),
        ("result", f"{target}, {plan.bytes:,} bytes ({show_bytes(plan.bytes)}) in {len(plan.files)} files"),
        ("weights", f"{schemes}; {show_bytes(kept_bytes)} stay as they are"),
        *((f"  {count:,}", why) for why, count in kept.most_common()),
    ]
    if plan.format.name == "nvfp4-w4a4":
        rows.append(("input scale", "pinned to 1, not measured; nvfp4 keeps activations in 16 bits"))
    if found:
        rows += [
            ("before", _served(found.before, found.host)),
            ("after", _served(found.after, found.host)),
            ("time", f"{show_seconds(found.seconds)} at {found.kernel_bytes_per_s / 1e9:.1f} GB/s a core "
                     f"({kernel.name} kernel, measured now), if the disk is as fast"),
        ]  # fmt: skip
    else:
        rows.append(("plan", f"not possible: {why_not}"))
    if kernel.name == "numpy":
        rows.append(("slow", "no C compiler was found, so numpy computes, about 15 times as slowly"))
    out.print(grid(rows))


def _served(served: ServedForecast, host: str) -> str:
    speed = served.decode_tokens_per_s
    fits = "fits" if served.fits else "does not fit"
    return f"{show_bytes(served.weights_bytes)}, {fits} on {host}" + (
        f", {speed_band(speed)}" if speed else ""
    )


def _run(
    plan: QuantizationPlan, target: Path, kernel: Kernel, threads: int, organization: str | None
) -> QuantizationResult:
    from firesteel.cli.output.progress import SlowLines
    from firesteel.workshop.quantize.run import run_quantization

    lines = SlowLines()
    status = err.status("starting") if err.is_terminal else None

    def show(progress: QuantizationProgress) -> None:
        if status:
            status.update(_progress(progress))
        else:
            lines.print(_progress(progress))

    with status or nullcontext():
        return run_quantization(plan, target, kernel, threads, show, organization)


def _show_audit(audited: AuditReport) -> None:
    for found in audited.findings:
        out.print(f"audit: {found.level}: {found.says}")
    if not audited.findings:
        out.print(f"audit: nothing is wrong; {audited.summary.tensors:,} tensors")


def _progress(progress: QuantizationProgress) -> str:
    share = progress.done_bytes / progress.total_bytes
    left = f", {show_seconds(progress.eta_s)} left" if progress.eta_s is not None else ""
    resumed = f", {show_bytes(progress.resumed_bytes)} by an earlier run" if progress.resumed_bytes else ""
    return (
        f"quantize {share:.0%}: {show_bytes(progress.done_bytes)} of {show_bytes(progress.total_bytes)}"
        f"{resumed}, {progress.bytes_per_s / 1e9:.2f} GB/s{left}"
    )


def _show_result(plan: QuantizationPlan, target: Path, result: QuantizationResult) -> None:
    speed = (plan.source.bytes - result.resumed_bytes) / result.seconds / 1e9 if result.seconds else 0
    out.print(
        f"\nwrote {target}: {show_bytes(result.bytes)} in {show_seconds(result.seconds)}, {speed:.2f} GB/s; "
        f"mean error of {len(result.errors):,} matrices {result.mean_error:.2%}"
    )
    rows = [(error.module, f"{error.relative:.2%}") for error in result.errors[:_WORST]]
    out.print(table(("largest errors", "relative"), rows))
