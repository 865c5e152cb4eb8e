"""The GPUs now, by `nvidia-smi`: temperature, power, clock, and whether they are slowed down.

Takes tens of milliseconds, or ten seconds beside a driver in distress: never call it on an event loop.
"""

from __future__ import annotations

from firesteel.edge.host import nvidia_smi
from firesteel.facts.host.gpus import COLUMNS, GpuReading, parse_gpu_readings


def read_gpus() -> tuple[GpuReading, ...]:
    """Empty without a GPU, or where nvidia-smi does not work."""
    for columns in (COLUMNS, COLUMNS[:-1]):
        text = nvidia_smi.query(f"--query-gpu={','.join(columns)}", "--format=csv,noheader,nounits")
        if text is not None:
            return parse_gpu_readings(text)
    return ()


def read_gpu() -> GpuReading | None:
    """The first one."""
    return next(iter(read_gpus()), None)
