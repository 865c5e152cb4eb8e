"""The GPU now: temperature, power, clock, and whether it is slowed down, by `nvidia-smi`.

Takes tens of milliseconds, or ten seconds beside a driver in distress: never call it on an event loop.
"""

from __future__ import annotations

from collections.abc import Iterator

from firesteel.dataclass import dataclass
from firesteel.edge.host import nvidia_smi

_FIELDS = ("temperature.gpu", "power.draw", "clocks.sm")
_REASONS = "clocks_event_reasons.active"
"""Since driver 535; `nvidia-smi` refuses the whole query for one field that it does not know."""
_SLOWDOWNS = {
    0x40: "hardware thermal slowdown",
    0x20: "software thermal slowdown",
    0x80: "power brake",
    0x08: "hardware slowdown",
}
"""Of NVML's clock event reasons those that mean trouble; not idle (0x1), applied clocks (0x2) and the power
cap (0x4), which a GB10 under load reaches as designed.
https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html, 2026-11-16"""


@dataclass(frozen=True, slots=True)
class GpuSample:
    """None: not reported."""

    temperature_c: float | None
    power_w: float | None
    clock_mhz: float | None
    throttle: str | None
    """Why its clock is lowered: `hardware thermal slowdown`; None: it is not, as far as is known."""


def read_gpu() -> GpuSample | None:
    """The first GPU; None without one."""
    for fields in ((*_FIELDS, _REASONS), _FIELDS):
        text = nvidia_smi.query(f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits")
        if text is not None:
            return parse_gpu(text)
    return None


def parse_gpu(text: str) -> GpuSample | None:
    """The first line of the query above."""
    cells = [cell.strip() for cell in text.partition("\n")[0].split(",")]
    if len(cells) < len(_FIELDS):
        return None
    temperature_c, power_w, clock_mhz = (_number(cell) for cell in cells[:3])
    throttle = next(_slowdowns(cells[3] if len(cells) > 3 else ""), None)
    return GpuSample(temperature_c, power_w, clock_mhz, throttle)


def _number(cell: str) -> float | None:
    """`[N/A]` is none."""
    try:
        return float(cell)
    except ValueError:
        return None


def _slowdowns(cell: str) -> Iterator[str]:
    try:
        active = int(cell, 16)
    except ValueError:
        return
    yield from (text for bit, text in _SLOWDOWNS.items() if active & bit)
