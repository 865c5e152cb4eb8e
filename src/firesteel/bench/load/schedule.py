"""Which points to measure, from load shapes (`data/bench/shapes.yaml`) and options, and which one next. Pure.

The first repetitions, which do not count, begin with the lightest load. Later rounds over the points are
shuffled by the seed, so that drift (clocks, heat, neighbours) affects all points alike. A point is done when
its intervals are narrow enough, which is first checked after six repetitions: after three, they may be narrow
by chance. A point that yields nothing but wrong samples is given up. All points get equally many repetitions.

No repetition begins that would probably end after the budget. Points of which not one repetition that counts
fits into the rest of it are not measured, the heaviest first; of the shape `quick`, other kinds of text than
its first already give way until every other point has three. Notes of the run name both, and the budget that
would do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import product
from math import ceil
from typing import Annotated

from msgspec import Meta, Struct, field

from firesteel import shipped_data
from firesteel.bench.load.repetition import is_closed_loop
from firesteel.bench.measurements import Point
from firesteel.errors import UsageError
from firesteel.launch import Text
from firesteel.units import show_seconds
from firesteel.values import FileValue, Value, replace

MAX_POINTS = 200
MAX_USERS = 1024
MAX_TOKENS = 2**21
MAX_RATE = 1000.0
OPEN_USERS = 512
"""Requests open at once in an open loop: all of one repetition, so that an overload queues at the server."""
_TEMPLATE_TOKENS = 64
"""Tokens that a chat template may add to each turn."""

_Count = Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
_Users = Annotated[int, Meta(ge=1, le=MAX_USERS)]
_Rate = Annotated[float, Meta(ge=1e-9, le=MAX_RATE)]


class Shape(FileValue, kw_only=True):
    about: str
    users: list[_Users]
    prompt: list[_Count]
    answer: _Count
    shared: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] = 0
    turns: Annotated[int, Meta(ge=1, le=64)] = 1
    rates: list[_Rate] = []
    texts: list[Text] = field(default_factory=lambda: ["prose"])


class Sizes(Value):
    """Sizes that replace those of a shape; empty: the shape's own."""

    users: tuple[int, ...] = ()
    depths: tuple[int, ...] = ()
    texts: tuple[Text, ...] = ()
    rates: tuple[float, ...] = ()
    answer: int | None = None


@cache
def shapes() -> Mapping[str, Shape]:
    return shipped_data.load("bench/shapes.yaml", dict[str, Shape])


def points(names: Iterable[str], sizes: Sizes | None = None) -> tuple[Point, ...]:
    """All points of these shapes, once each, in the order of the names.

    Rates apply to open-loop shapes if any of these is one; otherwise they turn every shape into an open loop.
    """
    sizes = sizes or Sizes()
    _check(sizes)
    chosen: dict[str, Shape] = {}
    for name in names:
        if name not in shapes():
            raise UsageError(f"no load shape is called `{name[:40]}`", next=f"one of {', '.join(shapes())}")
        chosen[name] = shapes()[name]
    has_open = any(shape.rates for shape in chosen.values())
    found: dict[Point, None] = {}
    for name, shape in chosen.items():
        own_sizes = replace(sizes, rates=()) if has_open and not shape.rates else sizes
        found |= dict.fromkeys(_points(name, shape, own_sizes))
    if not found or len(found) > MAX_POINTS:
        raise UsageError(f"{len(found)} points; 1 to {MAX_POINTS} can be measured", next="name fewer sizes")
    return tuple(found)


def _points(name: str, shape: Shape, sizes: Sizes) -> Iterable[Point]:
    depths = sizes.depths or [shape.shared + prompt for prompt in shape.prompt]
    rates: Iterable[float | None] = sizes.rates or shape.rates or (None,)
    texts, answer = sizes.texts or shape.texts, sizes.answer or shape.answer
    for users, depth, text, rate in product(sizes.users or shape.users, depths, texts, rates):
        most = users if rate is None else max(OPEN_USERS, *shape.users)
        # A shared prefix takes what the new tokens leave; without a prefix, all tokens are new.
        new = min(shape.prompt[0], max(1, depth // 2)) if shape.shared else depth
        yield Point(name, text, most, new, answer, depth - new, shape.turns, rate)


def _check(sizes: Sizes) -> None:
    for what, most, values in (
        ("users", MAX_USERS, sizes.users),
        ("tokens of depth", MAX_TOKENS, sizes.depths),
        ("tokens of an answer", MAX_TOKENS, (sizes.answer,) if sizes.answer is not None else ()),
    ):
        wrong = next((value for value in values if not 1 <= value <= most), None)
        if wrong is not None:
            raise UsageError(f"{wrong:,} {what}: write 1 to {most:,}", next="firesteel bench --help")
    if any(not 0 < rate <= MAX_RATE for rate in sizes.rates):
        raise UsageError("a rate must be above 0 and at most 1000 requests per second", next="--rate 0.5,2")


def needed_context(point: Point) -> int:
    """Context tokens that the last request of a conversation needs, including its answer."""
    return point.shared_tokens + point.turns * (point.prompt_tokens + point.answer_tokens + _TEMPLATE_TOKENS)


def fit_context(points: Iterable[Point], context: int | None) -> tuple[tuple[Point, ...], tuple[str, ...]]:
    """The points that fit the context, and a note about those that do not."""
    all_points = tuple(points)
    fitting = tuple(p for p in all_points if context is None or needed_context(p) <= context)
    too_long = sorted({needed_context(point) for point in all_points if point not in fitting})
    if not too_long:
        return fitting, ()
    needed = ", ".join(f"{tokens:,}" for tokens in too_long)
    return fitting, (f"left out: points that need {needed} tokens of context, where {context:,} are served",)


# --- which point is next ---

_MAX_FAILURES = 2
"""Repetitions in a row without a good sample, after which a point is given up."""
_OPTIONAL_SHAPE = "quick"
"""The shape that runs by default: the user did not choose its kinds of text, so some may be left out."""
ENOUGH = 3
"""Warm repetitions of every other point before a point that may be left out is begun in a short budget."""
OVERTIME = 0.05
"""How far beyond the budget, as a share of it, a repetition that has begun may go; then it is cut off."""
_PREFILL_SHARE = 0.1
"""What reading a token costs beside writing one, where only another size has been measured."""
_ROUNDS = (3, 2)
"""Answers of each user in a closed loop: usually, and where the budget is short."""


def describe_users(point: Point) -> str:
    return f"{point.text} with {point.users} user{'s' if point.users > 1 else ''}"


class RunLimits(Value):
    budget_s: float = 120.0
    precision: float = 0.02
    """Half the width of an interval, as a share of its figure."""
    least_repetitions: int = 3
    most_repetitions: int = 100
    precision_from: int = 6
    """Warm repetitions after which the precision is checked."""


class Schedule(Struct):
    points: Sequence[Point]
    limits: RunLimits
    seed: int
    is_precise: Callable[[int], bool]
    """Whether the intervals of a point are narrow enough."""
    repetitions: list[int]
    """By point, how many there were, including the cold one and those of a run that is resumed."""
    dropped: set[int] = set()
    """Other kinds of text that give way to the rest."""
    spent_s: float = 0.0
    _too_long: set[int] = set()
    """Points of which no repetition that counts fits into what is left."""
    _durations_s: dict[int, list[float]] = {}
    """By point, including prompts and counting; the first is the cold repetition."""
    _failures: dict[int, int] = {}
    """By point, repetitions in a row without a good sample."""
    _rounds: dict[int, int] = {}
    _rounds_started: int = 0
    _queue: list[int] = []

    @property
    def left_s(self) -> float:
        return max(0.0, self.limits.budget_s - self.spent_s)

    def next(self, spent_s: float) -> int | None:
        """The index of a point; None: all are precise, or no repetition fits into what is left."""
        self.spent_s = spent_s
        self._drop_points()
        while self.left_s > 0 and (self._queue or self._start_round()):
            index = self._queue.pop()
            if index not in self.dropped | self._too_long and self._next_s(index) <= self.left_s:
                return index
        return None

    def record(self, index: int, duration_s: float, *, has_good_sample: bool) -> None:
        self.repetitions[index] += 1
        self._durations_s.setdefault(index, []).append(duration_s)
        self._failures[index] = 0 if has_good_sample else self._failures.get(index, 0) + 1

    def given_up(self) -> list[int]:
        return [index for index, count in self._failures.items() if count >= _MAX_FAILURES]

    def is_missing(self, index: int) -> bool:
        """Never measured warm, although it was neither left out nor given up."""
        return index not in self.dropped and self.repetitions[index] < 2 and index not in self.given_up()

    def missing_note(self) -> str:
        """The points for which the budget was too short; empty: none."""
        missing = [self.points[index] for index in range(len(self.points)) if self.is_missing(index)]
        names = ", ".join(map(describe_users, missing))
        more = f"{self.why_missing}; about --budget {budget_text(self.wanted_s)} would do"
        return f"not measured: {names}. {more}" if missing else ""

    @property
    def why_missing(self) -> str:
        if not self._durations_s:
            return f"Not one repetition ended in {show_seconds(self.spent_s)}"
        longest_s = max(took[0] for took in self._durations_s.values())
        return f"The first repetition of a load does not count, and took {show_seconds(longest_s)}"

    @property
    def wanted_s(self) -> float:
        """For a few repetitions of all points."""
        kept = (index for index in range(len(self.points)) if not self._may_be_dropped(index))
        wanted_s = self.spent_s + sum(self._needed_s(index, ENOUGH) for index in kept)
        return wanted_s if self._durations_s else 5 * self.spent_s

    def rounds(self, index: int) -> int:
        """Answers of each user of a closed loop; equal for all warm repetitions of a point."""
        usual, few = _ROUNDS
        if index not in self._durations_s:
            return usual
        needed_s = ENOUGH * (usual + 1) * self._cold_s(index) * len(self.points)
        return self._rounds.setdefault(index, usual if needed_s <= self.left_s else few)

    def _start_round(self) -> bool:
        """All that are unfinished and fit; but none gets further ahead of one that does not."""
        unfinished = [index for index in range(len(self.points)) if self._is_unfinished(index)]
        fewest = min((self.repetitions[index] for index in unfinished), default=0)
        fits = [
            index
            for index in unfinished
            if self._next_s(index) <= self.left_s and self.repetitions[index] <= fewest
        ]
        random.Random(f"{self.seed}/{self._rounds_started}").shuffle(fits)
        if not self._rounds_started:
            fits.sort(key=self._priority, reverse=True)  # the queue is read from its end
        self._rounds_started += bool(fits)
        self._queue = fits
        return bool(fits)

    def _is_unfinished(self, index: int) -> bool:
        repetitions, limits = self.repetitions[index], self.limits
        if index in self.dropped | self._too_long or index in self.given_up():
            return False
        is_early = repetitions <= max(limits.least_repetitions, limits.precision_from)
        return repetitions <= limits.most_repetitions and (is_early or not self.is_precise(index))

    # --- what the budget does not allow ---

    def _may_be_dropped(self, index: int) -> bool:
        point = self.points[index]
        return point.shape == _OPTIONAL_SHAPE and point.text != self.points[0].text

    def _priority(self, index: int) -> tuple[bool, int, float, int]:
        """Ascending: those that may be dropped come last, and then heavier loads."""
        point = self.points[index]
        return self._may_be_dropped(index), point.users, _work(point), index

    def _drop_points(self) -> None:
        """Decided again each time: if the others took less time than expected, a point returns."""
        self.dropped, self._too_long = set(), set()
        if not any(self.repetitions):
            return
        indices = sorted(range(len(self.points)), key=self._priority)
        extras = [index for index in indices if self._may_be_dropped(index) and self.repetitions[index] < 2]
        kept = [index for index in indices if index not in extras]
        left_s = self.left_s
        for index in kept:
            needed_s = self._needed_s(index, 1)
            if needed_s <= left_s:
                left_s -= needed_s
            else:
                self._too_long.add(index)
        left_s = self.left_s - sum(self._needed_s(index, ENOUGH) for index in kept)
        for index in extras:
            left_s -= self._needed_s(index, 1)
            if left_s < 0:
                self.dropped.add(index)

    def _needed_s(self, index: int, repetitions: int) -> float:
        """For this many warm repetitions in total."""
        if index in self.given_up():
            return 0.0
        missing = max(0, repetitions - max(0, self.repetitions[index] - 1))
        cold_s = 0.0 if self.repetitions[index] else self._cold_s(index)
        return cold_s + missing * self._warm_s(index)

    def _next_s(self, index: int) -> float:
        """Of its next repetition."""
        return self._warm_s(index) if self.repetitions[index] else self._cold_s(index)

    def _cold_s(self, index: int) -> float:
        """Its own duration; or that of the most similar point, in proportion: several users take longer than
        one. 0: nothing was measured."""
        if index in self._durations_s:
            return self._durations_s[index][0]
        point, known = self.points[index], self._durations_s

        def distance(other: int) -> tuple[int, float]:
            it = self.points[other]
            return abs(it.users - point.users), abs(_work(it) - _work(point))

        if not known:
            return 0.0
        nearest = min(known, key=distance)
        return known[nearest][0] * _work(point) / _work(self.points[nearest])

    def _warm_s(self, index: int) -> float:
        warm = self._durations_s.get(index, [])[1:]
        if warm:
            return sum(warm) / len(warm)
        return self._cold_s(index) * (min(_ROUNDS) + 1 if is_closed_loop(self.points[index]) else 1)


def _work(point: Point) -> float:
    """Tokens of one user's conversation, those to be read counting less."""
    return point.turns * (point.answer_tokens + _PREFILL_SHARE * point.depth)


def budget_text(seconds: float) -> str:
    """At least so long: `90s`, `3m`."""
    return f"{ceil(seconds / 60)}m" if seconds > 120 else f"{10 * ceil(seconds / 10)}s"
