"""The GPUs of a host: their state as `nvidia-smi` prints it, and what is known of each model. Pure.

`doctor` and its watch, the gateway and `bench` read the same columns; `data/checks/probe.sh` asks for them.
"""

from __future__ import annotations

import re
from enum import IntFlag
from typing import Annotated

from firesteel import shipped_data
from firesteel.facts.evidence import Sources
from firesteel.facts.host.hardware import SIZE
from firesteel.values import FileValue, PositiveInt, Value

COLUMNS = (
    "name", "driver_version", "compute_cap", "memory.total", "temperature.gpu", "power.draw", "clocks.sm",
    "clocks.max.sm", "utilization.gpu", "pstate", "clocks_event_reasons.active",
)  # fmt: skip
"""The last is known since driver 535; `nvidia-smi` refuses the whole query for one that it does not know."""


class ClockReason(IntFlag):
    """Bits of `clocks_event_reasons.active`, of NVML's nvmlClocksEventReason*.

    https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html, 2026-11-16
    """

    APPLICATION_CLOCKS = 0x2
    SW_POWER_CAP = 0x4
    HW_SLOWDOWN = 0x8
    SW_THERMAL = 0x20
    HW_THERMAL = 0x40
    HW_POWER_BRAKE = 0x80


_SLOWDOWNS = {
    ClockReason.HW_THERMAL: "hardware thermal slowdown",
    ClockReason.SW_THERMAL: "software thermal slowdown",
    ClockReason.HW_POWER_BRAKE: "power brake",
    ClockReason.HW_SLOWDOWN: "hardware slowdown",
}
"""Those that mean trouble; not the power cap, which a GB10 under load reaches as designed."""


class GpuReading(Value):
    """A GPU at one moment. None: not reported; a GB10 prints `[N/A]` for some fields, which is normal."""

    name: str
    driver: str = ""
    compute_capability: str = ""
    temperature_c: float | None = None
    power_w: float | None = None
    clock_mhz: float | None = None
    max_clock_mhz: float | None = None
    use_percent: float | None = None
    pstate: str = ""
    reasons: int | None = None
    """The bits of `clocks_event_reasons.active`."""
    line: str = ""

    @property
    def throttle(self) -> str | None:
        """Why its clock is lowered: `hardware thermal slowdown`; None: it is not, as far as is known."""
        return next((text for bit, text in _SLOWDOWNS.items() if (self.reasons or 0) & bit), None)

    @classmethod
    def parse(cls, text: str) -> tuple[GpuReading, ...]:
        """Rows of `--query-gpu=COLUMNS --format=csv,noheader,nounits`; the last column may be absent."""
        readings = []
        for line in text.splitlines():
            cells = [cell.strip() for cell in line.split(",")]
            if len(cells) not in (len(COLUMNS) - 1, len(COLUMNS)):
                continue
            name, driver, capability, _, temperature, power, clock, max_clock, use, pstate, *last = cells
            reasons = int(last[0], 16) if last and re.fullmatch(r"0x[0-9a-fA-F]{1,16}", last[0]) else None
            readings.append(cls(
                name, driver, capability, _number(temperature), _number(power), _number(clock),
                _number(max_clock), _number(use), pstate, reasons, ", ".join(cells),
            ))  # fmt: skip
        return tuple(readings)


def _number(cell: str) -> float | None:
    return float(cell) if re.fullmatch(r"\d{1,7}(?:\.\d{1,6})?", cell) else None


class DiscreteGpu(FileValue, kw_only=True):
    name: str
    """A part of the name that `nvidia-smi` prints."""
    bandwidth: Annotated[PositiveInt, SIZE]
    """Bytes per second."""
    sources: Sources


class DiscreteGpus(FileValue, kw_only=True):
    gpus: tuple[DiscreteGpu, ...]


def discrete_gpu(name: str) -> DiscreteGpu | None:
    """What is known of the GPU that `nvidia-smi` calls so."""
    known = shipped_data.load("gpus.yaml", DiscreteGpus).gpus
    return next((gpu for gpu in known if gpu.name.lower() in name.lower()), None)


_OLDEST = {11: 450, 12: 525, 13: 580}
"""By the major number of both:
https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html, seen 2026-11-15"""


def oldest_driver(cuda: str | None) -> int | None:
    """`13.0.2` -> 580; None for a version that is not known."""
    major = re.match(r"\d+", cuda or "")
    return _OLDEST.get(int(major[0])) if major else None


class GpuPeak(FileValue, kw_only=True):
    name: str
    """A part of the name that CUDA and `nvidia-smi` give."""
    tflops: dict[str, float]
    """By format: bf16, fp8, nvfp4. Without sparsity, which no engine here uses."""
    sources: Sources


class GpuPeaks(FileValue, kw_only=True):
    peaks: tuple[GpuPeak, ...]


def peak_tflops(gpu: str, format: str) -> float | None:
    known = shipped_data.load("gpu_peaks.yaml", GpuPeaks).peaks
    found = next((peak for peak in known if peak.name.lower() in gpu.lower()), None)
    return found.tflops.get(format) if found else None
