"""How far off the simulation of several users is, on runs whose prompts arrive while others decode.

The runs are djangodevreng's: all users send one request at the same moment. A run gives the mean rate of each
user while it decodes, all tokens over the time from the first token to the last, and the mean time to the
first token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from calibration.accuracy import prediction_errors
from calibration.decode import fit_batch_costs, fit_decode_costs, multi_user_runs, single_user_runs
from calibration.prefill import fit_prefill_costs, prompt_model, prompts_of
from firesteel.planner.speed import published
from firesteel.planner.speed.decode import ServedErrorsSchema
from firesteel.planner.speed.published import CALIBRATED, PublishedRun
from firesteel.planner.speed.serving import RequestShape, ServingModel, serve_burst

Costs = Mapping[str, float]
_TRUE_LENGTH = 0.98
"""Of the prompts, over what the runs call them. A prompt of exactly 8,192 tokens would not fit into a step
beside one decoding user, and its last token would wait for the whole next prompt; but the first tokens of 5,
10 and 20 users came as early as if each did fit. With 0.98 the mean of the errors of first tokens is within
3 % of zero at every length from 4,096 tokens and every number of users."""


@dataclass(frozen=True, slots=True)
class ServingCosts:
    """The three fits that the simulation uses."""

    decode: Costs
    batch: Costs
    prefill: Costs


@dataclass(frozen=True, slots=True)
class PredictedRun:
    run: PublishedRun
    each: float
    total: float
    first_token_ms: float


def serving_runs() -> list[PublishedRun]:
    """Of several users, and of one."""
    return [
        run
        for run in published.runs_with_layout("vllm")
        if run.source in CALIBRATED["vllm"] and not run.speculation and run.depth and run.ttft_ms
    ]


def fit_without(shape: str | None) -> ServingCosts:
    """All costs, fitted to the runs of other shapes; None: to all."""
    singles = [run for run in single_user_runs("vllm") if run.shape != shape]
    decode = fit_decode_costs("vllm", singles)
    several = [run for run in multi_user_runs("vllm") if run.shape != shape]
    batch = fit_batch_costs("vllm", decode, several)
    prompts = [
        prompt for prompt in prompts_of("vllm", decode, batch["independence"]) if prompt[0].shape != shape
    ]
    return ServingCosts(decode, batch, fit_prefill_costs("vllm", prompts))


def predict(run: PublishedRun, costs: ServingCosts) -> PredictedRun | None:
    prompts = prompt_model(run, costs.decode, costs.batch["independence"])
    if prompts is None:
        return None
    model = ServingModel(prompts, run.kv_dtype, {**costs.decode, **costs.batch}, costs.prefill)
    served = serve_burst(
        model, run.users, RequestShape(round((run.depth or 1) * _TRUE_LENGTH), run.generated)
    )
    each = mean(1000 * (run.generated - 1) / (one.end_ms - one.first_token_ms) for one in served)
    span_ms = max(one.end_ms for one in served) - min(one.first_token_ms for one in served)
    total = 1000 * run.users * run.generated / span_ms
    return PredictedRun(run, each, total, mean(one.first_token_ms for one in served))


def predictions(left_out: bool) -> list[PredictedRun]:
    runs = serving_runs()
    everything = None if left_out else fit_without(None)
    found = []
    for shape in sorted({run.shape for run in runs}):
        costs = everything or fit_without(shape)
        found += [predict(run, costs) for run in runs if run.shape == shape]
    return [one for one in found if one]


def served_errors(predicted: Sequence[PredictedRun]) -> ServedErrorsSchema:
    """Of runs with several users."""
    several = [one for one in predicted if one.run.users > 1]
    return ServedErrorsSchema(
        each=prediction_errors(
            [(one.run.shape, one.each, one.run.decode_tps) for one in several if one.run.decode_tps]
        ),
        total=prediction_errors(
            [(one.run.shape, one.total, one.run.total_tps) for one in several if one.run.total_tps]
        ),
        first_token=prediction_errors(
            [
                (one.run.shape, 1000 / one.first_token_ms, 1000 / one.run.ttft_ms)
                for one in several
                if one.run.ttft_ms
            ]
        ),
    )
