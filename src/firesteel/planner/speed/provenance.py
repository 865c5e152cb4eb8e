"""Where a predicted speed comes from, in words and as URLs."""

from __future__ import annotations

from collections.abc import Sequence

from firesteel.planner.speed import published
from firesteel.planner.speed.constants import constants
from firesteel.planner.speed.decode import StepReads
from firesteel.planner.speed.published import PublishedRun
from firesteel.planner.speed.step_model import StepModel, fitted_costs, is_of_the_fit

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
