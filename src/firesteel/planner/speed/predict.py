"""Predict how fast a launch will be, from the best evidence that there is; see `speed.py` for the order.

A prediction from published runs does not quote a run: it takes the fitted figure and corrects it by the error
that the fit has on those runs, so depth and KV format may differ. Every band comes from observed errors.
"""

from __future__ import annotations

from firesteel.engines.kv_cache import KvCache
from firesteel.errors import UsageError
from firesteel.facts.model.architecture import Architecture
from firesteel.facts.model.tensors import Weights
from firesteel.launch import Launch
from firesteel.planner.memory.pool import MemoryPool
from firesteel.planner.speed.batch import batch_speed
from firesteel.planner.speed.constants import constants
from firesteel.planner.speed.decode import stored_bytes
from firesteel.planner.speed.prefill import prefill_speed, prompt_model
from firesteel.planner.speed.roofline import roofline_speed
from firesteel.planner.speed.served import served_speed
from firesteel.planner.speed.serving import RequestShape, usual_requests
from firesteel.planner.speed.single_user import corrected_by_runs, fitted_speed
from firesteel.planner.speed.speculation import drafted_speeds
from firesteel.planner.speed.speed import Speed
from firesteel.planner.speed.startup import predict_start_up
from firesteel.planner.speed.step_model import step_model
from firesteel.units import Band
from firesteel.values import replace

MAX_USERS = 1024
MAX_CONTEXT = 2**24
"""More than any model or machine here could serve: such a request is a typing error."""


def predict_speed(
    launch: Launch,
    shape: Architecture,
    weights: Weights,
    kv: KvCache,
    pool: MemoryPool,
    requests: RequestShape | None = None,
) -> Speed | None:
    """None when the memory bandwidth is not known. `weights` are the weights as the engine holds them."""
    _check_limits(kv)
    if not pool.bandwidth_bytes_per_s:
        return None
    speed = _speed(launch, shape, weights, kv, pool, requests or usual_requests(kv.context))
    return speed if weights.spread == (1.0, 1.0) else _widened(speed, *weights.spread)


def _check_limits(kv: KvCache) -> None:
    if kv.users > MAX_USERS:
        raise UsageError(
            f"{kv.users:,} concurrent users are beyond what can be predicted; the limit is {MAX_USERS:,}",
            next=f"--users {MAX_USERS}",
        )
    if kv.context > MAX_CONTEXT:
        raise UsageError(
            f"a context of {kv.context:,} tokens is more than any model has; the limit is {MAX_CONTEXT:,}",
            next=f"--context {MAX_CONTEXT}",
        )


def _speed(
    launch: Launch,
    shape: Architecture,
    weights: Weights,
    kv: KvCache,
    pool: MemoryPool,
    requests: RequestShape,
) -> Speed:
    stored, bandwidth = stored_bytes(weights), pool.bandwidth_bytes_per_s or 0.0
    if pool.hardware != constants().hardware:
        return roofline_speed(launch, shape, stored, weights.tied_head, kv, bandwidth)
    model = step_model(launch, shape, stored, weights.tied_head, kv, bandwidth)
    fitted = fitted_speed(model, kv)
    speed = corrected_by_runs(fitted, model, kv)
    decode_factor = fitted.decode_tokens_per_s.expected / speed.decode_tokens_per_s.expected
    prompts = prompt_model(model, stored)
    return replace(
        speed,
        batch=batch_speed(model, kv, speed.decode_tokens_per_s),
        drafted=drafted_speeds(launch, shape, speed.decode_tokens_per_s),
        served=served_speed(model, prompts, kv, requests, decode_factor) if prompts else None,
        prefill=prefill_speed(prompts, launch, requests.prompt_tokens, requests.shared_tokens)
        if prompts
        else None,
        start_up=predict_start_up(launch, weights.total_bytes),
    )


def _widened(speed: Speed, least: float, most: float) -> Speed:
    """Only a label of the weights is known: a lighter file reads faster, a heavier one slower."""

    def widen(band: Band) -> Band:
        return Band(band.low / most, band.expected, band.high / least)

    return replace(
        speed,
        decode_tokens_per_s=widen(speed.decode_tokens_per_s),
        at_depth=tuple((depth, widen(band)) for depth, band in speed.at_depth),
        explanation=(
            f"{speed.explanation}; files with the same label differ in size: "
            f"the band covers {least:.0%} to {most:.0%} of these bytes"
        ),
    )
