"""Quantizers of others: planned here, done by ModelOpt in its container or by llama.cpp's own program.

`--calibrate DATA` is W4A4 with measured activation scales. ModelOpt holds the whole model in 16 bits on the
GPU, which on a Spark is the memory of the host. A model that does not fit would wedge it, so the command is
only given where it fits. GGUF labels (`q4_k_m`) are for the llama.cpp installed here, which takes a GGUF in
16 or 32 bits. Safetensors are converted first, by `convert_hf_to_gguf.py` where that is in PATH: it needs
PyTorch, which firesteel does without.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from firesteel.edge.checkpoints import FileSource
from firesteel.edge.home import Home, free_bytes
from firesteel.edge.programs.installed import find_program
from firesteel.errors import DoesNotFit, FiresteelError, HostNotReady, UsageError
from firesteel.facts.formats import gguf
from firesteel.facts.formats.gguf_labels import BASE_TYPES, NEEDS_IMATRIX
from firesteel.facts.host.hardware import Host
from firesteel.units import GB, show_bytes
from firesteel.values import Value
from firesteel.workshop.quantize.source import SourceCheckpoint

IMAGE = "nvcr.io/nvidia/tensorrt-llm/release:spark-single-gpu-dev"
"""Of NVIDIA's playbook for Spark, 2026-07-21, seen 2026-11-15."""
_WORKSPACE = 1.15
"""Model and activations of the calibration: a 62.5 GB model took about 72 GB by reports, seen 2026-11-15."""
_HOURS_PER_BYTE = (1.5 / (70 * GB), 3 / (70 * GB))
"""Qwen3.6-35B-A3B, 70 GB, on one Spark: 1.5 to 3 hours by NVIDIA's playbook, 2026-07-21, seen 2026-11-15."""
_SAMPLES = 512
_SCRIPT = "/app/examples/hf_ptq/hf_ptq.py"


class CalibrationPlan(Value, tag_field="document", tag="firesteel.quantize-calibrate/1"):
    """`firesteel quantize --calibrate --json`: planned here, run by ModelOpt's container"""

    model: str
    host: str
    needed_bytes: int
    hours_low: float
    hours_high: float
    command: tuple[str, ...]
    """Firesteel does not run it."""
    out: Path


def plan_calibration(source: SourceCheckpoint, data: str, out: Path, host: Host) -> CalibrationPlan:
    if source.config.get("quantization_config"):
        raise UsageError(f"{source.name} is already quantized", next="calibrate the BF16 original")
    needed = round(source.bytes * _WORKSPACE)
    low, high = (source.bytes * rate for rate in _HOURS_PER_BYTE)
    if needed > host.room_bytes:
        raise DoesNotFit(
            f"calibrating {source.name} takes about {show_bytes(needed)} of memory for {low:.1f} to "
            f"{high:.1f} h, and {host.title} has {show_bytes(host.room_bytes)}: it would stop answering",
            next="--to nvfp4 or nvfp4-spark, which need no data; or ModelOpt's layerwise offload",
        )
    command = (
        "docker", "run", "--rm", "--gpus", "all", "--ipc", "host",
        "-v", f"{source.folder}:/model:ro", "-v", f"{out.parent}:/out", IMAGE,
        "python3", _SCRIPT, "--pyt_ckpt_path", "/model", "--qformat", "nvfp4", "--dataset", data,
        "--calib_size", str(_SAMPLES), "--export_path", f"/out/{out.name}",
    )  # fmt: skip
    return CalibrationPlan(source.origin, host.title, needed, low, high, command, out)


QUANTIZER, CONVERTER = "llama-quantize", "convert_hf_to_gguf.py"


# --- GGUF ---

_BUFFER_MIB = 1024
"""llama.cpp keeps up to 8 GiB of a tensor in memory otherwise."""
_PLAIN = {"F32", "F16", "BF16"}
_SIZE = re.compile(r"quant size\s*=\s*([0-9.]+) MiB")
_MAX_SHOWN = 400


class GgufPlan(Value):
    source: Path
    """A GGUF file, or a folder with safetensors that is converted first."""
    label: str
    imatrix: Path | None
    quantizer: Path
    converter: str | None
    source_bytes: int
    bytes: int | None
    """By the quantizer itself; None: the source is not converted yet."""


def is_gguf_label(name: str) -> bool:
    return name.lower() in BASE_TYPES


def plan_gguf(
    model: str, label: str, imatrix: Path | None, home: Home, environ: Mapping[str, str] = os.environ
) -> GgufPlan:
    """Plan the programs of llama.cpp that make a GGUF file of this type; refuse what they lack."""
    label, source = label.lower(), Path(model).expanduser().absolute()
    if not source.exists():
        raise UsageError(f"{source} does not exist", next="firesteel quantize FILE.gguf --to q4_k_m")
    if label in NEEDS_IMATRIX and imatrix is None:
        raise UsageError(f"llama.cpp makes {label} only with an importance matrix", next="--imatrix FILE")
    if imatrix and not imatrix.is_file():
        raise UsageError(f"{imatrix} is not a file", next="--imatrix FILE")
    quantizer = _quantizer(home, environ)
    if source.is_dir():
        converter = shutil.which(CONVERTER, path=environ.get("PATH"))
        if converter is None:
            raise HostNotReady(
                f"llama.cpp converts safetensors to GGUF with {CONVERTER}, which is not in PATH",
                next=f"python {CONVERTER} {source} --outtype bf16, which needs PyTorch; then firesteel "
                f"quantize FILE.gguf --to {label}",
            )
        size = sum(path.stat().st_size for path in source.glob("*.safetensors"))
        return GgufPlan(source, label, imatrix, quantizer, converter, size, None)
    _require_plain(source)
    return GgufPlan(
        source,
        label,
        imatrix,
        quantizer,
        None,
        source.stat().st_size,
        _planned_bytes(quantizer, source, label, imatrix),
    )


def _quantizer(home: Home, environ: Mapping[str, str]) -> Path:
    server = Path(find_program("llamacpp", home, environ=environ).argv[0])
    for folder in (server.parent, server.resolve().parent):
        if os.access(folder / QUANTIZER, os.X_OK):
            return folder / QUANTIZER
    raise HostNotReady(f"there is no {QUANTIZER} next to {server}", next="firesteel engine build llamacpp")


def _require_plain(source: Path) -> None:
    with FileSource(source) as opened:
        header = gguf.read_header(opened)
    quantized = {tensor.dtype for tensor in header.tensors if len(tensor.shape) > 1} - _PLAIN
    if quantized:
        raise UsageError(
            f"{source.name} is already quantized ({', '.join(sorted(quantized))}); quantizing it again would "
            "add up two errors",
            next="firesteel quantize the GGUF in BF16 or F16",
        )


def _planned_bytes(quantizer: Path, source: Path, label: str, imatrix: Path | None) -> int | None:
    """The quantizer adds up the tensors, in MiB with two decimals."""
    done = subprocess.run(
        [str(quantizer), *_imatrix(imatrix), "--dry-run", str(source), label.upper()],
        capture_output=True, text=True, errors="replace", check=False,
    )  # fmt: skip
    found = _SIZE.search(done.stdout + done.stderr)
    return round(float(found[1]) * 2**20) if found and not done.returncode else None


def _imatrix(path: Path | None) -> list[str]:
    return ["--imatrix", str(path)] if path else []


def run_gguf(plan: GgufPlan, out: Path, threads: int) -> int:
    """Writes the file, which appears when it is whole; returns its bytes."""
    if os.path.lexists(out):
        raise UsageError(f"{out} already exists", next="--out another file, or remove this one")
    needed = (plan.bytes or plan.source_bytes) + (plan.source_bytes if plan.converter else 0)
    if needed > (free := free_bytes(out.parent)):
        raise HostNotReady(
            f"{out.name} needs {show_bytes(needed)}; the disk under {out.parent} has {show_bytes(free)} free",
            next="free some space, or --out /path/with/space/FILE.gguf",
        )
    part, converted = out.with_name(f".{out.name}.part"), out.with_name(f".{out.name}.bf16")
    try:
        source = plan.source
        if plan.converter:
            _call([plan.converter, str(source), "--outtype", "bf16", "--outfile", str(converted)])
            source = converted
        _call(
            [str(plan.quantizer), *_imatrix(plan.imatrix), "--max-buffer-size", str(_BUFFER_MIB), str(source),
             str(part), plan.label.upper(), str(threads)]
        )  # fmt: skip
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)
        converted.unlink(missing_ok=True)
    return out.stat().st_size


def _call(command: list[str]) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()[-3:]
        raise FiresteelError(
            f"{Path(command[0]).name} failed: {' '.join(lines)[:_MAX_SHOWN]}", next=" ".join(command)
        )
