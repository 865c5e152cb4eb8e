"""A run in plain sentences: how fast for one, for how many, as planned or not, what to doubt. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from firesteel.bench.compare.against import PlanComparison, against_plan
from firesteel.bench.report import format
from firesteel.bench.report.charts import has_no_gpu
from firesteel.bench.results.figures import SHARE_HIGH, SHARE_LOW
from firesteel.bench.values import BenchRun, Point, PointFigures
from firesteel.units import show_seconds

PACES = (50, 20, 10)
"""tok/s of each user, for which it says how many there may be; a stated target goes before."""
_FEW = 3
_LAG_MS = 1.0


@dataclass(frozen=True, slots=True)
class VerdictLine:
    kind: Literal["fact", "good", "warning", "unknown"]
    text: str


def verdict(run: BenchRun) -> tuple[VerdictLine, ...]:
    """The most important first."""
    if not any(each.samples for each in run.figures):
        return VerdictLine("warning", "Nothing could be measured: no request went right."), *_warnings(run)
    return (*_alone(run), *_together(run), *_as_planned(run), *_bound(run), *_target(run), *_warnings(run))


# --- for one ---


def _alone(run: BenchRun) -> Iterator[VerdictLine]:
    one = [each for each in run.figures if _is_alone(each.point) and each.decode_tokens_per_s]
    if not one:
        yield VerdictLine("unknown", "How fast it is for one user alone was not measured.")
        return
    depth = min(each.point.depth for each in one)
    first = {each.point.text: each for each in reversed(one) if each.point.depth == depth}
    rates = format.join_words(
        f"{format.figure(each.decode_tokens_per_s)} tok/s of {text}" for text, each in first.items()
    )
    waits = [each.ttft_mean_ms.value / 1000 for each in first.values() if each.ttft_mean_ms]
    wait = f"; the first word comes after {_seconds(waits)}" if waits else ""
    yield VerdictLine("fact", f"One user alone gets {rates}, with {depth:,} tokens of prompt{wait}.")
    yield from _deep(one, depth)


def _is_alone(point: Point) -> bool:
    return point.users == 1 and point.rate_per_s is None and point.turns == 1


def _seconds(waits: Sequence[float]) -> str:
    low, high = show_seconds(min(waits)), show_seconds(max(waits))
    return low if low == high else f"{low} to {high}"


def _deep(one: Sequence[PointFigures], shallow: int) -> Iterator[VerdictLine]:
    deepest = max(one, key=lambda each: each.point.depth)
    if deepest.point.depth > shallow:
        wait = deepest.ttft_mean_ms
        late = f", and waits {show_seconds(wait.value / 1000)} for the first word" if wait else ""
        rate, depth = format.figure(deepest.decode_tokens_per_s), deepest.point.depth
        yield VerdictLine("fact", f"With {depth:,} tokens of prompt it gets {rate} tok/s{late}.")


# --- for several ---


def _together(run: BenchRun) -> Iterator[VerdictLine]:
    """Of the load that was tried with the most counts of users."""
    loads: dict[tuple[Any, ...], dict[int, float]] = defaultdict(dict)
    for each in run.figures:
        point = each.point
        if each.decode_tokens_per_s and point.rate_per_s is None:
            load = (point.text, point.prompt_tokens, point.shared_tokens, point.answer_tokens, point.turns)
            loads[load][point.users] = _pace(each, each.decode_tokens_per_s.value)
    text, rates = max(
        ((key[0], rates) for key, rates in loads.items()), key=lambda one: len(one[1]), default=("", {})
    )
    if len(rates) < 2:
        yield VerdictLine(
            "unknown", "How many users it can serve at once was not measured: `--users 1,2,4,8` tells."
        )
        return
    paces = [pace for pace in _paces(run.settings.target) if max(rates.values()) >= pace] or [min(PACES)]
    told = "; ".join(f"{_keepers(rates, pace)} at {pace:g} tok/s or more" for pace in paces)
    tried = format.join_words(f"{users:,}" for users in sorted(rates))
    yield VerdictLine(
        "fact", f"Users at once that each keep their pace, writing {text}: {told}. Tried were {tried}."
    )


def _paces(target: Mapping[str, float]) -> Sequence[float]:
    gap = target.get("inter_token_ms", 0)
    return (round(1000 / gap, 1),) if gap > 0 else PACES


def _pace(found: PointFigures, decode: float) -> float:
    """Of one user over all that it waits for: with what all get together no more than their share is had."""
    return (
        min(decode, found.total_tokens_per_s.value / found.point.users)
        if found.total_tokens_per_s
        else decode
    )


def _keepers(rates: Mapping[int, float], pace: float) -> str:
    """The most of those tried up to which nobody falls below."""
    most = 0
    for users in sorted(rates):
        if rates[users] < pace:
            return f"{most:,}" if most else "none"
        most = users
    return f"all {most:,}"


# --- as planned, as can be, as wanted ---


def _as_planned(run: BenchRun) -> Iterator[VerdictLine]:
    held = against_plan(run)
    if not held:
        why = "its plan speaks of none of these loads" if run.subject.plan else "no plan was kept with it"
        yield VerdictLine("unknown", f"It is held against no plan: {why}.")
        return
    outside = [each for each in held if each.verdict != "inside the band"]
    if not outside:
        one = f"It is inside its plan's band: {_against(held[0])}"
        many = f"All {len(held)} figures that the plan speaks of are inside its band"
        once = sum(each.measured.n < 2 for each in held)
        yield _praise(many if len(held) > 1 else one, once, len(held))
        return
    for verdict_ in ("slower than planned", "faster than planned"):
        those = [each for each in outside if each.verdict == verdict_]
        if those:
            kind: Literal["warning", "fact"] = "warning" if verdict_ == "slower than planned" else "fact"
            many = f"{len(those)} of {len(held)} figures" if len(held) > 1 else "It"
            verb = "are" if len(those) > 1 else "is"
            yield VerdictLine(
                kind,
                f"{many} {verb} {verdict_}: {_against(those[0])}{', for one' if len(those) > 1 else ''}.",
            )


def _praise(words: str, once: int, of: int) -> VerdictLine:
    """Good only where it was seen again: once says nothing of the next time."""
    if not once:
        return VerdictLine("good", f"{words}.")
    return VerdictLine("fact", f"{words}, but {f'{once} of them were' if of > 1 else 'that was'} seen once.")


def _against(held: PlanComparison) -> str:
    return f"{held.measure} {format.figure(held.measured)}, planned {format.band(held.planned)}"


def _bound(run: BenchRun) -> Iterator[VerdictLine]:
    found = [each for each in run.figures if each.bandwidth_share is not None]
    shares = [each.bandwidth_share for each in found if each.bandwidth_share is not None]
    if not shares:
        return
    once = sum(each.decode_tokens_per_s is None or each.decode_tokens_per_s.n < 2 for each in found)
    low, high = min(shares), max(shares)
    told = f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}"
    words = f"Decode of one user is {told} of what the memory's bandwidth allows"
    if high <= SHARE_HIGH and has_no_gpu(run):  # what is usual is known of GB10s alone
        few = "; without a GPU arithmetic is the limit, so that is no sign of a fault"
        yield VerdictLine("fact", f"{words}{few if low < SHARE_LOW else ''}.")
    elif low >= SHARE_LOW and high <= SHARE_HIGH:
        yield _praise(f"{words}, as is usual on a GB10", once, len(found))
    else:
        yield VerdictLine("warning", f"{words}, where {SHARE_LOW} to {SHARE_HIGH} is usual on a GB10.")


def _target(run: BenchRun) -> Iterator[VerdictLine]:
    met = [(each.goodput_per_s, each.point) for each in run.figures if each.goodput_per_s is not None]
    if met and run.settings.target:
        most, point = max(met, key=lambda each: each[0])
        goal = format.join_words(
            f"{name.replace('_', ' ')} {value:g}" for name, value in run.settings.target.items()
        )
        yield VerdictLine(
            "fact", f"At most {most:.2f} requests/s met the target ({goal}): {format.load(point)}."
        )


# --- what to doubt ---


def _warnings(run: BenchRun) -> Iterator[VerdictLine]:
    wrong = sum(sum(each.wrong.values()) for each in run.figures)
    if wrong:
        good = sum(each.samples for each in run.figures)
        verb = "request" if wrong == 1 else "requests"
        yield VerdictLine(
            "warning", f"{wrong:,} {verb} went wrong and are in no figure; {good:,} went right."
        )
    if not run.is_whole:
        yield VerdictLine(
            "warning", "The run was stopped before its end: some loads were visited too seldom or never."
        )
    few = [each for each in run.figures if each.samples and each.repetitions < _FEW]
    if few:
        yield VerdictLine(
            "warning",
            f"{len(few)} of {len(run.figures)} loads were visited fewer than {_FEW} times: trust them less.",
        )
    if run.client.get("p99_lag_ms", 0.0) > _LAG_MS:
        yield VerdictLine(
            "warning",
            "The client itself ran late: the machine was busy, and the server may be faster than this.",
        )
    noted = sum(bool(each.notes) for each in run.figures)
    if noted:
        yield VerdictLine("warning", f"{noted} of {len(run.figures)} loads have notes of their own, below.")
