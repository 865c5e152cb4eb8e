"""What several users get, with prompts of the length that was asked for."""

from __future__ import annotations

from collections.abc import Iterable
from math import hypot

from firesteel.engines.kv_cache import KvCache
from firesteel.planner.speed.constants import ErrorsSchema, ServedErrorsSchema, constants
from firesteel.planner.speed.prefill import PromptModel
from firesteel.planner.speed.serving import RequestShape, ServingModel, serve_steadily
from firesteel.planner.speed.speed import ServedSpeed
from firesteel.planner.speed.step_model import StepModel, fitted_costs
from firesteel.units import Band
from firesteel.values import replace

_MEASURED_USERS = 20
"""The most whose prompts arrive while others decode, in the published runs."""
_FEWER_ROUNDS = 64
"""With more users than this, two rounds show the steady state."""


def served_speed(
    model: StepModel, prompts: PromptModel, kv: KvCache, requests: RequestShape, decode_factor: float
) -> ServedSpeed | None:
    """None for one user. `decode_factor`: how much slower published runs of the model are than the fit."""
    if kv.users < 2:
        return None
    fitted = fitted_costs(model.launch)
    costs = {**model.costs, **fitted.crowd.costs}
    serving = ServingModel(prompts, kv.dtype, costs, fitted.prefill.costs, decode_factor)
    served = serve_steadily(serving, kv.users, requests, 4 if kv.users <= _FEWER_ROUNDS else 2)
    each = _mean(1000 * (requests.answer_tokens - 1) / (one.end_ms - one.first_token_ms) for one in served)
    cycle_ms = _mean(one.end_ms - one.arrived_ms for one in served)
    errors = _errors(model)
    # Beyond the measured numbers of users nothing holds the model: the band grows with the ratio.
    beyond = max(1.0, kv.users / _MEASURED_USERS) ** 0.5
    return ServedSpeed(
        kv.users,
        requests.prompt_tokens,
        requests.answer_tokens,
        requests.shared_tokens,
        _band(each, errors.each, beyond),
        _band(1000 * kv.users * requests.answer_tokens / cycle_ms, errors.total, beyond),
        _waits(_mean(one.first_token_ms - one.arrived_ms for one in served), errors.first_token, beyond),
        _explain(model, kv.users, requests, errors, prompts),
    )


def _mean(values: Iterable[float]) -> float:
    some = list(values)
    return sum(some) / len(some)  # `statistics` takes longer to import than a plan to make


def _errors(model: StepModel) -> ServedErrorsSchema:
    """No published run of llama.cpp has prompts arriving: vLLM's errors, and those of its own parts."""
    own = fitted_costs(model.launch)
    if own.served:
        return own.served
    known = constants().engines["vllm"]
    assert known.served

    def widened(errors: ErrorsSchema) -> ErrorsSchema:
        parts = (own.crowd.left_out, own.prefill.left_out)
        low = 1 - hypot(1 - errors.low, *(1 - part.low for part in parts))
        high = 1 + hypot(errors.high - 1, *(part.high - 1 for part in parts))
        return replace(errors, low=max(0.2, low), high=high)

    served = known.served
    return ServedErrorsSchema(
        each=widened(served.each), total=widened(served.total), first_token=widened(served.first_token)
    )


def _band(expected: float, errors: ErrorsSchema, beyond: float) -> Band:
    return Band(
        expected * min(1.0, errors.low) / beyond, expected, expected * (1 + (errors.high - 1) * beyond)
    )


def _waits(expected_ms: float, errors: ErrorsSchema, beyond: float) -> Band:
    """Errors are of rates: a high rate is a short wait."""
    return Band(expected_ms / errors.high / beyond, expected_ms, expected_ms / errors.low * beyond)


def _explain(
    model: StepModel, users: int, requests: RequestShape, errors: ServedErrorsSchema, prompts: PromptModel
) -> str:
    cached = f", {requests.shared_tokens:,} of them cached" if requests.shared_tokens else ""
    beyond = (
        f"; measured up to {_MEASURED_USERS} users, so the band is wider" if users > _MEASURED_USERS else ""
    )
    if fitted_costs(model.launch).served is None:
        beyond += f"; no published run of {model.launch.engine} has prompts arriving, so the band is wider"
    return (
        f"every user sends a prompt of {requests.prompt_tokens:,} tokens{cached}, gets "
        f"{requests.answer_tokens:,}, and sends the next at once; simulated in steps of "
        f"{prompts.tokens_per_step:,} tokens; models left out were off by {errors.each.mean:.0%} each and "
        f"{errors.total.mean:.0%} in all{beyond}"
    )
