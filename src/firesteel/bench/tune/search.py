"""All settings that `tune` may try for a launch, and which one to try next.

A `Setting` is one choice for each knob; `SearchSpace` plans it, and says why it is never tried. A run is a
start of an engine, which takes minutes on a Spark, so the number of runs is what matters. A Gaussian process
predicts every other setting from what was measured; its prior is what the plan expects. `Search` asks for
the setting with the largest expected improvement, and ends when that is too small to start an engine for it.
Pure: the same observations give the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import erfc, exp, fsum, inf, log, pi, prod, sqrt
from random import Random

from msgspec import Struct

from firesteel.bench.compare.against import PLANNER_TEXTS
from firesteel.bench.compare.stats import mean_interval
from firesteel.bench.tune.knobs import AS_IT_IS, Goal, Knob, knobs_of
from firesteel.catalog.image import Images
from firesteel.catalog.launches import with_flags
from firesteel.catalog.recipe import Recipe
from firesteel.engines.kv_cache import PLANNED_FLAGS
from firesteel.errors import FiresteelError, UsageError
from firesteel.facts.host.memory import MeasuredMemory
from firesteel.launch import FlagValue, Text
from firesteel.planner.advice import require_runnable
from firesteel.planner.memory.measured import launch_key
from firesteel.planner.plan import plan
from firesteel.planner.propose import Proposal
from firesteel.rules.checker import check
from firesteel.values import Value, replace


class PlanningContext(Value):
    """What a plan needs besides the launch. Not the user's own measurements: they cover a few settings only,
    and a measured figure among estimates would decide the ranking."""

    images: Images
    realised: Mapping[str, MeasuredMemory] = {}
    recipes: tuple[Recipe, ...] = ()
    """All known recipes; another one of the same model may show how to draft."""


def propose(
    base: Proposal, changed: Mapping[str, FlagValue | None], context: PlanningContext
) -> Proposal | str:
    """The proposal with these flags, or the reason why there is none."""
    was, own_flags = base.plan, base.recipe.flags if base.recipe else {}
    flags = {
        name: value
        for name, value in was.launch.flags.items()
        if name not in changed and (name not in PLANNED_FLAGS or name in own_flags)
    }
    flags |= {name: value for name, value in changed.items() if value is not None}
    launch = with_flags(was.launch, flags)
    try:
        memory = context.realised.get(launch_key(launch))
        planned = plan(launch, was.shape, was.weights, was.host, memory)
        findings = check(planned.launch, hardware=was.host.hardware, images=context.images)
        proposal = replace(base, plan=planned, findings=findings)
        require_runnable(proposal)
    except FiresteelError as error:
        return error.what
    return proposal


# --- all settings ---

Setting = tuple[int, ...]
"""The index of a choice for each knob."""


class SearchSpace(Struct):
    base: Proposal
    knobs: tuple[Knob, ...]
    start: Setting
    context: PlanningContext
    _proposals: dict[Setting, Proposal | str] = {}

    @property
    def size(self) -> int:
        """Settings of the whole grid that differ in speed."""
        return prod(len(knob.choices) for knob in self.knobs if knob.moves == "speed")

    def only(self, names: Sequence[str]) -> SearchSpace:
        """The space with these knobs alone; without names, all of them."""
        known = [knob.name for knob in self.knobs]
        unknown = next((name for name in names if name not in known), None)
        if unknown is not None:
            raise UsageError(f"there is no knob `{unknown[:40]}`", next=f"--only with {', '.join(known)}")
        chosen = [index for index, name in enumerate(known) if not names or name in names]
        knobs = tuple(self.knobs[index] for index in chosen)
        return SearchSpace(self.base, knobs, tuple(self.start[index] for index in chosen), self.context)

    def proposal(self, setting: Setting) -> Proposal:
        """Raises a FiresteelError if it must not be tried."""
        proposal = self._propose(setting)
        if isinstance(proposal, str):
            raise FiresteelError(proposal, next="another setting")
        return proposal

    def refusal(self, setting: Setting) -> str | None:
        proposal = self._propose(setting)
        return proposal if isinstance(proposal, str) else None

    def _propose(self, setting: Setting) -> Proposal | str:
        if setting not in self._proposals:
            changed: dict[str, FlagValue | None] = {}
            for knob, choice, current in zip(self.knobs, setting, self.start, strict=True):
                if choice != current:
                    changed |= knob.choices[choice].flags
            self._proposals[setting] = propose(self.base, changed, self.context)
        return self._proposals[setting]

    def changes(self, setting: Setting) -> dict[str, str]:
        """By knob, the labels that differ from the current setting."""
        rows = zip(self.knobs, setting, self.start, strict=True)
        return {knob.name: knob.labels[choice] for knob, choice, current in rows if choice != current}

    def labels(self, setting: Setting) -> dict[str, str]:
        rows = zip(self.knobs, setting, strict=True)
        return {knob.name: knob.labels[choice] for knob, choice in rows}

    def setting(self, labels: Mapping[str, str]) -> Setting:
        """The inverse of `labels`; a label that no longer exists means the current setting."""
        rows = zip(self.knobs, self.start, strict=True)
        return tuple(
            knob.labels.index(labels[knob.name]) if labels.get(knob.name) in knob.labels else current
            for knob, current in rows
        )

    def knows(self, labels: Mapping[str, str]) -> bool:
        """Whether a setting with these labels is one of this space."""
        return labels.keys() == {knob.name for knob in self.knobs} and all(
            labels[knob.name] in knob.labels for knob in self.knobs
        )

    def settled(self, setting: Setting, log: str) -> dict[str, str]:
        """By knob that is left to the engine, what it came to by the engine's log."""
        rows = zip(self.knobs, setting, strict=True)
        found = {knob.name: knob.settled(log) for knob, choice in rows if knob.labels[choice] == AS_IT_IS}
        return {name: label for name, label in found.items() if label is not None}

    def effective(self, setting: Setting, settled: Mapping[str, str]) -> Setting:
        """The same with what the engine chose by itself: settings that are equal then are one."""
        return tuple(
            knob.labels.index(settled[knob.name])
            if knob.labels[choice] == AS_IT_IS and knob.name in settled
            else choice
            for knob, choice in zip(self.knobs, setting, strict=True)
        )

    def knob_index(self, name: str) -> int | None:
        return next((index for index, knob in enumerate(self.knobs) if knob.name == name), None)

    def with_choice(self, setting: Setting, knob: int, choice: int) -> Setting:
        return (*setting[:knob], choice, *setting[knob + 1 :])

    def refused(self) -> tuple[tuple[dict[str, str], str], ...]:
        """Single changes that are never tried, each with its reason."""
        settings = [
            self.with_choice(self.start, index, choice)
            for index, knob in enumerate(self.knobs)
            for choice in range(len(knob.choices))
            if choice != self.start[index]
        ]
        return tuple((self.changes(each), why) for each in settings if (why := self.refusal(each)))

    def expected_speed(self, setting: Setting, goal: Goal, texts: Sequence[Text], users: int) -> float | None:
        """What the plan expects, so that the search begins with the most promising; None: unknown."""
        proposal = self._propose(setting)
        speed = None if isinstance(proposal, str) else proposal.plan.speed
        if speed is None:
            return None
        if goal == "throughput" and users > 1 and speed.batch:
            return speed.batch.total_tokens_per_s.expected
        drafted: dict[str, float] = {row.text: row.decode_tokens_per_s.expected for row in speed.drafted}
        plain = speed.decode_tokens_per_s.expected
        rates = [drafted.get(PLANNER_TEXTS[text], drafted.get("any", plain)) for text in texts]
        return sum(rates) / len(rates) if rates else plain


def make_search_space(base: Proposal, goal: Goal, users: int, context: PlanningContext) -> SearchSpace:
    """`users`: how many users at once it has to serve well."""
    knobs = knobs_of(base, goal, users, context.recipes)
    start = tuple(knob.current_choice(base.plan.launch) for knob in knobs)
    return SearchSpace(base, knobs, start, context)


# --- which setting is next ---
#
#     search = Search(axes, start, expected=..., is_excluded=..., max_runs=...)
#     while (setting := search.ask()) is not None:
#         ...                              # while measuring: search.is_beaten(values) says when to give it up
#         search.tell(setting, values)     # no values: it did not start, or answered wrongly
#
# Settings with common choices are similar, neighbours on a ladder (sizes, depths) most of all, and each knob
# adds its part in logarithms, with a little for pairs that only help or hurt together. Each knob is first
# moved by itself, away from the current setting: a change of five knobs that loses says nothing about any of
# them. A choice that failed twice and never worked is not tried again. Measured on the simulated Spark
# against the full grid, random search and Optuna's TPE: `benchmarks/tune.py`.

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
        models = [_Prediction.fit(self._good, self.axes, self._prior, *spreads) for spreads in _SPREADS]
        model = max(models, key=lambda model: model.likelihood)
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
