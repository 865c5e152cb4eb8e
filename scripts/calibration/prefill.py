"""Fit the speed of prompt processing to published first-token times: one cost for each engine and kernel
path."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from calibration.accuracy import prediction_errors, spread
from calibration.decode import BANDWIDTH, configuration, reads_of, single_user_runs
from calibration.least_squares import FitVariable, Point, fit_log_ratios
from calibration.measured_models import models
from firesteel.planner.speed.decode import ErrorsSchema, FittedSchema, SpreadSchema, Terms
from firesteel.planner.speed.prefill import PromptModel, active_weights, kernel_path, prompt_ms
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
_SHORT = 256
_FIRST = 1024
"""Prompts of djangodevreng that are not fitted: those of one user are the first that each engine got after
its start. In 17 of 32 series they took longer than 2,048 tokens did an hour later, and three repeats differ
by 13 % where those of other lengths differ by 1 to 4 %: kernels were compiled meanwhile."""
_MIN_PROMPT_TOKENS = 2048
_START = {"vllm": FitVariable("start", 0.0, 500.0, 60.0), "llamacpp": FitVariable("start", 0.0, 200.0, 20.0)}
_STEP_TOKENS = {"vllm": 8192, "llamacpp": 2048}
"""As the published runs have it."""

Costs = Mapping[str, float]
Prompt = tuple[PublishedRun, Terms, float]
"""A run, the terms of its prompt, and the milliseconds that it took."""


def _variables(engine: str) -> tuple[FitVariable, ...]:
    """Milliseconds per tera-operation: 5 is 200 TFLOPS, 100 is 10."""
    paths = tuple(FitVariable(path, 2.0, 120.0, 20.0) for path in PATHS[engine])
    layers = (
        FitVariable("attention", 1.0, 200.0, 20.0),
        FitVariable("attention_wide", 1.0, 200.0, 40.0),
        FitVariable("recurrent", 0.0, 2000.0, 20.0),
        FitVariable("read", 0.0, 2.0, 1.0),
    )
    return (*paths, *layers, _START[engine])


def prompt_model(run: PublishedRun, costs: Costs, independence: float) -> PromptModel | None:
    """None where a format does not tell how many weights there are. `costs`: of decoding."""
    model = models().shapes[run.shape]
    shape, stored = model.architecture(run.shape), model.stored(run.layout)
    active, step = active_weights(shape, stored), _STEP_TOKENS[run.engine]
    if not active:
        return None
    path = kernel_path(shape, stored, run.path)
    if path not in PATHS[run.engine]:
        path = path.removesuffix("_marlin")
    return PromptModel(
        shape, run.engine, path, active, reads_of(run), costs, independence, BANDWIDTH, step, step
    )


def prompts_of(engine: str, costs: Costs, independence: float) -> list[Prompt]:
    """Of single users."""
    prompts = []
    for run in single_user_runs(engine):
        tokens, depth, measured_ms = _measured(run)
        is_fitted = tokens >= _MIN_PROMPT_TOKENS or (tokens == _SHORT and engine == "vllm")
        if is_fitted and measured_ms and (model := prompt_model(run, costs, independence)):
            prompts.append((run, model.prompt_terms(tokens, depth), measured_ms))
    return prompts


def _measured(run: PublishedRun) -> tuple[int, int, float | None]:
    """Tokens, the depth they start at, and milliseconds. llama-bench reads 2048 tokens at a depth."""
    if run.note == "llama-bench" and run.prefill_tps:
        return 2048, run.depth or 0, 1000 * 2048 / run.prefill_tps
    return run.depth or 0, 0, run.ttft_ms


def fit_prefill_costs(engine: str, prompts: Sequence[Prompt]) -> dict[str, float]:
    repeats = Counter(configuration(run) for run, _, _ in prompts)
    points: list[Point] = [(terms, ms, 1 / repeats[configuration(run)]) for run, terms, ms in prompts]
    return {name: round(value, 3) for name, value in fit_log_ratios(points, _variables(engine)).items()}


def first_prompts_ms(decode_costs: Costs, independence: float, costs: Costs) -> SpreadSchema:
    """How much longer the first prompts after a start take."""
    extra = []
    for run in single_user_runs("vllm"):
        if run.depth == _FIRST and run.ttft_ms and (model := prompt_model(run, decode_costs, independence)):
            extra.append(run.ttft_ms - prompt_ms(model.prompt_terms(_FIRST), costs))
    return spread(extra)


def calibrate_prefill(engine: str, decode_costs: Costs, independence: float) -> FittedSchema:
    prompts = prompts_of(engine, decode_costs, independence)
    costs = fit_prefill_costs(engine, prompts)
    left_out: list[tuple[PublishedRun, float, float]] = []
    for shape in sorted({run.shape for run, _, _ in prompts}):
        without = fit_prefill_costs(engine, [prompt for prompt in prompts if prompt[0].shape != shape])
        left_out += [(run, prompt_ms(terms, without), ms) for run, terms, ms in prompts if run.shape == shape]
    fitted = [(run, prompt_ms(terms, costs), ms) for run, terms, ms in prompts]
    return FittedSchema(costs=costs, fitted=_rate_errors(fitted), left_out=_rate_errors(left_out))


def _rate_errors(results: Sequence[tuple[PublishedRun, float, float]]) -> ErrorsSchema:
    """Errors of rates, as for decoding: a predicted time that is too long is a rate that is too low."""
    return prediction_errors(
        [(run.shape, 1000 / predicted, 1000 / measured) for run, predicted, measured in results]
    )
