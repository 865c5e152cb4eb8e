"""Decode speed of one user on a GB10: the fitted figure, corrected by published runs of the checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot

from firesteel.engines.kv_cache import KvCache
from firesteel.launch import Launch
from firesteel.planner.speed import published
from firesteel.planner.speed.constants import constants
from firesteel.planner.speed.decode import StepReads, step_ms, terms
from firesteel.planner.speed.provenance import (
    RUNS_ON_FOUR_SPARKS,
    explain_fit,
    explain_runs,
    fit_urls,
    run_urls,
)
from firesteel.planner.speed.published import PublishedRun
from firesteel.planner.speed.speed import DEPTH, Speed
from firesteel.planner.speed.step_model import StepModel
from firesteel.units import Band
from firesteel.values import replace

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
