"""The best evidence: what this very launch did on this very machine, in the user's own benchmarks.

A benchmark measures some points: a number of users, a length of prompt. A plan asks for others. Where a
measured point is near (within a quarter in depth), its figure is used as it is, with its interval for a
band. Where it is not, the estimate's curve over depth is scaled to pass through the measured point, and the
band grows by half of the correction. Runs of another engine version are mentioned and not used: a new
version has another speed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import log
from typing import TypeVar

from firesteel.engines.kv_cache import KvCache
from firesteel.facts.model.architecture import Architecture
from firesteel.launch import Launch
from firesteel.planner.speed.decode import kv_read_bytes
from firesteel.planner.speed.speculation import DraftedSpeed, TextKind, draft_method
from firesteel.planner.speed.speed import DEPTH, BatchSpeed, PrefillSpeed, ServedSpeed, Speed
from firesteel.units import Band
from firesteel.values import Value, replace

Curve = Callable[[int], float]
"""Estimated tokens per second at a depth; only ratios of it are used."""
_NEAR = 1.25
_MIN_VALUES = 3
"""A figure from fewer values has no meaningful interval."""
_TEXT_KINDS: Mapping[str, TextKind] = {
    "code": "code", "prose": "prose", "json": "structured", "math": "reasoning",
}  # fmt: skip


_Several = TypeVar("_Several", BatchSpeed, ServedSpeed)


class OwnRun(Value):
    """One point of one benchmark of one launch; None: not measured. A figure is a band and a value count."""

    key: str
    """`launch_key` of the measured launch."""
    run: str
    seen: str
    """The date."""
    version: str | None
    text: str
    users: int
    prompt_tokens: int
    shared_tokens: int
    answer_tokens: int
    decode_tps: tuple[Band, int] | None = None
    """Of one user."""
    total_tps: tuple[Band, int] | None = None
    prefill_tps: tuple[Band, int] | None = None
    ttft_ms: float | None = None
    """The median."""
    is_open_loop: bool = False
    """Open loop or a conversation: the load is not a fixed number of users."""

    @property
    def depth(self) -> int:
        """In the middle of the answer."""
        return self.shared_tokens + self.prompt_tokens + self.answer_tokens // 2


class OwnFigure(Value):
    """A figure for a requested point, and how it was obtained."""

    band: Band
    runs: int
    seen: str
    adjustment: str = ""

    @property
    def explanation(self) -> str:
        count = "1 run" if self.runs == 1 else f"{self.runs} runs"
        return f"measured here on {self.seen}, {count}{self.adjustment}"


def is_current(run: OwnRun, launch: Launch) -> bool:
    return run.version is None or launch.version is None or _plain(run.version) == _plain(launch.version)


def _plain(version: str) -> str:
    return version.split(" ")[0].split("+")[0].removeprefix("v").removeprefix("b")


def with_own_runs(
    speed: Speed, launch: Launch, shape: Architecture, kv: KvCache, runs: Sequence[OwnRun]
) -> Speed:
    """The estimate, with its figures replaced by measured ones where there are any."""
    current = [run for run in runs if is_current(run, launch) and not run.is_open_loop]
    single_user = [run for run in current if run.users == 1]
    depth, curve = min(DEPTH, kv.context), _curve(speed, shape, kv)
    figure = decode_at(single_user, depth, curve)
    if figure is None:
        reason = _why_too_few(current) if current else _why_outdated(runs, launch)
        speed = replace(speed, explanation=speed.explanation + reason)
    elif draft_method(launch):  # the measured rate includes the drafter, the plain estimate does not
        speed = _with_drafted(speed, single_user, depth, curve)
    else:
        speed = _with_decode(speed, figure, single_user, curve)
    return _with_batch(_with_prefill(speed, single_user), kv.users, current)


def _with_decode(speed: Speed, figure: OwnFigure, runs: Sequence[OwnRun], curve: Curve) -> Speed:
    factor = figure.band.expected / speed.decode_tokens_per_s.expected
    deeper = ((depth, decode_at(runs, depth, curve)) for depth, _ in speed.at_depth)
    return replace(
        speed,
        decode_tokens_per_s=figure.band,
        basis="measured here",
        explanation=figure.explanation,
        sources=(),
        parts_ms={part: ms / factor for part, ms in speed.parts_ms.items()},
        at_depth=tuple((depth, measured.band) for depth, measured in deeper if measured),
        batch=_scaled(speed.batch, factor),
        served=_scaled(speed.served, factor),
    )


def _curve(speed: Speed, shape: Architecture, kv: KvCache) -> Curve:
    """The time of a step grows with the KV cache that it reads, as the fit says or else as the bytes do."""

    def kv_bytes(depth: int) -> float:
        return kv_read_bytes(shape, depth, kv.dtype)

    def by_bytes(depth: int) -> float:
        return 1 / (speed.bytes_per_token + kv_bytes(depth) - kv_bytes(min(DEPTH, kv.context)))

    if len(speed.at_depth) < 2:
        return by_bytes
    (near, fast), (far, slow) = speed.at_depth[0], speed.at_depth[-1]
    shortest, longest = 1 / fast.expected, 1 / slow.expected

    def by_fit(depth: int) -> float:
        share = (kv_bytes(depth) - kv_bytes(near)) / max(1.0, kv_bytes(far) - kv_bytes(near))
        return 1 / (shortest + (longest - shortest) * share)

    return by_fit


def decode_at(runs: Sequence[OwnRun], depth: int, curve: Curve) -> OwnFigure | None:
    """From the runs nearest in depth; runs that are about equally near are combined."""
    usable = [run for run in runs if _has_enough(run.decode_tps)]
    if not usable:
        return None
    nearest = min(abs(log(run.depth / depth)) for run in usable)
    nearby = [run for run in usable if abs(log(run.depth / depth)) <= nearest + log(_NEAR) / 2]
    band = _combined([run.decode_tps[0] for run in nearby if run.decode_tps])
    measured_depth = round(sum(run.depth for run in nearby) / len(nearby))
    seen, count = max(run.seen for run in nearby), len({run.run for run in nearby})
    if max(measured_depth, depth) / min(measured_depth, depth) <= _NEAR:
        return OwnFigure(band, count, seen)
    factor = curve(depth) / curve(measured_depth)
    adjustment = (
        f"; measured {measured_depth:,} tokens in, scaled to {depth:,} along the estimate's curve "
        f"({factor:.2f} times)"
    )
    margin = abs(1 - factor) / 2
    moved = Band(
        band.low * factor * max(0.0, 1 - margin), band.expected * factor, band.high * factor * (1 + margin)
    )
    return OwnFigure(moved, count, seen, adjustment)


def _has_enough(figure: tuple[Band, int] | None) -> bool:
    return figure is not None and figure[1] >= _MIN_VALUES


def _combined(bands: Sequence[Band]) -> Band:
    """The mean of several figures, with a band over all of their intervals."""
    mean = sum(band.expected for band in bands) / len(bands)
    return Band(min(band.low for band in bands), mean, max(band.high for band in bands))


def _why_outdated(runs: Sequence[OwnRun], launch: Launch) -> str:
    old = [run for run in runs if not is_current(run, launch)]
    if not old:
        return ""
    return f"; a measurement here on {old[0].seen} was of version {old[0].version} and is not used"


def _why_too_few(current: Sequence[OwnRun]) -> str:
    """There are benchmarks of this launch: say why they are not enough."""
    value_counts = [run.decode_tps[1] for run in current if run.users == 1 and run.decode_tps]
    last, command = max(run.seen for run in current), "firesteel bench --shape single"
    if not value_counts:
        return f"; benchmarked on {last}, but not for one user: {command}"
    times = {1: "once", 2: "twice"}.get(max(value_counts), f"{max(value_counts)} times")
    return f"; measured {times} on {last}; {_MIN_VALUES} repetitions are needed: {command}"


def _with_drafted(speed: Speed, runs: Sequence[OwnRun], depth: int, curve: Curve) -> Speed:
    """By kind of text, because the gain of a drafter depends on it."""
    figures = {
        _TEXT_KINDS[text]: decode_at([run for run in runs if run.text == text], depth, curve)
        for text in {run.text for run in runs} & _TEXT_KINDS.keys()
    }
    own = {
        kind: DraftedSpeed(kind, figure.band, figure.explanation, ())
        for kind, figure in figures.items()
        if figure
    }
    others = tuple(own.pop(estimate.text, estimate) for estimate in speed.drafted)
    return replace(speed, drafted=(*others, *own.values()))


def _with_prefill(speed: Speed, runs: Sequence[OwnRun]) -> Speed:
    """For the longest measured prompt; no curve is scaled through it."""
    usable = [run for run in runs if not run.shared_tokens and _has_enough(run.prefill_tps)]
    if not usable:
        return speed
    longest = max(usable, key=lambda run: (run.prompt_tokens, run.seen))
    same = [run for run in usable if run.prompt_tokens == longest.prompt_tokens]
    rate = _combined([run.prefill_tps[0] for run in same if run.prefill_tps])
    prompt = longest.prompt_tokens
    slowest = 1000 * prompt / rate.low if rate.low else 2000 * prompt / rate.expected
    ttft = Band(1000 * prompt / rate.high, 1000 * prompt / rate.expected, slowest)
    if longest.ttft_ms:  # the measured median; the rate leaves out the way to the client
        ttft = Band(min(ttft.low, longest.ttft_ms), longest.ttft_ms, max(ttft.high, longest.ttft_ms))
    return replace(speed, prefill=PrefillSpeed(prompt, rate, ttft, _figure(rate, same).explanation))


def _figure(band: Band, runs: Sequence[OwnRun]) -> OwnFigure:
    return OwnFigure(band, len({run.run for run in runs}), max(run.seen for run in runs))


def _scaled(several: _Several | None, factor: float) -> _Several | None:
    """The estimate for several users is assumed to be off by the same factor as for one."""
    if several is None:
        return None
    return replace(
        several,
        per_user_tokens_per_s=several.per_user_tokens_per_s.scaled(factor),
        total_tokens_per_s=several.total_tokens_per_s.scaled(factor),
        explanation=f"{several.explanation}; times {factor:.2f}, as measured here for one user",
    )


def _with_batch(speed: Speed, users: int, runs: Sequence[OwnRun]) -> Speed:
    """Only from runs with as many users as the launch serves."""
    same = [run for run in runs if run.users == users and _has_enough(run.decode_tps)]
    if users < 2 or not same:
        return speed
    per_user = _combined([run.decode_tps[0] for run in same if run.decode_tps])
    totals = [run.total_tps[0] for run in same if run.total_tps]
    total = _combined(totals) if totals else per_user.scaled(users)
    return replace(speed, batch=BatchSpeed(users, per_user, total, _figure(per_user, same).explanation))
