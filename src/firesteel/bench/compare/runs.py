"""Run against run: is the difference real? Pure.

Two runs are compared point by point (equal loads first, then, for imported runs, the nearest), and only if
they measured the same thing: with another thinking mode, sampling or `max_num_seqs` the result is the reason
why they cannot be compared, not a number. The observations are repetitions, in pairs if the runs were
interleaved; runs that were not must differ by more than one unchanged server does (`stats.py`).

A run stops when its intervals are narrow, and so more often when they are narrow by luck. That is why
differences under 2 % are never reported, and why all figures of a comparison are judged together (Holm) at
0.02: fewer than 5 of 100 comparisons of equal servers then show any difference. Simulated in
`tests/bench/test_equal_servers`; with repetitions that depend on the one before by half it was up to 12 of
100, and 50 before that was accounted for.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from math import log, sqrt

from firesteel.bench.compare import stats
from firesteel.bench.compare.stats import (
    FIELDS,
    PINNED,
    Measure,
    RunVariation,
    run_variation,
    variation_note,
)
from firesteel.bench.measurements import (
    BenchRun,
    MeasuredFigure,
    Point,
    PointFigures,
    RequestSample,
    StoredRun,
)
from firesteel.bench.results.figures import by_repetition, decode_tokens_per_s, prefill_tokens_per_s, ttft_ms
from firesteel.values import Value, replace

_MAX_SIZE_DIFFERENCE = 0.05
"""How far prompts and answers of another tool may differ in tokens: it may count the chat template or not,
and may let answers end early."""
IndexPair = tuple[int, int]


def match_points(first: StoredRun, second: StoredRun) -> list[IndexPair]:
    """Pairs of indices; each point is used once. The name of the shape does not matter."""
    a, b = first.run, second.run
    free: dict[Point, list[int]] = defaultdict(list)
    for index, point in enumerate(b.points):
        free[replace(point, shape="")].append(index)
    loads = [replace(point, shape="") for point in a.points]
    pairs = [(index, free[load].pop(0)) for index, load in enumerate(loads) if free[load]]
    if first.is_own and second.is_own:
        return pairs
    return sorted((*pairs, *_nearest(a, b, pairs)))


def _nearest(a: BenchRun, b: BenchRun, pairs: Sequence[IndexPair]) -> Iterator[IndexPair]:
    used, used_other = {one for one, _ in pairs}, {other for _, other in pairs}
    left = [index for index in range(len(b.points)) if index not in used_other]
    for index, point in enumerate(a.points):
        if index in used or not left:
            continue
        nearest = min(left, key=lambda other: size_difference(point, b.points[other]))
        if size_difference(point, b.points[nearest]) <= _MAX_SIZE_DIFFERENCE:
            left.remove(nearest)
            yield index, nearest


def size_difference(one: Point, other: Point) -> float:
    """The larger relative difference of prompts and answers; 2 if the loads differ in anything else."""
    same = replace(other, shape=one.shape, prompt_tokens=one.prompt_tokens, answer_tokens=one.answer_tokens)
    if same != one:
        return 2.0
    sizes = ((one.prompt_tokens, other.prompt_tokens), (one.answer_tokens, other.answer_tokens))
    return max(abs(a - b) / max(a, b, 1) for a, b in sizes)


Rate = Callable[[RequestSample], float | None]
_MAX_CACHE_DIFFERENCE = 0.1
_MIN_DIFFERENCE = 0.02
"""Smaller differences are of no use to anybody, and a run that stops early can be wrong by as much."""
_SIGNIFICANCE = 0.02
"""For all figures of a comparison together. It is not 0.05, since runs stop when they look precise."""
INTERLEAVED_WITH = "measured in turns with "
"""The note of each run of an A/B comparison, before the id of the other run."""


class ComparedFigure(Value):
    """One figure of one point in both runs. `difference` is the second against the first."""

    point: Point
    measure: Measure
    first: MeasuredFigure
    second: MeasuredFigure
    difference: stats.FigureDifference

    @property
    def unit(self) -> str:
        return "ms" if self.measure == "TTFT" else "tok/s"


class AnswerComparison(Value):
    """Answers of two servers to the same prompts at temperature 0."""

    compared: int
    equal: int

    @property
    def changed(self) -> int:
        return self.compared - self.equal


class Comparison(Value):
    first: str
    second: str
    rows: tuple[ComparedFigure, ...] = ()
    only_first: tuple[Point, ...] = ()
    only_second: tuple[Point, ...] = ()
    why_not: tuple[tuple[str, str], ...] = ()
    """(setting, both values): why the runs cannot be compared."""
    apart: tuple[str, ...] = ()
    """Differences of the launch, which may be the purpose of the comparison."""
    notes: tuple[str, ...] = ()
    answers: AnswerComparison | None = None
    is_interleaved: bool = False


def compare(
    first: StoredRun,
    second: StoredRun,
    *,
    despite: Collection[str] = (),
    is_interleaved: bool = False,
    earlier: Sequence[BenchRun] = (),
) -> Comparison:
    """The second against the first. `despite`: settings that may differ, since they are what is examined.
    `earlier`: more runs of the same launches, which show how much runs vary by themselves."""
    a, b = first.run, second.run
    why_not = tuple(pair for pair in _different_settings(first, second) if pair[0] not in despite)
    apart = tuple(_launch_differences(a, b))
    if why_not:
        return Comparison(a.id, b.id, why_not=why_not, apart=apart)
    pairs = match_points(first, second)
    sides = [(_Side(first, one), _Side(second, other)) for one, other in pairs]
    by = None if is_interleaved else _Variations(a, b, earlier)
    rows = _judge([row for one, other in sides for row in _rows(one, other, by)])
    return Comparison(
        a.id,
        b.id,
        rows,
        tuple(point for index, point in enumerate(a.points) if index not in {one for one, _ in pairs}),
        tuple(point for index, point in enumerate(b.points) if index not in {other for _, other in pairs}),
        apart=apart,
        notes=(
            *_significance_notes(rows),
            *([variation_note(by.found)] if by and by.found else []),
            *_size_notes(a, b, pairs),
            *([_CACHED_DIFFERENTLY] if any(_is_cached_differently(*pair) for pair in sides) else []),
            *_notes(first, second),
        ),
        answers=answers(first, second) if is_interleaved else None,
        is_interleaved=is_interleaved,
    )


def were_interleaved(first: StoredRun, second: StoredRun) -> bool:
    a, b = first.run, second.run
    return f"{INTERLEAVED_WITH}{b.id}" in a.notes and f"{INTERLEAVED_WITH}{a.id}" in b.notes


def _different_settings(first: StoredRun, second: StoredRun) -> Iterator[tuple[str, str]]:
    """Settings that are known for both runs and differ. An imported file does not say whether answers were
    cut short."""
    for name in PINNED:
        one, other = (getattr(stored.run.settings, name) for stored in (first, second))
        if name in ("thinking", "ignores_eos"):
            is_known = first.is_own and second.is_own
        else:
            is_known = None not in (one, other)
        if is_known and one != other:
            yield name, f"{_setting_text(one)} and {_setting_text(other)}"


def _setting_text(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None:
        return "the model's default"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _launch_differences(a: BenchRun, b: BenchRun) -> Iterator[str]:
    for name in ("model", "engine", "version", "image_digest"):
        one, other = getattr(a.subject, name), getattr(b.subject, name)
        if one != other:
            yield f"{name.replace('_', ' ')}: {one or 'unknown'}, {other or 'unknown'}"
    launches = (run.subject.launch.get("flags") for run in (a, b))
    ours, theirs = (flags if isinstance(flags, Mapping) else {} for flags in launches)
    for name in sorted(ours.keys() | theirs.keys()):
        values = [ours.get(name), theirs.get(name)]
        if values[0] != values[1]:
            one, other = ("not set" if value is None else str(value)[:80] for value in values)
            yield f"{name}: {one}, {other}"


# --- one figure of one point ---


class _Side(Value):
    """One point of one run."""

    stored: StoredRun
    index: int

    @property
    def point(self) -> Point:
        return self.stored.run.points[self.index]

    @property
    def figures(self) -> PointFigures | None:
        return next((found for found in self.stored.run.figures if found.point == self.point), None)

    def by_repetition(self, rate: Rate) -> dict[int, float]:
        """The value of each warm repetition, computed as for the figures."""
        samples = [sample for sample in self.stored.samples if sample.point == self.index]
        values = {
            number: found.decode_tokens_per_s() if rate is decode_tokens_per_s else found.mean(rate)
            for number, found in by_repetition(self.point, samples).items()
        }
        return {number: value for number, value in values.items() if value is not None}


class _Variations(Value):
    """How much runs vary by themselves, for each figure that is compared."""

    first: BenchRun
    second: BenchRun
    earlier: Sequence[BenchRun]
    found: dict[Measure, RunVariation] = {}

    def of(self, point: Point, measure: Measure) -> RunVariation:
        variation = run_variation(point, measure, self.first, self.second, self.earlier)
        known = self.found.get(measure)
        if known is None or variation.spread > known.spread:
            self.found[measure] = variation
        return variation


def _rows(first: _Side, second: _Side, by: _Variations | None) -> Iterator[ComparedFigure]:
    """`by`: None if the two were measured in turns, so that whatever varies affects both alike."""
    rates: dict[Measure, Rate] = {"decode": decode_tokens_per_s}
    if not _is_cached_differently(first, second):
        rates["TTFT"] = ttft_ms
        if first.point.users == 1 and not first.point.shared_tokens:
            rates["prefill"] = prefill_tokens_per_s
    for measure, rate in rates.items():
        if first.stored.samples and second.stored.samples:
            row = _from_samples(first, second, measure, rate, by)
        else:
            row = _from_figures(first, second, measure, by)
        if row:
            yield row
    if total := _from_figures(first, second, "total", by):
        yield total


def _is_cached_differently(first: _Side, second: _Side) -> bool:
    """If one had more of its prompts cached, its TTFT says nothing about how fast it reads."""
    shares = [side.figures.cached_share for side in (first, second) if side.figures]
    known = [share for share in shares if share is not None]
    return len(known) == 2 and abs(known[0] - known[1]) > _MAX_CACHE_DIFFERENCE


def _from_samples(
    first: _Side, second: _Side, measure: Measure, rate: Rate, by: _Variations | None
) -> ComparedFigure | None:
    ours, theirs = first.by_repetition(rate), second.by_repetition(rate)
    if by is None:
        common = sorted(ours.keys() & theirs.keys())
        a, b = [ours[number] for number in common], [theirs[number] for number in common]
    else:
        a, b = list(ours.values()), list(theirs.values())
    one, other = stats.mean_interval(a), stats.mean_interval(b)
    if one is None or other is None:
        return None
    variation = by.of(first.point, measure) if by else None
    difference = stats.compare_values(b, a, paired=by is None, is_time=measure == "TTFT", variation=variation)
    return ComparedFigure(first.point, measure, one, other, difference)


def _from_figures(
    first: _Side, second: _Side, measure: Measure, by: _Variations | None
) -> ComparedFigure | None:
    """From means and intervals, for runs without samples."""
    one, other = (getattr(side.figures, FIELDS[measure], None) for side in (first, second))
    if one is None or other is None:
        return None
    variation = by.of(first.point, measure) if by else None
    difference = compare_figures(other, one, is_time=measure == "TTFT", variation=variation)
    return ComparedFigure(first.point, measure, one, other, difference)


def compare_figures(
    a: MeasuredFigure, b: MeasuredFigure, *, is_time: bool = False, variation: RunVariation | None = None
) -> stats.FigureDifference:
    """`stats.compare_values` from means, their 95 % intervals, and the number of values."""
    n = min(a.n, b.n)
    if n < 3 or a.value <= 0 or b.value <= 0:
        return stats.FigureDifference(a.value / b.value if b.value else 0.0, 0.0, 0.0, 1.0, "too few", n)
    va, vb = (
        ((found.high - found.value) / stats.student_quantile(0.975, found.n - 1) / found.value) ** 2
        for found in (a, b)
    )
    squared_error, freedom = va + vb, stats.satterthwaite(va, a.n, vb, b.n)
    if variation:
        squared_error, freedom = variation.widen(squared_error, freedom)
    return stats.log_difference(log(a.value / b.value), sqrt(squared_error), freedom, n, is_time=is_time)


def _judge(rows: Sequence[ComparedFigure]) -> tuple[ComparedFigure, ...]:
    """Holm's method: the most significant figure must pass for all of them, the next for all but one, and so
    on until one fails. Small differences are discarded afterwards."""
    judged = [index for index, row in enumerate(rows) if row.difference.verdict != "too few"]
    significant: set[int] = set()
    for passed, index in enumerate(sorted(judged, key=lambda index: rows[index].difference.p)):
        if rows[index].difference.p * (len(judged) - passed) >= _SIGNIFICANCE:
            break
        significant.add(index)
    return tuple(
        row if index in significant and _is_large(row.difference) else _without_difference(row)
        for index, row in enumerate(rows)
    )


def _is_large(difference: stats.FigureDifference) -> bool:
    return difference.ratio > 0 and abs(log(difference.ratio)) >= log(1 + _MIN_DIFFERENCE)


def _without_difference(row: ComparedFigure) -> ComparedFigure:
    if not row.difference.is_real:
        return row
    return replace(row, difference=replace(row.difference, verdict="no difference seen"))


# --- notes ---

_CACHED_DIFFERENTLY = (
    "one had more of its prompts in its cache than the other: TTFT and prefill are not compared"
)


def _significance_notes(rows: Sequence[ComparedFigure]) -> Iterator[str]:
    judged = [row for row in rows if row.difference.verdict != "too few"]
    if judged:
        figures = f"{len(judged)} figures are" if len(judged) > 1 else "1 figure is"
        yield (
            f"{figures} judged together: differences under 2 % are never reported, and fewer than 5 of 100 "
            "comparisons of equal servers show any. Intervals are for each figure by itself"
        )


def _size_notes(a: BenchRun, b: BenchRun, pairs: Sequence[IndexPair]) -> Iterator[str]:
    for index, other_index in pairs:
        one, other = a.points[index], b.points[other_index]
        if size_difference(one, other) > 0:
            here, there = (f"{point.depth:,} + {point.answer_tokens} tokens" for point in (one, other))
            yield f"{here} are compared with {there}: TTFT may differ as much for that reason alone"


def _notes(first: StoredRun, second: StoredRun) -> Iterator[str]:
    a, b = first.run, second.run
    if a.subject.model != b.subject.model:
        yield "two models: a token of one is not a token of the other"
    for name in PINNED[:3]:
        known = [getattr(run.settings, name) is not None for run in (a, b)]
        if any(known) != all(known):
            yield f"`{name}` is known for only one of them; if it differs, so does what was measured"
    if a.settings.seed != b.settings.seed:
        yield "different prompts: the seeds differ"
    hosts = [str(run.subject.host.get("title") or run.subject.host.get("name") or "") for run in (a, b)]
    if hosts[0] != hosts[1] and all(hosts):
        yield f"two machines: {hosts[0]}, {hosts[1]}"
    for note in dict.fromkeys(note for note in (*a.notes, *b.notes) if not note.startswith(INTERLEAVED_WITH)):
        owners = [run.id for run in (a, b) if note in run.notes]
        yield note if len(owners) > 1 else f"{owners[0]}: {note}"
    for stored in (first, second):
        if not stored.is_own:
            yield f"{stored.run.id} is {stored.origin}, from {stored.source}"


# --- answers ---


def answers(first: StoredRun, second: StoredRun) -> AnswerComparison | None:
    """For two runs with the same prompts (`servers.interleave`); None if answers cannot be equal: another
    seed, a temperature, no answers stored."""
    a, b = first.run, second.run
    if a.settings.seed != b.settings.seed or {a.settings.temperature, b.settings.temperature} != {0.0}:
        return None
    ours, theirs = _answer_hashes(first), _answer_hashes(second)
    common = [key for key in ours if key in theirs and len(ours[key]) == len(theirs[key])]
    compared = sum(len(ours[key]) for key in common)
    # Streams of one repetition have no order: as many as can be paired are equal.
    equal = sum((Counter(ours[key]) & Counter(theirs[key])).total() for key in common)
    return AnswerComparison(compared, equal) if compared else None


def _answer_hashes(stored: StoredRun) -> Mapping[tuple[Point, int], list[str]]:
    """By point and repetition. Those with a failure are left out: it is unknown whose answer is missing."""
    found: dict[tuple[Point, int], list[RequestSample]] = defaultdict(list)
    for sample in stored.samples:
        if 0 <= sample.point < len(stored.run.points):
            found[stored.run.points[sample.point], sample.repetition].append(sample)
    return {
        key: [sample.text_hash for sample in samples]
        for key, samples in found.items()
        if all(sample.text_hash and not sample.wrong for sample in samples)
    }
