"""Decode speed of several users at once."""

from __future__ import annotations

from firesteel.engines.kv_cache import KvCache
from firesteel.planner.speed.constants import constants
from firesteel.planner.speed.speed import DEPTH, BatchSpeed
from firesteel.planner.speed.step_model import StepModel, fitted_costs
from firesteel.units import Band
from firesteel.values import replace


def batch_speed(model: StepModel, kv: KvCache, single_user: Band) -> BatchSpeed | None:
    """None for one user."""
    if kv.users < 2:
        return None
    fit = fitted_costs(model.launch).crowd
    batch_model = replace(model, costs={**model.costs, **fit.costs})
    depth = min(DEPTH, kv.context)

    def rate(independence: float) -> float:
        return batch_model.tokens_per_s(batch_model.terms(depth, kv.users, independence)).expected

    engines = constants().engines
    expected = rate(engines["vllm"].crowd.costs["independence"])
    low = min(rate(1.0), expected * fit.left_out.low)
    high = max(rate(engines["llamacpp"].crowd.costs["independence"]), expected * fit.left_out.high)
    per_user = _at_most(Band(low, expected, high), single_user)
    explanation = (
        f"{fit.fitted.runs} runs of 2 to 32 users, off by {fit.left_out.mean:.0%} for models left out; "
        "slower when prompts have nothing in common, faster when they share experts"
    )
    return BatchSpeed(kv.users, per_user, per_user.scaled(kv.users), explanation)


def _at_most(rate: Band, single_user: Band) -> Band:
    """No user in a batch is faster than one alone, although the two separate fits may predict it."""
    if rate.expected <= single_user.expected:
        return rate
    expected = single_user.expected
    return Band(min(rate.low, single_user.low), expected, max(expected, min(rate.high, single_user.high)))
