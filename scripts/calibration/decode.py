"""Fit the costs of a decode step to published runs, and report the error of the fit.

Runs that were made alike are fitted together. The error is reported twice: with the costs fitted to all
runs, and for each model with the costs fitted to all other models, which is what to expect for a model that
nobody has measured. Models of one shape are left out together, whatever names they were published under.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

from calibration.accuracy import prediction_errors
from calibration.least_squares import FitVariable, Point, fit
from calibration.measured_models import models
from firesteel.planner.speed import published
from firesteel.planner.speed.decode import (
    ErrorsSchema,
    FittedSchema,
    StepReads,
    Terms,
    step_ms,
    step_reads,
    terms,
)
from firesteel.planner.speed.published import CALIBRATED, PublishedRun

BANDWIDTH = 273e9
"""Of a GB10, by its data sheet; every run here was made on one."""
_BYTES = (1.0, 2.5)
_LAYERS = (
    FitVariable("attention_layer", 0.0, 0.3, 0.04),
    FitVariable("recurrent_layer", 0.0, 0.3, 0.04),
    FitVariable("moe_layer", 0.0, 0.3, 0.03),
)
"""A layer is a dozen kernels of a few microseconds each, however little they read."""
_PRIOR_WEIGHT = 0.3
"""Runs barely separate the cost of layers from that of bytes: this adds 0.1 % error and keeps layers above
0."""
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
_DECODE_TESTS = {"01-chat", "03-long-output"}
"""The tests of djangodevreng that mostly decode: in the others, prompts of other users interrupt."""

Costs = Mapping[str, float]


def single_user_runs(engine: str) -> list[PublishedRun]:
    """One user, no speculation: the runs whose accuracy DESIGN.md sets a limit for."""
    return [
        run for run in published.runs_with_layout(engine) if run.source in CALIBRATED[engine] and run.is_plain
    ]


def multi_user_runs(engine: str) -> list[PublishedRun]:
    """Several users who decode at once, most of the time."""
    return [
        run
        for run in published.runs_with_layout(engine)
        if run.source in CALIBRATED[engine]
        and run.users > 1
        and not run.speculation
        and (engine != "vllm" or run.note in _DECODE_TESTS)
    ]


@cache
def reads_of(run: PublishedRun) -> StepReads:
    model = models().shapes[run.shape]
    engine = "llamacpp" if run.engine == "llamacpp" else "vllm"
    return step_reads(
        engine, model.architecture(run.shape), model.stored(run.layout), False, run.middle_depth, run.kv_dtype
    )


def step_terms(run: PublishedRun, independence: float = 1.0) -> Terms:
    return terms(reads_of(run), BANDWIDTH, run.users, independence)


def measured_ms(run: PublishedRun) -> float:
    assert run.decode_tps is not None
    return 1000 / run.decode_tps


def predicted_tps(engine: str, run: PublishedRun, costs: Costs) -> float:
    """For one user."""
    return 1000 / step_ms(engine, step_terms(run, costs.get("independence", 1.0)), costs)[1]


def configuration(run: PublishedRun) -> tuple[str, str, str]:
    return run.model, run.quant, run.source


def calibrate_decode(engine: str) -> FittedSchema:
    return _cross_validated(engine, single_user_runs(engine), lambda runs: fit_decode_costs(engine, runs))


def fit_decode_costs(engine: str, runs: Sequence[PublishedRun]) -> dict[str, float]:
    """Every published configuration counts once, however many depths it was measured at."""
    repeats = Counter(configuration(run) for run in runs)
    points: list[Point] = [
        (step_terms(run), measured_ms(run), 1 / repeats[configuration(run)]) for run in runs
    ]
    return {name: round(value, 4) for name, value in fit(points, COSTS[engine], _PRIOR_WEIGHT).items()}


def calibrate_batch(engine: str, costs: Costs) -> FittedSchema:
    """What more users cost beyond what they read, with the costs of one user fixed."""
    return _cross_validated(
        engine, multi_user_runs(engine), lambda runs: fit_batch_costs(engine, costs, runs), costs
    )


def _cross_validated(
    engine: str,
    runs: Sequence[PublishedRun],
    fit_to: Callable[[Sequence[PublishedRun]], Costs],
    base: Costs | None = None,
) -> FittedSchema:
    """Costs fitted to all runs, their errors, and the errors on each shape of costs fitted without it."""

    def predicted(some: Iterable[PublishedRun], costs: Costs) -> list[tuple[PublishedRun, float]]:
        return [(run, predicted_tps(engine, run, {**(base or {}), **costs})) for run in some]

    costs = fit_to(runs)
    left_out: list[tuple[PublishedRun, float]] = []
    for shape in sorted({run.shape for run in runs}):
        without = fit_to([run for run in runs if run.shape != shape])
        left_out += predicted((run for run in runs if run.shape == shape), without)
    return FittedSchema(
        costs=dict(costs), fitted=run_errors(predicted(runs, costs)), left_out=run_errors(left_out)
    )


def fit_batch_costs(engine: str, costs: Costs, runs: Sequence[PublishedRun]) -> dict[str, float]:
    """Try the independence of expert choices in steps, and fit the other costs for each."""

    def candidate(independence: float) -> tuple[float, dict[str, float]]:
        values = {"independence": independence, **_fit_batch_layers(engine, costs, runs, independence)}
        merged = {**costs, **values}
        return run_errors((run, predicted_tps(engine, run, merged)) for run in runs).mean, values

    return min(map(candidate, _INDEPENDENCE), key=lambda scored: scored[0])[1]


def _fit_batch_layers(
    engine: str, costs: Costs, runs: Sequence[PublishedRun], independence: float
) -> dict[str, float]:
    points: list[Point] = []
    for run in runs:
        parts, total = step_terms(run, independence), measured_ms(run)
        rest = total - step_ms(engine, parts, costs)[1]
        # The fit minimizes errors relative to `rest`; this weight makes them relative to the whole step.
        points.append((parts, rest, (rest / total) ** 2))
    return {name: round(value, 4) for name, value in fit(points, _BATCH).items()}


def run_errors(pairs: Iterable[tuple[PublishedRun, float]]) -> ErrorsSchema:
    return prediction_errors(
        [(run.shape, predicted, run.decode_tps) for run, predicted in pairs if run.decode_tps]
    )
