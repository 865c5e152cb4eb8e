#!/usr/bin/env python3
"""How far off the predicted decode speed is, beside the formulas of other tools, on the same published runs.

    .venv/bin/python benchmarks/speed.py

One user, no speculation, measured rungs off: vLLM 0.26 and llama.cpp. Ours appears twice: fitted to all runs,
and for each shape with the constants fitted to all others. The others are reimplemented from their sources,
at the commits named below, with the parameter counts of the same shapes:

    llmfit     llmfit-core/src/fit.rs and models.rs at 3f44fd3: it has no bandwidth for a GB10, so a constant
               of 220 over active parameters, times a factor of the quantization, times 1.1 for many cores
    whichllm   src/whichllm/engine/performance.py at a897551: bandwidth over file size times the share of
               active parameters (at least 5.3 % at 273 GB/s), times an efficiency of the quantization
    nominal    bits of the label times active parameters, at 72 % of the bandwidth, which is the best single
               share for bytes counted exactly; no tool's own formula, but what people calculate with

Bars: ours at most 5 % fitted and 10 % left out, in both strata. Exits 1 when one is missed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import hypot
from pathlib import Path

from firesteel.facts.model.tensors import Role
from firesteel.planner.speed.decode import ErrorsSchema, constants
from firesteel.planner.speed.published import PublishedRun
from firesteel.values import replace

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
from calibration.measured_models import models

from calibration import decode, run_pairs

BARS = (0.05, 0.10)
GB_PER_S = decode.BANDWIDTH / 1e9
BYTES = {"BF16": 2.0, "F8_E4M3": 1.0, "NVFP4": 0.5625, "MXFP4": 0.53125, "F32": 4.0,
         "Q8_0": 34 / 32, "Q6_K": 210 / 256, "Q5_K": 176 / 256, "Q4_K": 144 / 256,
         "Q5_1": 0.75, "Q5_0": 22 / 32, "Q4_0": 18 / 32}  # fmt: skip
LLMFIT_FACTORS = {"BF16": 0.6, "Q8_0": 0.8, "Q4_K_M": 1.15, "Q4_0": 1.15}
WHICHLLM_SHARES = {"BF16": 0.40, "Q8_0": 0.45, "Q4_K_M": 0.55, "Q4_0": 0.53, "NVFP4": 0.56, "MXFP4": 0.55}
NOMINAL_BITS = {"BF16": 16, "FP8": 8, "NVFP4": 4, "MXFP4": 4, "Q8_0": 8, "Q4_K_M": 4, "Q4_K": 4, "Q4_0": 4}


def billions(run: PublishedRun) -> tuple[float, float]:
    """Parameters in all, and those that a token passes, as a model card counts them."""
    sheet = models().shapes[run.shape]
    total = active = 0.0
    for (role, dtype), size in sheet.stored(run.layout).items():
        parameters = size / BYTES[dtype] / 1e9
        total += parameters
        routed = role is Role.ROUTED_EXPERTS
        active += parameters * (sheet.experts_per_token / sheet.experts if routed else 1)
    return total, active


def label(run: PublishedRun) -> str:
    return run.quant.upper().removeprefix("QAT-")


def llmfit(run: PublishedRun) -> float:
    return 220 / max(0.1, billions(run)[1]) * LLMFIT_FACTORS.get(label(run), 1.0) * 1.1


def whichllm(run: PublishedRun) -> float:
    total, active = billions(run)
    size = sum(models().shapes[run.shape].stored(run.layout).values()) / 1e9
    is_moe = bool(models().shapes[run.shape].experts)
    ratio = min(1.0, max(active / total, 0.05 * GB_PER_S / 256)) if is_moe else 1.0
    return GB_PER_S / (size * ratio) * WHICHLLM_SHARES.get(label(run), 0.45)


def nominal(run: PublishedRun) -> float:
    return 0.72 * GB_PER_S / (billions(run)[1] * NOMINAL_BITS[label(run)] / 8)


OTHERS: tuple[Callable[[PublishedRun], float], ...] = (llmfit, whichllm, nominal)


def line(name: str, off: ErrorsSchema) -> str:
    return f"  {name:<26} mean {off.mean:6.1%}   worst {off.worst:6.0%}"


def main() -> int:
    missed = False
    for engine in decode.COSTS:
        found, runs = decode.calibrate_decode(engine), decode.single_user_runs(engine)
        print(f"{engine}: {found.fitted.runs} runs, {found.fitted.models} shapes, one user, no speculation")
        print(line("firesteel, fitted", found.fitted))
        print(line("firesteel, shape left out", found.left_out))
        for formula in OTHERS:
            print(line(formula.__name__, decode.run_errors((run, formula(run)) for run in runs)))
        missed |= found.fitted.mean > BARS[0] or found.left_out.mean > BARS[1]
    show_rest()
    return int(missed)


def show_rest() -> None:
    """Strata without a bar."""
    shipped = constants()
    for engine, sheet in shipped.engines.items():
        for what, fit in (("several users", sheet.crowd), ("first token of long prompts", sheet.prefill)):
            print(f"{engine}, {what}: {fit.left_out.runs} runs")
            print(line("fitted", fit.fitted))
            print(line("shape left out", fit.left_out))
    show_hands()


def show_hands() -> None:
    """By whose hands: the band that a plan has for a launch of this kind, and how many runs lie in it that
    were left out of what the band is made of."""
    shipped = constants()
    costs = {engine: fits.decode.costs for engine, fits in shipped.engines.items()}
    hands = run_pairs.other_hands(costs)
    print("\n| runs | rows | mean error | band | inside, left out |\n|---|---|---|---|---|")
    for engine, fits in shipped.engines.items():
        off = fits.decode.left_out
        low = 1 - hypot(1 - off.low, 1 - shipped.carried.low)
        high = 1 + hypot(off.high - 1, shipped.carried.high - 1)
        inside = [low <= ratio <= high for ratio in left_out_ratios(engine)]
        show_band(f"{engine}, those of the fit", replace(off, low=low, high=high), inside)
    for engine, off in shipped.elsewhere.items():
        show_band(f"{engine}, other people", off, run_pairs.held(hands, engine))
    all_reduce_ms = shipped.all_reduce_ms.expected
    two = run_pairs.planned_two_sparks(all_reduce_ms, costs) + run_pairs.two_sparks(all_reduce_ms)
    off = run_pairs.with_range(decode.run_errors(two), *run_pairs.range_of(two))
    show_band("two Sparks", off, [run_pairs.is_held(two, each) for each in two])


def show_band(name: str, off: ErrorsSchema, inside: list[bool]) -> None:
    share = f"{sum(inside)} of {len(inside)}"
    print(f"| {name} | {off.runs} | {off.mean:.1%} | {off.low:.2f} to {off.high:.2f} | {share} |")


def left_out_ratios(engine: str) -> list[float]:
    """Measured over predicted, each shape with the costs of the others."""
    runs, ratios = decode.single_user_runs(engine), []
    for shape in {run.shape for run in runs}:
        costs = decode.fit_decode_costs(engine, [run for run in runs if run.shape != shape])
        own = [run for run in runs if run.shape == shape]
        ratios += [(run.decode_tps or 0) / decode.predicted_tps(engine, run, costs) for run in own]
    return ratios


if __name__ == "__main__":
    sys.exit(main())
