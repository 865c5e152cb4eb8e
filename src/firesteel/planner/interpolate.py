"""One account and one speed for a quantization label whose checkpoints come in a light and a heavy layout.

Bytes and times are averaged. A rate is the inverse of a time, so its mean is the harmonic one: then the
bytes of a step, its bound, its parts and its rate still agree, and what is slower in both layouts (deeper,
in a batch) is slower in between. Every band covers both.
"""

from __future__ import annotations

from typing import TypeVar

from firesteel.planner.memory.account import MemoryAccount, MemoryPart
from firesteel.planner.speed.speed import BatchSpeed, PrefillSpeed, ServedSpeed, Speed
from firesteel.planner.speed.startup import StartPhase, StartUp
from firesteel.units import Band
from firesteel.values import replace

_EXPLANATION = "the label does not say which layers stay in 16 bits, so the band covers both usual layouts"


def memory_between(light: MemoryAccount, heavy: MemoryAccount) -> MemoryAccount:
    ours, theirs = ({part.name: part for part in memory.parts} for memory in (light, heavy))
    names = dict.fromkeys((*ours, *theirs))
    return replace(light, parts=tuple(_part(ours.get(name), theirs.get(name)) for name in names))


def _part(ours: MemoryPart | None, theirs: MemoryPart | None) -> MemoryPart:
    if ours is None or theirs is None:  # one layout may not need this part
        only = ours or theirs
        assert only is not None
        return replace(only, bytes=_sizes(Band.exactly(0), only.bytes))
    if ours.bytes == theirs.bytes:
        return ours
    return replace(
        ours, bytes=_sizes(ours.bytes, theirs.bytes), explanation=_both(ours.explanation, theirs.explanation)
    )


def _sizes(one: Band, other: Band) -> Band:
    """Of bytes or seconds."""
    return Band(min(one.low, other.low), (one.expected + other.expected) / 2, max(one.high, other.high))


def _rates(one: Band, other: Band) -> Band:
    return Band(min(one.low, other.low), _rate(one.expected, other.expected), max(one.high, other.high))


def _rate(one: float, other: float) -> float:
    return 2 / (1 / one + 1 / other) if one and other else 0.0


def _both(one: str, other: str) -> str:
    return one if one == other else f"{one}; {other}"


_Several = TypeVar("_Several", BatchSpeed, ServedSpeed)


def speed_between(light: Speed | None, heavy: Speed | None) -> Speed | None:
    """None where one of them has none: the other alone would look too certain."""
    if light is None or heavy is None:
        return None
    return replace(
        light,
        decode_tokens_per_s=_rates(light.decode_tokens_per_s, heavy.decode_tokens_per_s),
        bound_tokens_per_s=_rate(light.bound_tokens_per_s, heavy.bound_tokens_per_s),
        bytes_per_token=round((light.bytes_per_token + heavy.bytes_per_token) / 2),
        explanation=f"{_EXPLANATION}; {light.explanation}",
        parts_ms={
            name: (light.parts_ms.get(name, 0.0) + heavy.parts_ms.get(name, 0.0)) / 2
            for name in (*light.parts_ms, *heavy.parts_ms)
        },
        at_depth=tuple(
            (depth, _rates(band, other))
            for (depth, band), (_, other) in zip(light.at_depth, heavy.at_depth, strict=True)
        ),
        batch=_several(light.batch, heavy.batch),
        drafted=tuple(
            replace(ours, decode_tokens_per_s=_rates(ours.decode_tokens_per_s, theirs.decode_tokens_per_s))
            for ours, theirs in zip(light.drafted, heavy.drafted, strict=True)
        ),
        served=_served(light.served, heavy.served),
        prefill=_prefill(light.prefill, heavy.prefill),
        start_up=_start_up(light.start_up, heavy.start_up),
    )


def _several(ours: _Several | None, theirs: _Several | None) -> _Several | None:
    if ours is None or theirs is None:
        return None
    return replace(
        ours,
        per_user_tokens_per_s=_rates(ours.per_user_tokens_per_s, theirs.per_user_tokens_per_s),
        total_tokens_per_s=_rates(ours.total_tokens_per_s, theirs.total_tokens_per_s),
    )


def _served(ours: ServedSpeed | None, theirs: ServedSpeed | None) -> ServedSpeed | None:
    both = _several(ours, theirs)
    return replace(both, ttft_ms=_sizes(both.ttft_ms, theirs.ttft_ms)) if both and theirs else None


def _prefill(ours: PrefillSpeed | None, theirs: PrefillSpeed | None) -> PrefillSpeed | None:
    if ours is None or theirs is None:
        return None
    return replace(
        ours,
        tokens_per_s=_rates(ours.tokens_per_s, theirs.tokens_per_s),
        ttft_ms=_sizes(ours.ttft_ms, theirs.ttft_ms),
        explanation=_both(ours.explanation, theirs.explanation),
    )


def _start_up(ours: StartUp | None, theirs: StartUp | None) -> StartUp | None:
    if ours is None or theirs is None:
        return None
    return StartUp(tuple(_phase(*pair) for pair in zip(ours.phases, theirs.phases, strict=True)))


def _phase(ours: StartPhase, theirs: StartPhase) -> StartPhase:
    return replace(
        ours,
        seconds=_sizes(ours.seconds, theirs.seconds),
        explanation=_both(ours.explanation, theirs.explanation),
    )
