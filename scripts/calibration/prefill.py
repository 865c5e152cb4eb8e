"""Fit the speed of prompt processing to published first-token times: one cost for each engine and kernel
path."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from calibration.accuracy import prediction_errors
from calibration.decode import configuration, single_user_runs
from calibration.least_squares import FitVariable, Point, fit_log_ratios
from calibration.measured_models import models
from firesteel.planner.speed.constants import ErrorsSchema, FittedSchema
from firesteel.planner.speed.decode import Terms
from firesteel.planner.speed.prefill import active_weights, kernel_path, prefill_terms, ttft_ms
from firesteel.planner.speed.published import PublishedRun

PATHS = {
    "vllm": (
        "dense_wide",
        "dense_8bit",
        "dense_8bit_marlin",
        "moe_wide",
        "moe_8bit",
        "moe_8bit_marlin",
        "moe_4bit",
        "moe_4bit_marlin",
    ),
    "llamacpp": ("dense_8bit", "dense_4bit", "moe_8bit", "moe_4bit"),
}
_MIN_PROMPT_TOKENS = 2048
_START = {"vllm": FitVariable("start", 0.0, 500.0, 60.0), "llamacpp": FitVariable("start", 0.0, 200.0, 20.0)}

Prompt = tuple[PublishedRun, Terms, float]
"""A run, the terms of its prompt, and the milliseconds that it took."""


def _variables(engine: str) -> tuple[FitVariable, ...]:
    """Milliseconds per tera-operation: 5 is 200 TFLOPS, 100 is 10."""
    paths = tuple(FitVariable(path, 4.0, 120.0, 30.0) for path in PATHS[engine])
    layers = (FitVariable("attention", 1.0, 200.0, 20.0), FitVariable("recurrent", 0.0, 2000.0, 20.0))
    return (*paths, *layers, _START[engine])


def _prompts(engine: str) -> list[Prompt]:
    """Long prompts of single users. Short ones mislead: the first of a series also compiles kernels."""
    prompts = []
    for run in single_user_runs(engine):
        tokens, depth, measured_ms = _measured(run)
        if tokens >= _MIN_PROMPT_TOKENS and measured_ms:
            model = models().shapes[run.shape]
            shape, stored = model.architecture(run.shape), model.stored(run.layout)
            if active := active_weights(shape, stored):
                path = kernel_path(shape, stored, run.path)
                prompts.append((run, prefill_terms(shape, path, active, tokens, depth), measured_ms))
    return prompts


def _measured(run: PublishedRun) -> tuple[int, int, float | None]:
    """Tokens, the depth they start at, and milliseconds. llama-bench reads 2048 tokens at a depth."""
    if run.note == "llama-bench" and run.prefill_tps:
        return 2048, run.depth or 0, 1000 * 2048 / run.prefill_tps
    return run.depth or 0, 0, run.ttft_ms


def _fit_costs(engine: str, prompts: Sequence[Prompt]) -> dict[str, float]:
    repeats = Counter(configuration(run) for run, _, _ in prompts)
    points: list[Point] = [(terms, ms, 1 / repeats[configuration(run)]) for run, terms, ms in prompts]
    return {name: round(value, 3) for name, value in fit_log_ratios(points, _variables(engine)).items()}


def calibrate_prefill(engine: str) -> FittedSchema:
    prompts = _prompts(engine)
    costs = _fit_costs(engine, prompts)
    left_out: list[tuple[PublishedRun, float, float]] = []
    for shape in sorted({run.shape for run, _, _ in prompts}):
        without = _fit_costs(engine, [prompt for prompt in prompts if prompt[0].shape != shape])
        left_out += [
            (run, ttft_ms(terms, without) or ms, ms) for run, terms, ms in prompts if run.shape == shape
        ]
    fitted = [(run, ttft_ms(terms, costs) or ms, ms) for run, terms, ms in prompts]
    return FittedSchema(costs=costs, fitted=_rate_errors(fitted), left_out=_rate_errors(left_out))


def _rate_errors(results: Sequence[tuple[PublishedRun, float, float]]) -> ErrorsSchema:
    """Errors of rates, as for decoding: a predicted time that is too long is a rate that is too low."""
    return prediction_errors(
        [(run.shape, 1000 / predicted, 1000 / measured) for run, predicted, measured in results]
    )
