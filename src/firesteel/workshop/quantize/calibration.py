"""`--calibrate DATA`: W4A4 with measured activation scales: planned here, done by ModelOpt in its container.

It holds the whole model in 16 bits on the GPU, which on a Spark is the memory of the host. A model that does
not fit would wedge it, so the command is only given where it fits.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from firesteel.errors import DoesNotFit, UsageError
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


class CalibrationPlan(Value):
    needed_bytes: int
    hours_low: float
    hours_high: float
    command: tuple[str, ...]


def plan_calibration(source: SourceCheckpoint, data: str, out: Path, host: Host) -> CalibrationPlan:
    if source.config.get("quantization_config"):
        raise UsageError(f"{source.name} is quantized already", next="calibrate the BF16 original")
    needed = round(source.bytes * _WORKSPACE)
    low, high = (source.bytes * rate for rate in _HOURS_PER_BYTE)
    if needed > host.room_bytes:
        raise DoesNotFit(
            f"calibrating {source.name} takes about {show_bytes(needed)} of memory for {low:.1f} to "
            f"{high:.1f} h, and {host.title} has {show_bytes(host.room_bytes)}: it would stop answering",
            next="--to nvfp4 or nvfp4-spark, which need no data; or ModelOpt's layerwise offload elsewhere",
        )
    command = (
        "docker", "run", "--rm", "--gpus", "all", "--ipc", "host",
        "-v", f"{source.folder}:/model:ro", "-v", f"{out.parent}:/out", IMAGE,
        "python3", _SCRIPT, "--pyt_ckpt_path", "/model", "--qformat", "nvfp4", "--dataset", data,
        "--calib_size", str(_SAMPLES), "--export_path", f"/out/{out.name}",
    )  # fmt: skip
    return CalibrationPlan(needed, low, high, command)


def command_text(plan: CalibrationPlan) -> str:
    return shlex.join(plan.command)
