#!/usr/bin/env python3
"""How far off the simulation of several users is, by prompt length and number of users, on published runs.

    .venv-dev/bin/python benchmarks/users.py

djangodevreng's runs of vLLM 0.26 on a GB10: 5, 10 and 20 users who send prompts of 256 to 25,000 tokens at
the same moment. Each figure twice: fitted to all runs, and for each shape with costs fitted to all others.
Beside it what the figure without arriving prompts (all users decode at once) makes of the same runs.
Exits 1 when a bar is missed: 15 and 20 % fitted, 20 and 25 % left out, for each user and in all.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean, median

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
from calibration.decode import predicted_tps
from calibration.serving import PredictedRun, fit_without, predictions, served_errors

BARS = {False: (0.15, 0.20), True: (0.20, 0.25)}


def no_prompts(predicted: list[PredictedRun]) -> dict[int, float]:
    """Each user's rate if only decoding is counted."""
    costs = fit_without(None)
    merged = {**costs.decode, **costs.batch}
    return {id(one): predicted_tps("vllm", one.run, merged) for one in predicted}


def show_first_tokens(predicted: list[PredictedRun]) -> None:
    """Of one user; those of 1,024 tokens are the first after a start."""
    errors: defaultdict[int, list[float]] = defaultdict(list)
    for one in predicted:
        if one.run.users == 1 and one.run.ttft_ms:
            errors[one.run.depth or 0].append(abs(one.first_token_ms / one.run.ttft_ms - 1))
    print("\n| prompt of one user | runs | first token, left out | median |\n|---|---|---|---|")
    for depth, cells in sorted(errors.items()):
        print(f"| {depth:,} | {len(cells)} | {mean(cells):.1%} | {median(cells):.1%} |")
    print()


def main() -> int:
    fitted, left_out = predictions(False), predictions(True)
    decode_only = no_prompts(fitted)
    rows: defaultdict[tuple[int, int, int], list[list[float]]] = defaultdict(lambda: [[], [], [], [], [], []])
    for one, other in zip(fitted, left_out, strict=True):
        run = one.run
        if run.users < 2 or not (run.decode_tps and run.total_tps and run.ttft_ms):
            continue
        cells = rows[run.depth or 0, run.users, run.generated]
        cells[0].append(abs(decode_only[id(one)] / run.decode_tps - 1))
        cells[1].append(abs(one.each / run.decode_tps - 1))
        cells[2].append(abs(other.each / run.decode_tps - 1))
        cells[3].append(abs(one.total / run.total_tps - 1))
        cells[4].append(abs(other.total / run.total_tps - 1))
        cells[5].append(abs(other.first_token_ms / run.ttft_ms - 1))
    print("| prompt | users | answer | runs | each, decoding only | each, fitted | left out |"
          " in all, fitted | left out | first token, left out (median) |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|")
    for (depth, users, answer), cells in sorted(rows.items()):
        means = " | ".join(f"{mean(cell):.1%}" for cell in cells[:5])
        print(f"| {depth:,} | {users} | {answer} | {len(cells[0])} | {means} | {median(cells[5]):.1%} |")
    show_first_tokens(left_out)
    missed = 0
    for is_left_out, predicted in ((False, fitted), (True, left_out)):
        errors = served_errors(predicted)
        for name, bar in zip(("each", "total"), BARS[is_left_out], strict=True):
            error = getattr(errors, name).mean
            missed += error > bar
            print(f"{'left out' if is_left_out else 'fitted':<9}{name:<6} {error:.1%} (bar {bar:.0%})")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
