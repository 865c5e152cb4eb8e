"""Several users as plans simulate them, held against real engines on a real GPU.

`benchmarks/gpu/serve_users.py measure` asked vLLM 0.26.0 and llama.cpp b11434 on an H200 on 2026-11-16:
models of 14B with random weights. Costs of a step are fitted to prompts alone and to users that only decode;
nothing is fitted to what is predicted: users that send the next prompt as soon as the last one is answered.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("serve_users", ROOT / "benchmarks/gpu/serve_users.py")
assert spec and spec.loader
serve_users = importlib.util.module_from_spec(spec)
spec.loader.exec_module(serve_users)
RUNS = {
    run["name"]: run
    for run in map(json.loads, (ROOT / "tests/planner/gpu/served-h200.jsonl").read_text().splitlines())
}


@pytest.mark.parametrize("name", RUNS)
def test_the_simulation_meets_what_was_measured(name: str) -> None:
    """Bars as for plans of a Spark with one model left out: 20 % each, 25 % in all, 35 % for first tokens."""
    rows = serve_users.simulated(RUNS[name])
    assert len(rows) >= 2
    each, in_all, first_token = serve_users.mean_errors(rows)
    assert each < 0.20
    assert in_all < 0.25
    assert first_token < 0.35


def test_decoding_alone_would_not() -> None:
    """The same costs without prompts that arrive, as a formula for a batch has it, are far too high."""
    run = RUNS["vLLM 0.26, steps of 2048"]
    steps = serve_users.MeasuredSteps(run)
    row, (each, *_), _ = serve_users.simulated(run)[-1]
    assert 1000 / steps.step_ms(row["users"], row["prompt"] + row["answer"] / 2, []) > 1.5 * each
