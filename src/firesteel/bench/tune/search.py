"""Which setting to try next. Pure: asked for a setting, told what it came to, the same answers each time.

    search = Search(knobs, start, worth=..., barred=..., most=...)
    while (setting := search.ask()) is not None:
        ...                              # while measuring: search.is_beaten(values) says when to give it up
        search.tell(setting, values)     # no values: it did not come up, or was wrong

A run is a start of an engine, which on a Spark takes minutes, so runs are what is saved. From what was
measured a Gaussian process tells what to expect of every other setting: settings with choices in common are
alike, steps of a ladder (sizes, depths) most of all, and each knob adds its part in logarithms, with a
little for pairs that only help or hurt together. It begins with what the plan expects. Tried next is the
setting from which most improvement may be expected, and it ends where that is too little to start an engine
for. A choice that twice did not come up, and never did, is not tried again.

Measured on the pretend Spark against the full grid, random search and Optuna's TPE: `benchmarks/tune.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from math import erfc, exp, fsum, inf, log, pi, sqrt
from random import Random

from firesteel.bench.compare.stats import mean_interval
from firesteel.bench.tune.space import Setting

WORTH_A_RUN = 0.001
"""Improvement to expect, as a share, below which no further engine is started."""
_TRUST = 0.5
"""How much of what the plan expects counts: its bands are wide, and most knobs it does not know."""
_SPREADS = ((0.08, 0.03), (0.15, 0.06))
"""How much a knob may matter, and a pair beyond its two, as shares; what was measured chooses among them."""
PATIENCE = 14
"""Runs without one that is better by more than noise, after which it ends."""
_LEVEL = 1.0
_NOISE = 0.004
"""The least error of a measured mean, as a share."""
_STEP = 0.7
"""How alike two neighbours on a ladder are; further ones by its powers."""
_MOST_SETTINGS = 3000
_GIVEN_UP = 2
"""Failures of a choice that never came up, after which it is left alone."""


@dataclass(frozen=True, slots=True)
class SearchAxis:
    """A knob, as the search sees it."""

    size: int
    is_ladder: bool = False

    def alike(self, one: int, other: int) -> float:
        if one == other:
            return 1.0
        return float(_STEP ** abs(one - other)) if self.is_ladder else 0.0


@dataclass(frozen=True, slots=True)
class Observation:
    setting: Setting
    values: tuple[float, ...]
    """More is better; empty: it failed."""

    @property
    def level(self) -> float:
        """The mean in logarithms: everything here is compared by ratio."""
        return fsum(map(log, self.values)) / len(self.values)

    @property
    def error(self) -> float:
        """Of the level."""
        n = len(self.values)
        if n < 2:
            return 5 * _NOISE
        apart = fsum((log(each) - self.level) ** 2 for each in self.values) / (n - 1)
        return max(_NOISE, sqrt(apart / n))


def _unknown(setting: Setting) -> float | None:
    return None


def _free(setting: Setting) -> bool:
    return False


@dataclass(slots=True)
class Search:
    axes: Sequence[SearchAxis]
    start: Setting
    worth: Callable[[Setting], float | None] = _unknown
    """What the plan expects of it."""
    barred: Callable[[Setting], bool] = _free
    most: int = 100
    """Runs in all."""
    seed: int = 0
    told: list[Observation] = field(default_factory=list)

    def ask(self) -> Setting | None:
        """None: it is over."""
        if len(self.told) >= self.most or self._is_stuck:
            return None
        if not self.told:
            return self.start
        return self._most_promising() if self.best else None

    def tell(self, setting: Setting, values: Iterable[float] = ()) -> None:
        """Values that are not above nothing are none."""
        self.told.append(Observation(setting, tuple(each for each in values if each > 0)))

    @property
    def best(self) -> Observation | None:
        return max(self._good, key=lambda each: each.level, default=None)

    def is_beaten(self, values: Sequence[float]) -> bool:
        """All of its interval is below all of the best's."""
        best = mean_interval(self.best.values) if self.best else None
        found = mean_interval(values)
        return best is not None and found is not None and found.n > 2 and found.high < best.low

    @property
    def _is_stuck(self) -> bool:
        before = [each.level for each in self.told[:-PATIENCE] if each.values]
        since = [each.level for each in self.told[-PATIENCE:] if each.values]
        return bool(before) and max(since, default=-inf) < max(before) + _NOISE

    @property
    def _good(self) -> list[Observation]:
        return [each for each in self.told if each.values]

    # --- what next ---

    def _most_promising(self) -> Setting | None:
        expects = self._fitted()
        highest = max(expects.at(each.setting)[0] for each in self._good)
        rated = [(_improvement(*expects.at(each), highest), each) for each in self._open()]
        rated = [pair for pair in rated if pair[0] >= WORTH_A_RUN]
        rated.sort(key=lambda pair: (-pair[0], pair[1]))
        return next((setting for _, setting in rated if not self.barred(setting)), None)

    def _open(self) -> Iterator[Setting]:
        """Every setting that was not tried and has no choice that was given up; of very many, some."""
        tried, lost = {each.setting for each in self.told}, self._given_up()
        for setting in self._settings():
            if setting not in tried and not any((k, to) in lost for k, to in enumerate(setting)):
                yield setting

    def _settings(self) -> Iterable[Setting]:
        every = product(*(range(axis.size) for axis in self.axes))
        many = 1
        for axis in self.axes:
            many *= axis.size
        if many <= _MOST_SETTINGS:
            return every
        lots = Random(f"{self.seed}/{len(self.told)}")
        drawn = (tuple(lots.randrange(axis.size) for axis in self.axes) for _ in range(_MOST_SETTINGS))
        return dict.fromkeys([*self._near(), *islice(drawn, _MOST_SETTINGS)])

    def _near(self) -> Iterator[Setting]:
        """One knob away from the best."""
        best = self.best.setting if self.best else self.start
        for knob, axis in enumerate(self.axes):
            for to in range(axis.size):
                yield (*best[:knob], to, *best[knob + 1 :])

    def _given_up(self) -> set[tuple[int, int]]:
        came_up = {(k, to) for each in self._good for k, to in enumerate(each.setting)}
        failed = [(k, to) for each in self.told if not each.values for k, to in enumerate(each.setting)]
        return {choice for choice in failed if choice not in came_up and failed.count(choice) >= _GIVEN_UP}

    # --- what to expect ---

    def _fitted(self) -> _Expects:
        """With the spreads under which what was measured is likeliest."""
        every = [_Expects.of(self._good, self.axes, self._prior, main, pair) for main, pair in _SPREADS]
        return max(every, key=lambda each: each.likelihood)

    def _prior(self, setting: Setting) -> float:
        """What the plan makes of it against the start, in logarithms."""
        before = self.worth(self.start)
        after = self.worth(setting) if before else None
        return _TRUST * log(after / before) if before and after else 0.0


@dataclass(frozen=True, slots=True)
class _Expects:
    """A Gaussian process over settings, given what was told."""

    told: Sequence[Observation]
    axes: Sequence[SearchAxis]
    prior: Callable[[Setting], float]
    main: float
    pair: float
    middle: float
    lower: list[list[float]]
    """Cholesky's factor of the covariance."""
    weights: list[float]
    likelihood: float

    @classmethod
    def of(
        cls, told: Sequence[Observation], axes: Sequence[SearchAxis], prior: Callable[[Setting], float],
        main: float, pair: float,
    ) -> _Expects:  # fmt: skip
        plain = [each.level - prior(each.setting) for each in told]
        middle = fsum(plain) / len(plain)
        off = [each - middle for each in plain]
        matrix = [[_covariance(axes, a.setting, b.setting, main, pair) for b in told] for a in told]
        for at, each in enumerate(told):
            matrix[at][at] += each.error**2
        lower = _cholesky(matrix)
        half = _forward(lower, off)
        likelihood = -0.5 * fsum(each * each for each in half) - fsum(
            log(row[at]) for at, row in enumerate(lower)
        )
        return cls(told, axes, prior, main, pair, middle, lower, _backward(lower, half), likelihood)

    def at(self, setting: Setting) -> tuple[float, float]:
        """What to expect, and how far it may be off."""
        with_told = [
            _covariance(self.axes, setting, each.setting, self.main, self.pair) for each in self.told
        ]
        level = fsum(a * b for a, b in zip(with_told, self.weights, strict=True))
        known = fsum(each * each for each in _forward(self.lower, with_told))
        own = _covariance(self.axes, setting, setting, self.main, self.pair)
        return self.middle + self.prior(setting) + level, sqrt(max(1e-12, own - known))


def _covariance(axes: Sequence[SearchAxis], one: Setting, other: Setting, main: float, pair: float) -> float:
    alike = [axis.alike(a, b) for axis, a, b in zip(axes, one, other, strict=True)]
    total = sum(alike)
    pairs = (total * total - sum(each * each for each in alike)) / 2
    return _LEVEL**2 + main**2 * total + pair**2 * pairs


def _improvement(level: float, error: float, highest: float) -> float:
    """How much better than the highest it will be, on average, counting worse as nothing."""
    z = (level - highest) / error
    return error * (z * erfc(-z / sqrt(2)) / 2 + exp(-z * z / 2) / sqrt(2 * pi))


def _cholesky(matrix: Sequence[Sequence[float]]) -> list[list[float]]:
    lower: list[list[float]] = []
    for i, row in enumerate(matrix):
        made: list[float] = []
        for j in range(i):
            made.append((row[j] - sum(a * b for a, b in zip(made, lower[j], strict=False))) / lower[j][j])
        made.append(sqrt(max(1e-12, row[i] - sum(each * each for each in made))))
        lower.append(made)
    return lower


def _forward(lower: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    found: list[float] = []
    for row, value in zip(lower, values, strict=True):
        found.append((value - sum(a * b for a, b in zip(row, found, strict=False))) / row[len(found)])
    return found


def _backward(lower: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    n = len(values)
    found = [0.0] * n
    for i in reversed(range(n)):
        found[i] = (values[i] - sum(lower[j][i] * found[j] for j in range(i + 1, n))) / lower[i][i]
    return found
