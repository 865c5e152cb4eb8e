"""The fit of decode costs to published runs, and how far off it is: what `scripts/calibrate` writes down.

A stratum is a set of runs made alike. Its error is told twice: with the figures fitted to all its runs,
and for each model with the figures fitted to all others, which is what a model that nobody has measured
will meet. Models of one shape leave together, under whatever names they were published.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from firesteel.planner.fit import FitVariable, Point, fit
from firesteel.planner.speed import published
from firesteel.planner.speed.accuracy import Errors, Fitted, errors
from firesteel.planner.speed.decode import StepReads, Terms, step_ms, step_reads, terms
from firesteel.planner.speed.published import CALIBRATED, PublishedRun
from firesteel.planner.speed.published_models import models

BANDWIDTH = 273e9
"""Of a GB10, by its data sheet; every run here was made on one."""
_BYTES = (1.0, 2.5)
_LAYERS = (
    FitVariable("attention_layer", 0.0, 0.3, 0.04),
    FitVariable("recurrent_layer", 0.0, 0.3, 0.04),
    FitVariable("moe_layer", 0.0, 0.3, 0.03),
)
"""A layer is a dozen kernels of a few microseconds each, however little they read."""
_PULL = 0.3
"""Of the priors. Runs tell layers from bytes badly: this costs 0.1 % and keeps layers above nothing."""
COSTS: Mapping[str, tuple[FitVariable, ...]] = {
    "vllm": (
        FitVariable("wide", *_BYTES, 1.15),
        FitVariable("narrow", 0.0, 1.0, 0.3),
        FitVariable("packed", *_BYTES, 1.2),
        FitVariable("experts", *_BYTES, 1.3),
        FitVariable("head", *_BYTES, 1.6),
        FitVariable("kv", *_BYTES, 1.1),
        *_LAYERS,
    ),
    "llamacpp": (
        FitVariable("mxfp4", *_BYTES, 1.2),
        FitVariable("q8_0", *_BYTES, 1.2),
        FitVariable("legacy", *_BYTES, 1.35),
        FitVariable("k_quant", *_BYTES, 1.4),
        FitVariable("kv", *_BYTES, 1.35),
        *_LAYERS,
    ),
}
_BATCH = (
    FitVariable("sequence_attention_layer", 0.0, 0.2, 0.0),
    FitVariable("sequence_recurrent_layer", 0.0, 1.0, 0.0),
)
_INDEPENDENCE = tuple(round(0.5 + 0.05 * step, 2) for step in range(11))
_STEADY = {"01-chat", "03-long-output"}
"""Of djangodevreng's tests, those that decode most of their time: the others mix in the prompts of others."""


def plain(engine: str) -> list[PublishedRun]:
    """One user, no speculation: the strata that the planner is held to."""
    return [run for run in published.known(engine) if run.source in CALIBRATED[engine] and run.is_plain]


def crowded(engine: str) -> list[PublishedRun]:
    """Several users who decode at once, most of the time."""
    return [
        run
        for run in published.known(engine)
        if run.source in CALIBRATED[engine]
        and run.users > 1
        and not run.speculation
        and (engine != "vllm" or run.note in _STEADY)
    ]


@cache
def read(run: PublishedRun) -> StepReads:
    sheet = models().shapes[run.shape]
    stored = sheet.stored(run.layout)
    engine = "llamacpp" if run.engine == "llamacpp" else "vllm"
    return step_reads(engine, sheet.architecture(run.shape), stored, False, run.middle_depth, run.kv_dtype)


def step_terms(run: PublishedRun, independence: float = 1.0) -> Terms:
    return terms(read(run), BANDWIDTH, run.users, independence)


def took_ms(run: PublishedRun) -> float:
    assert run.decode_tps is not None
    return 1000 / run.decode_tps


def predicted_tps(engine: str, run: PublishedRun, costs: Mapping[str, float]) -> float:
    """Of one user."""
    return 1000 / step_ms(engine, step_terms(run, costs.get("independence", 1.0)), costs)[1]


def costs_of(engine: str, some: Sequence[PublishedRun]) -> dict[str, float]:
    """Every published configuration counts once, however many depths it was measured at."""
    many = Counter(configuration(run) for run in some)
    points: list[Point] = [(step_terms(run), took_ms(run), 1 / many[configuration(run)]) for run in some]
    return {name: round(value, 4) for name, value in fit(points, COSTS[engine], _PULL).items()}


def configuration(run: PublishedRun) -> tuple[str, str, str]:
    return run.model, run.quant, run.source


def calibrate(engine: str) -> Fitted:
    some = plain(engine)
    costs = costs_of(engine, some)
    seen = [(run, predicted_tps(engine, run, costs)) for run in some]
    unseen: list[tuple[PublishedRun, float]] = []
    for shape in sorted({run.shape for run in some}):
        others = costs_of(engine, [run for run in some if run.shape != shape])
        unseen += [(run, predicted_tps(engine, run, others)) for run in some if run.shape == shape]
    return Fitted(costs, run_errors(seen), run_errors(unseen))


def calibrate_crowd(engine: str, costs: Mapping[str, float]) -> Fitted:
    """What more users cost beside what they read, with the costs of one user held."""
    some = crowded(engine)
    found = crowd_costs(engine, costs, some)
    seen = [(run, predicted_tps(engine, run, {**costs, **found})) for run in some]
    unseen: list[tuple[PublishedRun, float]] = []
    for shape in sorted({run.shape for run in some}):
        others = crowd_costs(engine, costs, [run for run in some if run.shape != shape])
        unseen += [
            (run, predicted_tps(engine, run, {**costs, **others})) for run in some if run.shape == shape
        ]
    return Fitted(found, run_errors(seen), run_errors(unseen))


def crowd_costs(engine: str, costs: Mapping[str, float], some: Sequence[PublishedRun]) -> dict[str, float]:
    """The independence of expert choices is tried in steps; the rest is fitted to what is left."""

    def missed(independence: float) -> tuple[float, dict[str, float]]:
        found = {"independence": independence, **_crowd_layers(engine, costs, some, independence)}
        return _mean(engine, some, {**costs, **found}), found

    return min((missed(each) for each in _INDEPENDENCE), key=lambda tried: tried[0])[1]


def _crowd_layers(
    engine: str, costs: Mapping[str, float], some: Sequence[PublishedRun], independence: float
) -> dict[str, float]:
    points: list[Point] = []
    for run in some:
        parts, whole = step_terms(run, independence), took_ms(run)
        left = whole - step_ms(engine, parts, costs)[1]
        points.append((parts, left, (left / whole) ** 2))  # off by a share of the whole step
    return {name: round(value, 4) for name, value in fit(points, _BATCH).items()}


def _mean(engine: str, some: Sequence[PublishedRun], costs: Mapping[str, float]) -> float:
    return run_errors([(run, predicted_tps(engine, run, costs)) for run in some]).mean


def run_errors(pairs: Iterable[tuple[PublishedRun, float]]) -> Errors:
    return errors([(run.shape, told, run.decode_tps) for run, told in pairs if run.decode_tps])
