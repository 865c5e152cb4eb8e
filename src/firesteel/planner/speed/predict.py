"""Predict how fast a launch will be, from the best evidence that there is; see `speed.py` for the order.

A prediction from published runs does not quote a run: it takes the fitted figure of one user and corrects it
by the error that the fit has on those runs, so depth and KV format may differ. Where neither is known, a
share of the bandwidth bound is left. Every band comes from observed errors, and every figure says in words
and URLs where it comes from.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import hypot
from typing import Literal

from firesteel import shipped_data
from firesteel.engines.kv_cache import KvCache
from firesteel.errors import UsageError
from firesteel.facts.evidence import Sources
from firesteel.facts.model.architecture import Architecture
from firesteel.facts.model.tensors import Weights
from firesteel.launch import EngineName, Launch
from firesteel.planner.memory.account import MemoryPool
from firesteel.planner.speed import published
from firesteel.planner.speed.decode import (
    StepModel,
    StepReads,
    StoredBytes,
    constants,
    costs_engine,
    fitted_costs,
    is_of_the_fit,
    step_model,
    step_ms,
    step_reads,
    stored_bytes,
    terms,
)
from firesteel.planner.speed.prefill import prefill_speed, prompt_model
from firesteel.planner.speed.published import PublishedRun
from firesteel.planner.speed.serving import RequestShape, batch_speed, served_speed, usual_requests
from firesteel.planner.speed.speculation import drafted_speeds
from firesteel.planner.speed.speed import DEPTH, Speed
from firesteel.planner.speed.startup import predict_start_up
from firesteel.units import Band, BandSchema
from firesteel.values import FileValue, replace

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


# --- one user ---

_FEW_RUNS = 3
"""With fewer runs of a checkpoint, their agreement may be chance."""
_DEPTHS = (1024, 8192, 32768, 131072)
_PART_NAMES = {"kv": "KV cache and states", "head": "head and sampling", "experts": "experts"}


def fitted_speed(model: StepModel, kv: KvCache) -> Speed:
    depth = min(DEPTH, kv.context)
    reads = model.reads(depth)
    bandwidth = model.bandwidth * (1 if model.launch.engine == "llamacpp" else model.launch.sparks)
    bound = bandwidth / reads.bytes()
    low, high = _error_range(model, reads)

    def rate(depth: int) -> Band:
        return _with_errors(model.tokens_per_s(model.terms(depth)), low, high, bound)

    return Speed(
        rate(depth),
        bound,
        round(reads.bytes()),
        bandwidth,
        "fitted",
        explain_fit(model, reads),
        fit_urls(model.engine),
        _parts_ms(model, depth),
        tuple((deeper, rate(deeper)) for deeper in _DEPTHS if deeper <= kv.context),
    )


def _with_errors(predicted: Band, low: float, high: float, bound: float) -> Band:
    """Widened by the observed errors, and never above the bandwidth bound."""
    expected = min(predicted.expected, bound)
    return Band(
        min(predicted.low * low, expected), expected, max(expected, min(predicted.high * high, bound))
    )


def _error_range(model: StepModel, reads: StepReads) -> tuple[float, float]:
    """Measured over predicted; wider where the launch differs from the runs of the fit."""
    low, high = model.low, model.high
    if reads.unseen:
        low, high = low * 0.9, high * 1.1
    if model.launch.sparks > 1:
        planned = constants().planned_two_sparks
        low, high = min(low, planned.low), max(high, planned.high)
    if model.launch.sparks > 2:
        low, high = low * 0.6, max(high * 1.2, RUNS_ON_FOUR_SPARKS[1], model.tree_speedup() * high)
    if model.launch.flags.get("enforce-eager") is True:
        low *= 0.75  # 26 tok/s where graphs give 33.5, gpt-oss-120b on a Spark
    return low, high


def _parts_ms(model: StepModel, depth: int) -> dict[str, float]:
    by_part: dict[str, float] = {}
    parts = model.terms(depth)
    for name, size in parts.items():
        # Weights of unknown format (the empty name) may be narrow, which costs extra.
        extra = {"perhaps_narrow": parts.get("perhaps_narrow", 0.0)} if not name else {}
        cost = step_ms(model.engine, {name: size, **extra}, model.costs)[1]
        label = _PART_NAMES.get(name, "layers" if name.endswith(("_layer", "step")) else "weights")
        if cost:
            by_part[label] = by_part.get(label, 0.0) + cost
    return by_part


def corrected_by_runs(fitted: Speed, model: StepModel, kv: KvCache) -> Speed:
    """The fitted figure, scaled by the error that it has on published runs of the same checkpoint."""
    launch = model.launch
    all_runs = published.runs_of(launch.model, launch.engine, launch.sparks)
    is_eager = launch.flags.get("enforce-eager") is True
    similar = [run for run in all_runs if ("eager" in run.note) == is_eager]
    if not similar:
        return fitted
    same = [run for run in similar if _is_same_recipe(run, launch, kv)]
    runs = same or similar
    ratios = [_ratio(model, run) for run in runs]
    mean = sum(ratios) / len(ratios)
    low, high = _spread_of(ratios, mean, bool(same))
    is_few = not same and len(similar) < _FEW_RUNS
    if is_few:  # one or two runs of another version narrow nothing, and a slower setting may apply
        low = min(low, *(_ratio(model, run) / mean for run in all_runs))

    def corrected(band: Band) -> Band:
        scaled = _with_errors(Band.exactly(band.expected * mean), low, high, fitted.bound_tokens_per_s)
        if not is_few:
            return scaled
        return Band(min(scaled.low, band.low), scaled.expected, max(scaled.high, band.high))

    return replace(
        fitted,
        decode_tokens_per_s=corrected(fitted.decode_tokens_per_s),
        basis="measured recipe" if same else "measured model",
        explanation=explain_runs(runs, bool(same), launch.sparks),
        sources=run_urls(runs),
        parts_ms={part: ms / mean for part, ms in fitted.parts_ms.items()},
        at_depth=tuple((depth, corrected(band)) for depth, band in fitted.at_depth),
    )


def _spread_of(ratios: Sequence[float], mean: float, is_same_recipe: bool) -> tuple[float, float]:
    """At least as wide as runs of one checkpoint by different authors were."""
    slower, faster = 1 - min(ratios) / mean, max(ratios) / mean - 1
    carried = constants().carried
    if is_same_recipe:
        return min(carried.low, 1 - slower), max(carried.high, 1 + faster)
    # Runs that differ among themselves say less about a launch that differs from all of them.
    return 1 - hypot(1 - carried.low, slower), 1 + hypot(carried.high - 1, faster)


def _is_same_recipe(run: PublishedRun, launch: Launch, kv: KvCache) -> bool:
    version = run.version.split(" ")[0].removeprefix("b")
    return not run.kind and version == launch.version and (run.kv_dtype or "auto") == kv.dtype


def _ratio(model: StepModel, run: PublishedRun) -> float:
    """Measured over fitted, at the depth and with the KV format of the run."""
    parts = terms(model.reads(run.middle_depth, run.kv_dtype), model.bandwidth)
    assert run.decode_tps is not None
    return run.decode_tps / model.tokens_per_s(parts).expected


# --- where it comes from ---

RUNS_ON_FOUR_SPARKS = (9, 1.6)
"""How many runs of one user on 4 Sparks are known, and how much faster than predicted the fastest was: 37
tok/s for Qwen3.5-397B-A17B in int4, where the others gave 23 to 26. Their sources do not say whether they
drafted, so nothing is fitted to them. `data/measured/runs.csv`, seen 2026-11-15."""


def explain_fit(model: StepModel, reads: StepReads) -> str:
    fit = fitted_costs(model.launch).decode
    text = (
        f"fitted to {fit.fitted.runs} runs of {fit.fitted.models} shapes on a GB10; models left out of "
        f"the fit were off by {fit.left_out.mean:.1%} on average, {fit.left_out.worst:.0%} at worst"
    )
    if not is_of_the_fit(model.launch):
        errors, engine = constants().elsewhere[model.launch.engine], model.launch.engine
        what = f"{errors.runs} runs of {engine}" if errors.runs > 1 else f"the one run of {engine}"
        text += f"; those are of vLLM 0.26: {what} by other people were off by {errors.mean:.0%}"
    if "" in reads.weights:
        text += "; the formats of the weights are not known, so the band covers all of them"
    if reads.unseen:
        text += f"; none of the runs has weights in {' or '.join(sorted(reads.unseen))}"
    return text + _explain_sparks(model.launch.sparks)


def _explain_sparks(sparks: int) -> str:
    """Nothing is fitted to runs on more than two Sparks."""
    if sparks < 2:
        return ""
    two, planned = constants().two_sparks, constants().planned_two_sparks
    runs = constants().all_reduce_ms.runs
    if sparks == 2:
        return (
            f"; on two Sparks: half the step plus all-reduces measured in {two.runs} runs, off by "
            f"{two.mean:.0%}; {planned.runs} runs by other people by {planned.mean:.0%}"
        )
    all_reduces = f"{sparks - 1} times the all-reduces of {runs} runs on two Sparks"
    if sparks == 4:
        return (
            f"; {all_reduces}; the {RUNS_ON_FOUR_SPARKS[0]} known runs on 4 Sparks do not say whether they "
            "used speculation, so they only widen the band"
        )
    return f"; no run on {sparks} Sparks is known: an extrapolation, with {all_reduces}"


def explain_runs(runs: Sequence[PublishedRun], is_same_recipe: bool, sparks: int) -> str:
    rates = sorted(run.decode_tps or 0 for run in runs)
    versions = sorted({run.version or "unnamed version" for run in runs})
    rate = f"{rates[0]:g}" if rates[0] == rates[-1] else f"{rates[0]:g} to {rates[-1]:g}"
    about = "about " if any(run.kind for run in runs) else ""
    count = "one published run" if len(runs) == 1 else f"{len(runs)} published runs"
    what = "this checkpoint, engine, version and KV cache" if is_same_recipe else "this checkpoint and engine"
    where = "a GB10" if sparks == 1 else f"{sparks} Sparks"
    return f"{about}{rate} tok/s in {count} of {what} on {where} ({', '.join(versions)})"


def run_urls(runs: Sequence[PublishedRun]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(published.run_sources()[run.source].url for run in runs))


def fit_urls(engine: str) -> tuple[str, ...]:
    return tuple(published.run_sources()[name].url for name in sorted(published.CALIBRATED[engine]))


# --- the weakest evidence: a share of the bandwidth bound ---


class ShareSchema(BandSchema, kw_only=True):
    engine: EngineName
    device: Literal["cpu", "gpu"]
    why: str
    sources: Sources
    layer_us: float = 0
    least_us: float = 0


class SharesSchema(FileValue, kw_only=True):
    shares: tuple[ShareSchema, ...]


@cache
def _shares() -> tuple[ShareSchema, ...]:
    return shipped_data.load("speed/shares.yaml", SharesSchema).shares


def roofline_speed(
    launch: Launch, shape: Architecture, stored: StoredBytes, tied_head: bool, kv: KvCache, bandwidth: float
) -> Speed:
    depth = min(DEPTH, kv.context)
    step_bytes = step_reads(costs_engine(launch), shape, stored, tied_head, depth, kv.dtype).bytes()
    bound = bandwidth / step_bytes
    device = "gpu" if launch.uses_gpu else "cpu"
    share = next(row for row in _shares() if (row.engine, row.device) == (launch.engine, device))
    layers_s = share.layer_us * len(shape.layers) / 1e6
    low, expected, high = (
        1 / max(1 / (bound * part) + layers_s * spread, share.least_us / 1e6 * spread)
        for part, spread in ((share.low, 1.5), (share.expected, 1), (share.high, 0.5))
    )
    return Speed(
        Band(low, expected, high),
        bound,
        round(step_bytes),
        bandwidth,
        "roofline",
        f"{share.expected:.0%} of the bandwidth bound: {share.why}",
        tuple(source.url for source in share.sources),
    )
