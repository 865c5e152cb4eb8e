"""What a step takes, held against vLLM's own profile run on a real GPU.

`benchmarks/gpu/record_vllm_peaks.py` booted vLLM 0.26.0 on an H200 on 2026-11-16, models cut to a few layers
with random weights. The factors of `step_memory` were chosen on the rows without `judge`; the others judge.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from firesteel.edge.checkpoints import open_path
from firesteel.facts.model.architecture import Architecture
from firesteel.launch import Launch
from firesteel.planner.memory.account import StepLoad, activations, rotary_tables
from firesteel.units import MIB

CONFIGS = Path(__file__).parent.parent / "facts" / "configs"
RECORDED = (Path(__file__).parent / "gpu/vllm-0.26.0-h200-peaks.jsonl").read_text()
ROWS = {row["name"]: row for row in map(json.loads, RECORDED.splitlines()) if "failed" not in row}
OUTSIDE = {
    "gpt-oss": "Triton's kernels for MXFP4 on an H200 keep no workspace; Marlin's, which a GB10 uses, do",
    "deepseek-v3": "cut to one layer of experts: its attention ran before there was a workspace",
    "kimi-k2": "cut to one layer of experts: its attention ran before there was a workspace",
}
"""Planned higher than seen, by up to 1.8 times, and why."""


def shape_of(row: dict[str, Any], folder: Path) -> Architecture:
    config = json.loads((CONFIGS / row["config"]).read_text())
    for path, value in row.get("set", {}).items():
        *parents, key = path.split(".")
        holder = config
        for parent in parents:
            holder = holder[parent]
        if value is None:
            holder.pop(key, None)
        else:
            holder[key] = holder[key][: value["first"]] if isinstance(value, dict) else value
    (folder / "config.json").write_text(json.dumps(config))
    return open_path(str(folder / "config.json"), None).architecture


def launch(*, eager: bool) -> Launch:
    return Launch("x", "x", "vllm", "0.26.0", {"enforce-eager": True} if eager else {})


@pytest.mark.parametrize("name", sorted(ROWS))
def test_the_peak_of_a_step_is_inside_a_band_of_a_factor_of_two(name: str, tmp_path: Path) -> None:
    row = ROWS[name]
    load = StepLoad(row["tokens"], row["sequences"], min(row["sequences"], row["tokens"]), 8192)
    planned = activations(launch(eager=not row.get("graphs")), shape_of(row, tmp_path), load)
    seen = max(row["forward_bytes"], row["sampler_bytes"])
    assert planned.high <= 2.001 * planned.low
    assert seen <= planned.high
    if not any(name.startswith(prefix) for prefix in OUTSIDE):
        assert planned.low <= seen


def test_most_rows_that_judge_are_close(tmp_path: Path) -> None:
    errors = []
    for row in (row for row in ROWS.values() if row.get("judge")):
        load = StepLoad(row["tokens"], row["sequences"], min(row["sequences"], row["tokens"]), 8192)
        planned = activations(launch(eager=True), shape_of(row, tmp_path), load)
        errors.append(abs(planned.expected / max(row["forward_bytes"], row["sampler_bytes"]) - 1))
    assert len(errors) > 40
    assert sorted(errors)[int(0.8 * len(errors))] < 0.2


def test_attention_beside_the_workspace_of_experts(tmp_path: Path) -> None:
    """DeepSeek-V3 with three layers of experts took 9.35 GiB with 16,384 tokens a step and 1,024 requests."""
    row = {"config": "deepseek-ai--DeepSeek-V3.json", "set": {"num_hidden_layers": 6}}
    load = StepLoad(16384, 1024, 1024, 32768)
    planned = activations(launch(eager=True), shape_of(row, tmp_path), load)
    assert planned.expected == pytest.approx(9570 * MIB, rel=0.05)


def test_ten_million_positions_have_a_table(tmp_path: Path) -> None:
    scout = shape_of({"config": "meta-llama--Llama-4-Scout-17B-16E-Instruct.json"}, tmp_path)
    assert rotary_tables(scout) == 2560 * MIB
