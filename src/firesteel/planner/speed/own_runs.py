"""The first rung: what this very launch did on this very machine, by the user's own benches.

A bench measured some points: so many users, so long a prompt. A plan asks for others. Where a measured point
is near the asked one (within a quarter in depth) its figure is taken as it is, with its interval for a band.
Where it is not, the curve that the estimate has over depth is laid through the measured point, and the band
grows by half of what the curve moved it. Runs of another engine version are named and not used: a new version
is another speed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log

from firesteel.engines import KvCache
from firesteel.facts import Architecture
from firesteel.launch import Launch
from firesteel.planner.band import Band
from firesteel.planner.speed.decode import past_at
from firesteel.planner.speed.speculation import DraftedSpeed, Text, method
from firesteel.planner.speed.speed import DEPTH, BatchSpeed, PrefillSpeed, Speed

Curve = Callable[[int], float]
"""Tokens a second at a depth, by the estimate; only ratios of it are used."""
_NEAR = 1.25
_FEWEST = 3
"""Values behind a figure below which its interval says nothing."""
_TEXTS: Mapping[str, Text] = {"code": "code", "prose": "prose", "json": "structured", "math": "reasoning"}


@dataclass(frozen=True, slots=True)
class OwnRun:
    """One point of one bench of one launch; None: not measured. Figures say how many values they have."""

    key: str
    """`launch_key` of what was measured."""
    run: str
    seen: str
    """When, as a date."""
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
    """Or a conversation: its load is not that of a fixed number of users."""

    @property
    def depth(self) -> int:
        """In the middle of the answer."""
        return self.shared_tokens + self.prompt_tokens + self.answer_tokens // 2


@dataclass(frozen=True, slots=True)
class OwnFigure:
    """A figure for an asked point, and how it was come by."""

    band: Band
    runs: int
    seen: str
    words: str = ""


def is_current(run: OwnRun, launch: Launch) -> bool:
    return run.version is None or launch.version is None or _plain(run.version) == _plain(launch.version)


def _plain(version: str) -> str:
    return version.split(" ")[0].split("+")[0].removeprefix("v").removeprefix("b")


def as_measured(
    speed: Speed, launch: Launch, shape: Architecture, kv: KvCache, runs: Sequence[OwnRun]
) -> Speed:
    """The estimate, with the figures that were measured in place of its own."""
    current = [run for run in runs if is_current(run, launch) and not run.is_open_loop]
    alone = [run for run in current if run.users == 1]
    depth, curve = min(DEPTH, kv.context), _curve(speed, shape, kv)
    told = decode_at(alone, depth, curve)
    if told is None:
        found = replace(speed, why=speed.why + (_few(current) or _stale(runs, launch)))
    elif method(launch):  # what was measured has the drafter's work in it, and the plain figure has not
        found = _with_drafted(speed, alone, depth, curve)
    else:
        found = _with_decode(speed, told, alone, curve)
    return _with_crowd(_with_prefill(found, alone), kv.users, current)


def _with_decode(speed: Speed, told: OwnFigure, alone: Sequence[OwnRun], curve: Curve) -> Speed:
    factor = told.band.expected / speed.decode_tokens_per_s.expected
    deeper = ((each, decode_at(alone, each, curve)) for each, _ in speed.at_depth)
    return replace(
        speed,
        decode_tokens_per_s=told.band,
        rung="measured here",
        why=_words(told),
        sources=(),
        parts_ms={part: took / factor for part, took in speed.parts_ms.items()},
        at_depth=tuple((each, at.band) for each, at in deeper if at),
        crowd=_scaled_crowd(speed.crowd, factor),
    )


def _curve(speed: Speed, shape: Architecture, kv: KvCache) -> Curve:
    """A step's time grows with the past that it reads. The fit says how fast; else the bytes do."""

    def past(depth: int) -> float:
        return past_at(shape, depth, kv.dtype)

    def by_bytes(depth: int) -> float:
        return 1 / (speed.bytes_per_token + past(depth) - past(min(DEPTH, kv.context)))

    if len(speed.at_depth) < 2:
        return by_bytes
    (near, fast), (far, slow) = speed.at_depth[0], speed.at_depth[-1]
    least, most = 1 / fast.expected, 1 / slow.expected

    def by_fit(depth: int) -> float:
        share = (past(depth) - past(near)) / max(1.0, past(far) - past(near))
        return 1 / (least + (most - least) * share)

    return by_fit


def decode_at(runs: Sequence[OwnRun], depth: int, curve: Curve) -> OwnFigure | None:
    """Of the runs nearest in depth; those that are equally near are taken together."""
    sound = [run for run in runs if _is_sound(run.decode_tps)]
    if not sound:
        return None
    nearest = min(abs(log(run.depth / depth)) for run in sound)
    taken = [run for run in sound if abs(log(run.depth / depth)) <= nearest + log(_NEAR) / 2]
    bands = [run.decode_tps[0] for run in taken if run.decode_tps]
    at = round(sum(run.depth for run in taken) / len(taken))
    seen, many = max(run.seen for run in taken), len({run.run for run in taken})
    if max(at, depth) / min(at, depth) <= _NEAR:
        return OwnFigure(_over(bands), many, seen)
    moved = curve(depth) / curve(at)
    words = (
        f"; measured {at:,} tokens in, brought to {depth:,} along the estimate's curve ({moved:.2f} times)"
    )
    return OwnFigure(_moved(_over(bands), moved), many, seen, words)


def _is_sound(figure: tuple[Band, int] | None) -> bool:
    return figure is not None and figure[1] >= _FEWEST


def _over(bands: Sequence[Band]) -> Band:
    """Of several: their mean, and all of their intervals."""
    mean = sum(band.expected for band in bands) / len(bands)
    return Band(min(band.low for band in bands), mean, max(band.high for band in bands))


def _moved(band: Band, factor: float) -> Band:
    doubt = abs(1 - factor) / 2
    return Band(
        band.low * factor * max(0.0, 1 - doubt), band.expected * factor, band.high * factor * (1 + doubt)
    )


def _words(found: OwnFigure) -> str:
    many = "1 run" if found.runs == 1 else f"{found.runs} runs"
    return f"measured here on {found.seen}, {many}{found.words}"


def _stale(runs: Sequence[OwnRun], launch: Launch) -> str:
    old = [run for run in runs if not is_current(run, launch)]
    if not old:
        return ""
    return f"; what was measured here on {old[0].seen} was version {old[0].version}, and is not used"


def _few(current: Sequence[OwnRun]) -> str:
    """Of the very launch there are benches, and why they are not enough."""
    if not current:
        return ""
    seen = [run.decode_tps[1] for run in current if run.users == 1 and run.decode_tps]
    last, again = max(run.seen for run in current), "firesteel bench --shape single"
    if not seen:
        return f"; benched on {last}, but not for one user: {again}"
    times = {1: "once", 2: "twice"}.get(max(seen), f"{max(seen)} times")
    return f"; benched {times} on {last}; {_FEWEST} visits are needed: {again}"


def _with_drafted(speed: Speed, alone: Sequence[OwnRun], depth: int, curve: Curve) -> Speed:
    """By kind of text, since what a drafter gains hangs on it."""
    by_text = {
        _TEXTS[text]: decode_at([run for run in alone if run.text == text], depth, curve)
        for text in {run.text for run in alone} & _TEXTS.keys()
    }
    own = {text: DraftedSpeed(text, at.band, _words(at), ()) for text, at in by_text.items() if at}
    others = tuple(own.pop(each.text, each) for each in speed.drafted)
    return replace(speed, drafted=(*others, *own.values()))


def _with_prefill(speed: Speed, alone: Sequence[OwnRun]) -> Speed:
    """At the longest prompt that was measured; nothing is laid through it."""
    whole = [
        run for run in alone if not run.shared_tokens and run.prefill_tps and run.prefill_tps[1] >= _FEWEST
    ]
    if not whole:
        return speed
    longest = max(whole, key=lambda run: (run.prompt_tokens, run.seen))
    same = [run for run in whole if run.prompt_tokens == longest.prompt_tokens]
    return replace(speed, prefill=_prefill(longest, same))


def _prefill(longest: OwnRun, runs: Sequence[OwnRun]) -> PrefillSpeed:
    rate = _over([run.prefill_tps[0] for run in runs if run.prefill_tps])
    prompt = longest.prompt_tokens
    slowest = 1000 * prompt / rate.low if rate.low else 2000 * prompt / rate.expected
    ttft = Band(1000 * prompt / rate.high, 1000 * prompt / rate.expected, slowest)
    if longest.ttft_ms:  # the median is what was seen; the rate leaves the client's way out
        ttft = Band(min(ttft.low, longest.ttft_ms), longest.ttft_ms, max(ttft.high, longest.ttft_ms))
    many = len({run.run for run in runs})
    return PrefillSpeed(prompt, rate, ttft, _words(OwnFigure(rate, many, max(run.seen for run in runs))))


def _scaled_crowd(crowd: BatchSpeed | None, factor: float) -> BatchSpeed | None:
    """What one user was off by, all are taken to be."""
    if crowd is None:
        return None
    each, total = (
        Band(band.low * factor, band.expected * factor, band.high * factor)
        for band in (crowd.each_tokens_per_s, crowd.total_tokens_per_s)
    )
    why = f"{crowd.why}; {factor:.2f} times the estimate, as one user was when measured here"
    return replace(crowd, each_tokens_per_s=each, total_tokens_per_s=total, why=why)


def _with_crowd(speed: Speed, users: int, runs: Sequence[OwnRun]) -> Speed:
    """Only from runs with as many users as the launch is for."""
    same = [run for run in runs if run.users == users and _is_sound(run.decode_tps)]
    if users < 2 or not same:
        return speed
    each = _over([run.decode_tps[0] for run in same if run.decode_tps])
    totals = [run.total_tps[0] for run in same if run.total_tps]
    total = (
        _over(totals) if totals else Band(*(users * rate for rate in (each.low, each.expected, each.high)))
    )
    found = OwnFigure(each, len({run.run for run in same}), max(run.seen for run in same))
    return replace(speed, crowd=BatchSpeed(users, each, total, _words(found)))
