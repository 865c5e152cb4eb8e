"""Run against run: is the difference real? Pure.

Two runs are held against each other point by point, and only where they asked for the same: another thinking
mode, another sampling, another `max_num_seqs` is another thing that was measured: the answer then is why they
cannot be compared, and no number. What is compared are visits (streams side by side are one observation),
in pairs where the two were measured in turns. Each row says whether the difference is more than chance.

A run stops when its intervals are narrow, and so more often when they are narrow by luck. That is why a
difference counts only from 2 % on, and why all figures of a comparison are judged together (Holm) at 0.02:
then fewer than 5 of 100 comparisons of equal servers show any. Simulated in `tests/bench/test_equal_servers`;
where each visit is half the one before it were up to 12 of 100, and 50 before that was minded.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log, sqrt
from typing import Any, Literal

from firesteel.bench.compare.stats import (
    FigureDifference,
    is_real,
    mean_interval,
    student_quantile,
    student_tail,
)
from firesteel.bench.results.figures import by_repetition, decode_tokens_per_s, prefill_tokens_per_s, ttft_s
from firesteel.bench.results.serialize import StoredRun
from firesteel.bench.values import BenchRun, MeasuredFigure, Point, PointFigures, RequestSample

Measure = Literal["decode", "total", "prefill", "TTFT"]
_UNITS: Mapping[Measure, str] = {"decode": "tok/s", "total": "tok/s", "prefill": "tok/s", "TTFT": "ms"}
_PINNED = ("thinking", "temperature", "max_num_seqs", "ignores_eos")
"""Settings that make another thing of what is measured."""
_CACHED_APART = 0.1
_NEAR = 0.05
"""Tokens of prompts and answers by which a load of another tool may be off: it counts a chat template, or
not, and lets answers end."""
_LEAST = 0.02
"""Differences below are of no use to anybody, and within what a run that stops early can be wrong by."""
_CHANCE = 0.02
"""For all figures of a comparison together. It is not 0.05, since runs stop when they look sure."""
TURNS = "measured in turns with "
"""What each run of an A/B notes, before the other's id."""


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """One figure of one point, twice. `difference` is the second against the first."""

    point: Point
    measure: Measure
    first: MeasuredFigure
    second: MeasuredFigure
    difference: FigureDifference

    @property
    def unit(self) -> str:
        return _UNITS[self.measure]


@dataclass(frozen=True, slots=True)
class AnswerComparison:
    """What two subjects said to the same prompts at temperature 0."""

    compared: int
    equal: int

    @property
    def changed(self) -> int:
        return self.compared - self.equal


@dataclass(frozen=True, slots=True)
class Comparison:
    first: str
    second: str
    rows: tuple[ComparedFigure, ...] = ()
    only_first: tuple[Point, ...] = ()
    only_second: tuple[Point, ...] = ()
    why_not: tuple[tuple[str, str], ...] = ()
    """(setting, what each has): they cannot be compared."""
    apart: tuple[str, ...] = ()
    """What of the launch differs: what the comparison is about, perhaps."""
    notes: tuple[str, ...] = ()
    answers: AnswerComparison | None = None
    is_interleaved: bool = False


# --- run against run ---


def compare(
    first: StoredRun, second: StoredRun, *, despite: Collection[str] = (), is_interleaved: bool = False
) -> Comparison:
    """The second against the first. `despite`: settings that may differ, since they are what is looked at."""
    a, b = first.run, second.run
    names = (a.id, b.id)
    why_not = tuple(each for each in _unlike(first, second) if each[0] not in despite)
    apart = tuple(_apart(a, b))
    if why_not:
        return Comparison(*names, why_not=why_not, apart=apart)
    pairs = _matched(first, second)
    rows = _judged_together(
        [row for at, other in pairs for row in _rows(_Side(first, at), _Side(second, other), is_interleaved)]
    )
    return Comparison(
        *names,
        rows,
        tuple(point for at, point in enumerate(a.points) if at not in {one for one, _ in pairs}),
        tuple(point for at, point in enumerate(b.points) if at not in {two for _, two in pairs}),
        apart=apart,
        notes=(
            *_chance_notes(rows),
            *_near_notes(a, b, pairs),
            *_cache_notes(first, second, pairs),
            *_notes(first, second, is_interleaved),
        ),
        answers=answers(first, second) if is_interleaved else None,
        is_interleaved=is_interleaved,
    )


def _unlike(first: StoredRun, second: StoredRun) -> Iterator[tuple[str, str]]:
    """Settings that both runs know and that differ. Of a file nobody knows whether answers were cut short."""
    are_ours = all(each.origin == "measured here" for each in (first, second))
    for name in _PINNED:
        one, other = (getattr(each.run.settings, name) for each in (first, second))
        is_known = are_ours if name in ("thinking", "ignores_eos") else None not in (one, other)
        if is_known and one != other:
            yield name, f"{_said(one)} and {_said(other)}"


def _said(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return (
        "as the model has it" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
    )


def _apart(a: BenchRun, b: BenchRun) -> Iterator[str]:
    for name in ("model", "engine", "version", "image_digest"):
        one, other = getattr(a.subject, name), getattr(b.subject, name)
        if one != other:
            yield f"{name.replace('_', ' ')}: {one or 'not known'}, {other or 'not known'}"
    yield from _flags_apart(a.subject.launch.get("flags"), b.subject.launch.get("flags"))


def _flags_apart(one: Any, other: Any) -> Iterator[str]:
    ours, theirs = (each if isinstance(each, Mapping) else {} for each in (one, other))
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            yield f"{name}: {_flag(ours.get(name))}, {_flag(theirs.get(name))}"


def _flag(value: object) -> str:
    return "not set" if value is None else str(value)[:80]


def _matched(first: StoredRun, second: StoredRun) -> list[tuple[int, int]]:
    """By equal load, in order; each is used once. What a shape is called is no part of it. What is left of a
    run that was made elsewhere is taken to the nearest load."""
    a, b = first.run, second.run
    free: dict[Point, list[int]] = defaultdict(list)
    for at, point in enumerate(b.points):
        free[replace(point, shape="")].append(at)
    loads = [replace(point, shape="") for point in a.points]
    pairs = [(at, free[load].pop(0)) for at, load in enumerate(loads) if free[load]]
    if all(each.origin == "measured here" for each in (first, second)):
        return pairs
    return sorted((*pairs, *_nearly(a, b, pairs)))


def _nearly(a: BenchRun, b: BenchRun, pairs: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    used = {one for one, _ in pairs}
    left = [at for at in range(len(b.points)) if at not in {other for _, other in pairs}]
    for at, point in enumerate(a.points):
        off = {other: _off(point, b.points[other]) for other in left} if at not in used else {}
        near = min(off, key=lambda other: off[other], default=None)
        if near is not None and off[near] <= _NEAR:
            left.remove(near)
            yield at, near


def _off(one: Point, other: Point) -> float:
    """The larger of what prompts and answers are apart by; more than all where the loads are of two kinds."""
    same = replace(other, shape=one.shape, prompt_tokens=one.prompt_tokens, answer_tokens=one.answer_tokens)
    if same != one:
        return 2.0
    sizes = ((one.prompt_tokens, other.prompt_tokens), (one.answer_tokens, other.answer_tokens))
    return max(abs(here - there) / max(here, there, 1) for here, there in sizes)


def _near_notes(a: BenchRun, b: BenchRun, pairs: Sequence[tuple[int, int]]) -> Iterator[str]:
    for at, other in pairs:
        one, two = a.points[at], b.points[other]
        if _off(one, two) > 0:
            here, there = (f"{each.depth:,} + {each.answer_tokens} tokens" for each in (one, two))
            yield f"{here} are held against {there}: TTFT may differ by as much through that alone"


@dataclass(frozen=True, slots=True)
class _Side:
    kept: StoredRun
    at: int

    @property
    def point(self) -> Point:
        return self.kept.run.points[self.at]

    @property
    def figures(self) -> PointFigures | None:
        return next((each for each in self.kept.run.figures if each.point == self.point), None)

    def visits(self, rate: Callable[[RequestSample], float | None]) -> dict[int, float]:
        """What each warm visit came to, as its figures count it."""
        seen = by_repetition(self.point, [each for each in self.kept.samples if each.point == self.at])
        found = {
            at: each.decode_tokens_per_s() if rate is decode_tokens_per_s else each.mean(rate)
            for at, each in seen.items()
        }
        return {at: value for at, value in found.items() if value is not None}


def _rows(first: _Side, second: _Side, is_interleaved: bool) -> Iterator[ComparedFigure]:
    rates: dict[Measure, Callable[[RequestSample], float | None]] = {"decode": decode_tokens_per_s}
    if not _is_cached_unlike(first, second):
        rates["TTFT"] = _ttft_ms
        if first.point.users == 1 and not first.point.shared_tokens:
            rates["prefill"] = prefill_tokens_per_s
    for measure, rate in rates.items():
        row = _from_samples(first, second, measure, rate, is_interleaved)
        if row := row or _from_figures(first, second, measure):
            yield row
    if total := _from_figures(first, second, "total"):
        yield total


def _is_cached_unlike(first: _Side, second: _Side) -> bool:
    """One had more of its prompts in the cache: its first word says nothing of how fast it reads."""
    shares = [each.figures.cached_share for each in (first, second) if each.figures]
    known = [share for share in shares if share is not None]
    return len(known) == 2 and abs(known[0] - known[1]) > _CACHED_APART


def _ttft_ms(sample: RequestSample) -> float | None:
    wait_s = ttft_s(sample)
    return None if wait_s is None else 1000 * wait_s


def _from_samples(
    first: _Side, second: _Side, measure: Measure, rate: Callable[[RequestSample], float | None], paired: bool
) -> ComparedFigure | None:
    one, other = first.visits(rate), second.visits(rate)
    if paired:
        both = sorted(one.keys() & other.keys())
        one, other = {at: one[at] for at in both}, {at: other[at] for at in both}
    a, b = mean_interval(list(one.values())), mean_interval(list(other.values()))
    if a is None or b is None:
        return None
    found = is_real(list(other.values()), list(one.values()), paired=paired, is_time=measure == "TTFT")
    return ComparedFigure(first.point, measure, a, b, found)


def _from_figures(first: _Side, second: _Side, measure: Measure) -> ComparedFigure | None:
    """Where a run came without its samples: from the means and their intervals."""
    one, other = _figure(first.figures, measure), _figure(second.figures, measure)
    if one is None or other is None:
        return None
    return ComparedFigure(first.point, measure, one, other, between(other, one, is_time=measure == "TTFT"))


def _figure(figures: PointFigures | None, measure: Measure) -> MeasuredFigure | None:
    if figures is None:
        return None
    found = {
        "decode": figures.decode_tokens_per_s,
        "total": figures.total_tokens_per_s,
        "prefill": figures.prefill_tokens_per_s,
        "TTFT": figures.ttft_mean_ms,
    }
    return found[measure]


def between(a: MeasuredFigure, b: MeasuredFigure, *, is_time: bool = False) -> FigureDifference:
    """`stats.is_real` from what is left of the values: means, intervals of 95 %, and how many there were."""
    n = min(a.n, b.n)
    if n < 3 or a.value <= 0 or b.value <= 0:
        return FigureDifference(a.value / b.value if b.value else 0.0, 0.0, 0.0, 1.0, "too few", n)
    ea, eb = ((each.high - each.value) / student_quantile(0.975, each.n - 1) / each.value for each in (a, b))
    error, apart = sqrt(ea**2 + eb**2), log(a.value / b.value)
    if error < 1e-12:
        return is_real([a.value] * 3, [b.value] * 3, is_time=is_time)
    freedom = error**4 / (ea**4 / (a.n - 1) + eb**4 / (b.n - 1))
    p = 2 * student_tail(abs(apart) / error, freedom)
    off = min(600.0, student_quantile(0.975, freedom) * error)  # an imported figure may have any interval
    if p >= 0.05:
        return FigureDifference(exp(apart), exp(apart - off), exp(apart + off), p, "no difference seen", n)
    verdict: Literal["faster", "slower"] = "faster" if (apart > 0) != is_time else "slower"
    return FigureDifference(exp(apart), exp(apart - off), exp(apart + off), p, verdict, n)


def were_in_turns(first: StoredRun, second: StoredRun) -> bool:
    return f"{TURNS}{second.run.id}" in first.run.notes and f"{TURNS}{first.run.id}" in second.run.notes


def _cache_notes(first: StoredRun, second: StoredRun, pairs: Sequence[tuple[int, int]]) -> Iterator[str]:
    if any(_is_cached_unlike(_Side(first, one), _Side(second, other)) for one, other in pairs):
        yield "one had more of its prompts in its cache than the other, so TTFT and prefill are not compared"


def _judged_together(rows: Sequence[ComparedFigure]) -> tuple[ComparedFigure, ...]:
    """Holm's way: the surest must pass for all of them, the next for all but one, until one does not."""
    judged = [at for at, row in enumerate(rows) if row.difference.verdict != "too few"]
    real: set[int] = set()
    for passed, at in enumerate(sorted(judged, key=lambda at: rows[at].difference.p)):
        if rows[at].difference.p * (len(judged) - passed) >= _CHANCE:
            break
        real.add(at)
    return tuple(row if at in real else _unreal(row) for at, row in enumerate(map(_if_it_matters, rows)))


def _if_it_matters(row: ComparedFigure) -> ComparedFigure:
    apart = row.difference
    return row if apart.ratio > 0 and abs(log(apart.ratio)) >= log(1 + _LEAST) else _unreal(row)


def _unreal(row: ComparedFigure) -> ComparedFigure:
    if not row.difference.is_real:
        return row
    return replace(row, difference=replace(row.difference, verdict="no difference seen"))


def _chance_notes(rows: Sequence[ComparedFigure]) -> Iterator[str]:
    judged = [row for row in rows if row.difference.verdict != "too few"]
    if judged:
        figures = f"{len(judged)} figures are" if len(judged) > 1 else "1 figure is"
        yield (
            f"{figures} judged, together: a difference is one from 2 % on and where chance seldom makes it; "
            "of equal servers fewer than 5 of 100 comparisons show any. Intervals are each for itself"
        )


def _notes(first: StoredRun, second: StoredRun, is_interleaved: bool) -> Iterator[str]:
    a, b = first.run, second.run
    if not is_interleaved:
        yield (
            "measured at two times: what drifts between them (heat, clocks, neighbours) counts as a "
            "difference; `--ab` measures both in turns"
        )
    if a.subject.model != b.subject.model:
        yield "two models: a token of one is not a token of the other"
    for name in _PINNED[:3]:
        known = [getattr(each.settings, name) is not None for each in (a, b)]
        if any(known) != all(known):
            yield f"`{name}` is known of only one of them; if it differs, so does what was measured"
    if a.settings.seed != b.settings.seed:
        yield "other prompts: the seeds differ"
    hosts = [str(each.subject.host.get("title") or each.subject.host.get("name") or "") for each in (a, b)]
    if hosts[0] != hosts[1] and all(hosts):
        yield f"two machines: {hosts[0]}, {hosts[1]}"
    for note in dict.fromkeys(note for note in (*a.notes, *b.notes) if not note.startswith(TURNS)):
        whose = [each.id for each in (a, b) if note in each.notes]
        yield note if len(whose) > 1 else f"{whose[0]}: {note}"
    for kept in (first, second):
        if kept.origin != "measured here":
            yield f"{kept.run.id} is {kept.origin}, from {kept.source}"


def answers(first: StoredRun, second: StoredRun) -> AnswerComparison | None:
    """Of two runs with the same prompts (`ab.alike`); None where they cannot be the same: another seed, a
    temperature, no answers kept."""
    a, b = first.run, second.run
    if a.settings.seed != b.settings.seed or {a.settings.temperature, b.settings.temperature} != {0.0}:
        return None
    ours, theirs = _by_visit(first), _by_visit(second)
    both = [key for key in ours if key in theirs and len(ours[key]) == len(theirs[key])]
    compared = sum(len(ours[key]) for key in both)
    # Streams of one visit have no order of their own: as many as can be paired are equal.
    equal = sum((Counter(ours[key]) & Counter(theirs[key])).total() for key in both)
    return AnswerComparison(compared, equal) if compared else None


def _by_visit(kept: StoredRun) -> Mapping[tuple[Point, int], list[str]]:
    """Visits that all went right; in others nobody knows whose answer is missing."""
    found: dict[tuple[Point, int], list[RequestSample]] = defaultdict(list)
    for each in kept.samples:
        if 0 <= each.point < len(kept.run.points):
            found[kept.run.points[each.point], each.repetition].append(each)
    return {
        key: [each.text_hash for each in samples]
        for key, samples in found.items()
        if all(each.text_hash and not each.wrong for each in samples)
    }
