"""After a stop: has the memory come back?

The kernel gives a dead engine's memory back over seconds, a GPU driver over more, and a load that starts into
that takes the host down with it (https://github.com/MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks/issues/193,
seen 2026-11-15: 30 GiB still resident after the kill). So the next load waits until `MemAvailable` no longer
rises. What was seen to come back needs a moment of calm, what was not a longer one; nothing waits forever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from firesteel.edge.host.memory import meminfo
from firesteel.edge.host.process import uptime
from firesteel.errors import HostNotReady
from firesteel.units import MIB

LIMIT_S = 60.0
CALM_S = 1.0
"""Without a rise, once enough was seen to come back."""
LONG_CALM_S = 10.0
"""Without a rise, while it was not: it may have gone elsewhere, or still be on its way."""
_SHARE = 0.5
"""Of what was held, what must be seen: other programs move the same counter."""
_NOISE_BYTES = 32 * MIB
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class AvailableSample:
    at_s: float
    available_bytes: int


@dataclass(frozen=True, slots=True)
class ExpectedRelease:
    """What a stop should give back: what the host had before it, and what the engine held."""

    available_bytes: int = 0
    held_bytes: int = 0

    @property
    def wanted_bytes(self) -> int:
        return self.available_bytes + round(self.held_bytes * _SHARE)


def is_released(samples: Sequence[AvailableSample], freed: ExpectedRelease) -> bool:
    """Calm for long enough, or nothing is worth waiting for any more."""
    if not samples:
        return False
    last = samples[-1]
    if last.at_s - samples[0].at_s >= LIMIT_S:
        return True
    calm_s = CALM_S if last.available_bytes >= freed.wanted_bytes else LONG_CALM_S
    return last.at_s - _rose_s(samples) >= calm_s


def _rose_s(samples: Sequence[AvailableSample]) -> float:
    """When it last rose by more than noise; slow rises add up."""
    low, at_s = samples[0].available_bytes, samples[0].at_s
    for sample in samples:
        if sample.available_bytes - low > _NOISE_BYTES:
            low, at_s = sample.available_bytes, sample.at_s
        low = min(low, sample.available_bytes)
    return at_s


def _available() -> int:
    return meminfo().available_bytes


async def wait_until_released(
    freed: ExpectedRelease, read: Callable[[], int] = _available, poll_s: float = _POLL_S
) -> int | None:
    """Waits for it; what is available then, or None where memory cannot be read."""
    samples: list[AvailableSample] = []
    try:
        while not is_released(samples, freed):  # 60 s at most
            if samples:
                await asyncio.sleep(poll_s)
            samples.append(AvailableSample(uptime(), read()))
    except HostNotReady:
        return None
    return samples[-1].available_bytes
