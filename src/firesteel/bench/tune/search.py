"""Which setting to try next. Pure: the same observations give the same answer.

    search = Search(axes, start, expected=..., is_excluded=..., max_runs=...)
    while (setting := search.ask()) is not None:
        ...                              # while measuring: search.is_beaten(values) says when to give it up
        search.tell(setting, values)     # no values: it did not start, or answered wrongly

A run is a start of an engine, which takes minutes on a Spark, so the number of runs is what matters. A
Gaussian process predicts every other setting from what was measured: settings with common choices are
similar, neighbours on a ladder (sizes, depths) most of all, and each knob adds its part in logarithms, with a
little for pairs that only help or hurt together. Its prior is what the plan expects. The next setting is the
one with the largest expected improvement, and the search ends when that is too small to start an engine for
it. Each knob is first moved by itself, away from the current setting: a change of five knobs that loses says
nothing about any of them. A choice that failed twice and never worked is not tried again.

Measured on the simulated Spark against the full grid, random search and Optuna's TPE: `benchmarks/tune.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from math import erfc, exp, fsum, inf, log, pi, prod, sqrt
from random import Random

from msgspec import Struct

from firesteel.bench.compare.stats import mean_interval
from firesteel.bench.tune.space import Setting
from firesteel.values import Value

MIN_IMPROVEMENT = 0.001
"""Expected improvement, as a share, below which no further engine is started."""
_PLAN_TRUST = 0.5
"""How much of the plan's expectation counts: its bands are wide, and it does not know most knobs."""
_SPREADS = ((0.08, 0.03), (0.15, 0.06))
"""How much a knob may matter, and a pair beyond its two knobs, as shares; the data choose between them."""
PATIENCE = 14
"""Runs without an improvement above the noise, after which the search ends."""
_LEVEL_SPREAD = 1.0
_MIN_NOISE = 0.004
"""The smallest error of a measured mean, as a share."""
_NEIGHBOUR_SIMILARITY = 0.7
"""Similarity of two neighbours on a ladder; its powers for those further apart."""
_MAX_SETTINGS = 3000
_MAX_FAILURES = 2
"""Failures of a choice that never worked, after which it is given up."""


class SearchAxis(Value):
    """A knob, as the search sees it."""

    size: int
    is_ladder: bool = False

    def similarity(self, one: int, other: int) -> float:
        if one == other:
            return 1.0
        return float(_NEIGHBOUR_SIMILARITY ** abs(one - other)) if self.is_ladder else 0.0


class Observation(Value):
    setting: Setting
    values: tuple[float, ...]
    """More is better; empty: it failed."""

    @property
    def level(self) -> float:
        """The mean of the logarithms: everything here is compared by ratio."""
        return fsum(map(log, self.values)) / len(self.values)

    @property
    def error(self) -> float:
        """Of the level."""
        n = len(self.values)
        if n < 2:
            return 5 * _MIN_NOISE
        variance = fsum((log(value) - self.level) ** 2 for value in self.values) / (n - 1)
        return max(_MIN_NOISE, sqrt(variance / n))


class Search(Struct):
    axes: Sequence[SearchAxis]
    start: Setting
    expected: Callable[[Setting], float | None] = lambda setting: None
    """What the plan expects of a setting."""
    is_excluded: Callable[[Setting], bool] = lambda setting: False
    max_runs: int = 100
    seed: int = 0
    observations: list[Observation] = []

    def ask(self) -> Setting | None:
        """The next setting; None: the search is over."""
        if len(self.observations) >= self.max_runs or self._is_stuck:
            return None
        if not self.observations:
            return self.start
        return self._most_promising() if self.best else None

    def tell(self, setting: Setting, values: Iterable[float] = ()) -> None:
        """Values of zero or less are ignored."""
        self.observations.append(Observation(setting, tuple(value for value in values if value > 0)))

    @property
    def best(self) -> Observation | None:
        return max(self._good, key=lambda observation: observation.level, default=None)

    def is_beaten(self, values: Sequence[float]) -> bool:
        """Whether the whole interval is below that of the best."""
        best = mean_interval(self.best.values) if self.best else None
        found = mean_interval(values)
        return best is not None and found is not None and found.n > 2 and found.high < best.low

    @property
    def _is_stuck(self) -> bool:
        before, since = self.observations[:-PATIENCE], self.observations[-PATIENCE:]
        earlier = max((found.level for found in before if found.values), default=inf)
        recent = max((found.level for found in since if found.values), default=-inf)
        return earlier < inf and recent < earlier + _MIN_NOISE

    @property
    def _good(self) -> list[Observation]:
        return [observation for observation in self.observations if observation.values]

    # --- the next setting ---

    def _most_promising(self) -> Setting | None:
        model = self._fit()
        highest = max(model.predict(observation.setting)[0] for observation in self._good)
        rated = [(_improvement(*model.predict(each), highest), each) for each in self._untried()]
        rated = [pair for pair in rated if pair[0] >= MIN_IMPROVEMENT]
        moved = {self._moves(observation.setting) for observation in self.observations}
        first_moves = [(knob,) for knob in range(len(self.axes)) if (knob,) not in moved]
        rated.sort(key=lambda pair: (self._moves(pair[1]) not in first_moves, -pair[0], pair[1]))
        return next((setting for _, setting in rated if not self.is_excluded(setting)), None)

    def _moves(self, setting: Setting) -> tuple[int, ...]:
        """The knobs that differ from the current setting."""
        rows = zip(setting, self.start, strict=True)
        return tuple(knob for knob, (choice, current) in enumerate(rows) if choice != current)

    def _untried(self) -> Iterator[Setting]:
        """Settings that were not tried, without choices that were given up; some of them if there are
        many."""
        tried, given_up = {observation.setting for observation in self.observations}, self._given_up()
        for setting in self._settings():
            if setting not in tried and given_up.isdisjoint(enumerate(setting)):
                yield setting

    def _settings(self) -> Iterable[Setting]:
        if prod(axis.size for axis in self.axes) <= _MAX_SETTINGS:
            return product(*(range(axis.size) for axis in self.axes))
        rng = Random(f"{self.seed}/{len(self.observations)}")
        drawn = [tuple(rng.randrange(axis.size) for axis in self.axes) for _ in range(_MAX_SETTINGS)]
        return dict.fromkeys([*self._neighbours(), *drawn])

    def _neighbours(self) -> Iterator[Setting]:
        """One knob away from the current setting, or from the best."""
        for base in (self.start, self.best.setting if self.best else self.start):
            for knob, axis in enumerate(self.axes):
                for choice in range(axis.size):
                    yield (*base[:knob], choice, *base[knob + 1 :])

    def _given_up(self) -> set[tuple[int, int]]:
        """Choices as (knob, choice)."""
        worked = {choice for found in self._good for choice in enumerate(found.setting)}
        failed = [
            choice for found in self.observations if not found.values for choice in enumerate(found.setting)
        ]
        return {choice for choice in failed if choice not in worked and failed.count(choice) >= _MAX_FAILURES}

    # --- predictions ---

    def _fit(self) -> _Prediction:
        """With the spreads under which the observations are most likely."""
        models = [_Prediction.fit(self._good, self.axes, self._prior, *spreads) for spreads in _SPREADS]
        return max(models, key=lambda model: model.likelihood)

    def _prior(self, setting: Setting) -> float:
        """The plan's expectation against that of the start, in logarithms."""
        before = self.expected(self.start)
        after = self.expected(setting) if before else None
        return _PLAN_TRUST * log(after / before) if before and after else 0.0


class _Prediction(Value):
    """A Gaussian process over settings, given the observations."""

    observations: Sequence[Observation]
    axes: Sequence[SearchAxis]
    prior: Callable[[Setting], float]
    main: float
    pair: float
    mean: float
    lower: list[list[float]]
    """The Cholesky factor of the covariance."""
    weights: list[float]
    likelihood: float

    @classmethod
    def fit(
        cls,
        observations: Sequence[Observation],
        axes: Sequence[SearchAxis],
        prior: Callable[[Setting], float],
        main: float,
        pair: float,
    ) -> _Prediction:
        levels = [observation.level - prior(observation.setting) for observation in observations]
        mean = fsum(levels) / len(levels)
        settings = [observation.setting for observation in observations]
        matrix = [[_covariance(axes, a, b, main, pair) for b in settings] for a in settings]
        for index, observation in enumerate(observations):
            matrix[index][index] += observation.error**2
        lower = _cholesky(matrix)
        half = _forward(lower, [level - mean for level in levels])
        log_determinant = fsum(log(row[index]) for index, row in enumerate(lower))
        likelihood = -0.5 * fsum(value * value for value in half) - log_determinant
        return cls(observations, axes, prior, main, pair, mean, lower, _backward(lower, half), likelihood)

    def predict(self, setting: Setting) -> tuple[float, float]:
        """The expected level, and its error."""
        row = [
            _covariance(self.axes, setting, observation.setting, self.main, self.pair)
            for observation in self.observations
        ]
        level = fsum(a * b for a, b in zip(row, self.weights, strict=True))
        explained = fsum(value * value for value in _forward(self.lower, row))
        own = _covariance(self.axes, setting, setting, self.main, self.pair)
        return self.mean + self.prior(setting) + level, sqrt(max(1e-12, own - explained))


def _covariance(axes: Sequence[SearchAxis], one: Setting, other: Setting, main: float, pair: float) -> float:
    similar = [axis.similarity(a, b) for axis, a, b in zip(axes, one, other, strict=True)]
    total = sum(similar)
    pairs = (total * total - sum(value * value for value in similar)) / 2
    return _LEVEL_SPREAD**2 + main**2 * total + pair**2 * pairs


def _improvement(level: float, error: float, highest: float) -> float:
    """The expected improvement over the highest; a worse result counts as none."""
    z = (level - highest) / error
    return error * (z * erfc(-z / sqrt(2)) / 2 + exp(-z * z / 2) / sqrt(2 * pi))


def _cholesky(matrix: Sequence[Sequence[float]]) -> list[list[float]]:
    lower: list[list[float]] = []
    for i, row in enumerate(matrix):
        values: list[float] = []
        for j in range(i):
            values.append((row[j] - sum(a * b for a, b in zip(values, lower[j], strict=False))) / lower[j][j])
        values.append(sqrt(max(1e-12, row[i] - sum(value * value for value in values))))
        lower.append(values)
    return lower


def _forward(lower: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    solved: list[float] = []
    for row, value in zip(lower, values, strict=True):
        solved.append((value - sum(a * b for a, b in zip(row, solved, strict=False))) / row[len(solved)])
    return solved


def _backward(lower: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    n = len(values)
    solved = [0.0] * n
    for i in reversed(range(n)):
        solved[i] = (values[i] - sum(lower[j][i] * solved[j] for j in range(i + 1, n))) / lower[i][i]
    return solved
