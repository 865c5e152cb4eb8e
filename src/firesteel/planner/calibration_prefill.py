"""The fit of prompt reading to published first-token times: one figure for each engine and kernel path."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from firesteel.planner.calibration import configuration, plain
from firesteel.planner.fit import FitVariable, Point, fit_even
from firesteel.planner.speed.accuracy import Errors, Fitted, errors
from firesteel.planner.speed.decode import Terms
from firesteel.planner.speed.prefill import active_weights, path, ttft_ms
from firesteel.planner.speed.prefill import terms as prefill_terms
from firesteel.planner.speed.published import PublishedRun
from firesteel.planner.speed.published_models import models

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
_LONG_PROMPT = 2048
_START = {"vllm": FitVariable("start", 0.0, 500.0, 60.0), "llamacpp": FitVariable("start", 0.0, 200.0, 20.0)}


def prefill_unknowns(engine: str) -> tuple[FitVariable, ...]:
    """Milliseconds a tera-operation: 5 is 200 TFLOPS, 100 is 10."""
    paths = tuple(FitVariable(each, 4.0, 120.0, 30.0) for each in PATHS[engine])
    layers = (FitVariable("attention", 1.0, 200.0, 20.0), FitVariable("recurrent", 0.0, 2000.0, 20.0))
    return (*paths, *layers, _START[engine])


def prompts(engine: str) -> list[tuple[PublishedRun, Terms, float]]:
    """Runs of one user with a long prompt: what it took, and of what.

    Short ones tell nothing: the first of a series also compiles kernels.
    """
    found = []
    for run in plain(engine):
        prompt, depth, took = _prompt(run)
        if prompt >= _LONG_PROMPT and took:
            sheet = models().shapes[run.shape]
            shape, stored = sheet.architecture(run.shape), sheet.stored(run.layout)
            active = active_weights(shape, stored)
            if active:
                on = path(shape, stored, run.path)
                found.append((run, prefill_terms(shape, on, active, prompt, depth), took))
    return found


def _prompt(run: PublishedRun) -> tuple[int, int, float | None]:
    """Tokens, what came before them, and milliseconds. llama-bench reads 2048 tokens at a depth."""
    if run.note == "llama-bench" and run.prefill_tps:
        return 2048, run.depth or 0, 1000 * 2048 / run.prefill_tps
    return run.depth or 0, 0, run.ttft_ms


def prefill_costs(engine: str, some: Sequence[tuple[PublishedRun, Terms, float]]) -> dict[str, float]:
    many = Counter(configuration(run) for run, _, _ in some)
    points: list[Point] = [(parts, took, 1 / many[configuration(run)]) for run, parts, took in some]
    return {name: round(value, 3) for name, value in fit_even(points, prefill_unknowns(engine)).items()}


def calibrate_prefill(engine: str) -> Fitted:
    some = prompts(engine)
    costs = prefill_costs(engine, some)
    unseen: list[tuple[PublishedRun, float, float]] = []
    for shape in sorted({run.shape for run, _, _ in some}):
        others = prefill_costs(engine, [each for each in some if each[0].shape != shape])
        unseen += [
            (run, ttft_ms(parts, others) or took, took) for run, parts, took in some if run.shape == shape
        ]
    seen = [(run, ttft_ms(parts, costs) or took, took) for run, parts, took in some]
    return Fitted(costs, _rates(seen), _rates(unseen))


def _rates(found: Sequence[tuple[PublishedRun, float, float]]) -> Errors:
    """Errors of speed, as for decoding: a time that is told too long is a speed told too low."""
    return errors([(run.shape, 1000 / told, 1000 / took) for run, told, took in found])
