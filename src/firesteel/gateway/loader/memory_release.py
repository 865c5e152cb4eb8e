"""Wait after a stop until the memory is free.

The kernel frees a dead engine's memory over seconds, a GPU driver over more, and a load that starts before
that can take down the host (https://github.com/MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks/issues/193, seen
2026-11-15: 30 GiB still resident after the kill). So the next load waits until `MemAvailable` no longer
rises: for a short time if the expected memory came back, for longer if not, and never forever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from firesteel.edge.host.memory import meminfo
from firesteel.edge.host.process import uptime
from firesteel.errors import HostNotReady
from firesteel.units import MIB, show_bytes
from firesteel.values import Value

LIMIT_S = 60.0
CALM_S = 1.0
"""Without a rise, once enough memory is free."""
LONG_CALM_S = 10.0
"""Without a rise, before that: another program may have taken it, or it is still being release."""
_SHARE = 0.5
"""The share of the held memory that must be seen free: other programs move the same counter."""
_NOISE_BYTES = 32 * MIB
_POLL_S = 0.1


class AvailableSample(Value):
    time_s: float
    available_bytes: int


class ExpectedRelease(Value):
    """Memory available on the host before the stop, and memory that the engine held."""

    available_bytes: int = 0
    held_bytes: int = 0
    is_process: bool = False
    """An engine without a container and without a GPU: its memory is free once it has ended, even if another
    program has taken it since."""

    @property
    def target_bytes(self) -> int:
        return self.available_bytes + round(self.held_bytes * _SHARE)


def is_released(samples: Sequence[AvailableSample], release: ExpectedRelease) -> bool:
    """Whether memory has not risen for long enough, or the time limit is over."""
    if not samples:
        return False
    last = samples[-1]
    if release.is_process or last.time_s - samples[0].time_s >= LIMIT_S:
        return True
    has_target = last.available_bytes >= release.target_bytes
    calm_s = CALM_S if has_target else LONG_CALM_S
    return last.time_s - _last_rise_s(samples) >= calm_s


def describe_release(release: ExpectedRelease, available_bytes: int | None) -> str:
    """What can be said about the memory after the wait, which may have ended without it."""
    if release.is_process or (available_bytes is not None and available_bytes >= release.target_bytes):
        return "and its memory is free"
    if available_bytes is None:
        return "and whether its memory is free cannot be read"
    risen_bytes = max(0, available_bytes - release.available_bytes)
    return f"but of its {show_bytes(release.held_bytes)} only {show_bytes(risen_bytes)} are seen free"


def _last_rise_s(samples: Sequence[AvailableSample]) -> float:
    """When it last rose by more than noise; slow rises add up."""
    low, rise_s = samples[0].available_bytes, samples[0].time_s
    for sample in samples:
        if sample.available_bytes - low > _NOISE_BYTES:
            low, rise_s = sample.available_bytes, sample.time_s
        low = min(low, sample.available_bytes)
    return rise_s


async def wait_until_released(
    release: ExpectedRelease,
    read: Callable[[], int] = lambda: meminfo().available_bytes,
    poll_s: float = _POLL_S,
) -> int | None:
    """Return what is available then, or None where memory cannot be read."""
    samples: list[AvailableSample] = []
    try:
        while not is_released(samples, release):  # 60 s at most
            if samples:
                await asyncio.sleep(poll_s)
            samples.append(AvailableSample(uptime(), read()))
    except HostNotReady:
        return None
    return samples[-1].available_bytes
