"""The speed model away from home: fitted on GB10s, with an H200's bandwidth, beside decode measured there.

    PYTHONPATH=src python benchmarks/gpu/speed_model.py

The measured rates are those of `record_vllm_boots.py` (`tests/planner/gpu`): random weights, 512 tokens in.
Costs of bytes are multiples of the time that the bandwidth takes; costs of layers (launches, small kernels)
are milliseconds. The second column scales the costs of layers by one factor, fitted to the first row alone.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from record_vllm_boots import changed_config

from firesteel.edge.checkpoints import open_path
from firesteel.engines.kv_cache import size_kv_cache
from firesteel.launch import FlagValue, Launch
from firesteel.planner.memory.account import loaded_weights
from firesteel.planner.speed.decode import StepModel, step_model, stored_bytes
from firesteel.values import replace

ROOT = Path(__file__).resolve().parent.parent.parent
BANDWIDTH = 4.8e12
"""https://www.nvidia.com/en-us/data-center/h200/, seen 2026-11-15"""
DEPTH = 656
"""512 tokens in, and the middle of 16 to 272 out."""
INDEPENDENCE = 0.9
"""Of the experts that several users choose: `crowd` in data/speed/fitted.yaml."""


def main() -> int:
    lines = (ROOT / "tests/planner/gpu/vllm-0.26.0-h200.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if "decode_tokens_per_s_1" in row]
    models = {row["name"]: model(row) for row in rows}
    factor = layer_factor(models[rows[0]["name"]], rows[0]["decode_tokens_per_s_1"])
    print(f"costs of layers x {factor:.2f}, from {rows[0]['name']}")
    for row in rows:
        for users in (1, 4):
            measured = row[f"decode_tokens_per_s_{users}"]
            plain, scaled = (users * rate(models[row["name"]], users, by) for by in (1.0, factor))
            print(
                f"{row['name']:<24} {users} users  measured {measured:7.1f}  "
                f"GB10's layers {plain:7.1f} ({plain / measured - 1:+.0%})  "
                f"scaled {scaled:7.1f} ({scaled / measured - 1:+.0%})"
            )
    return 0


def model(row: dict[str, Any]) -> StepModel:
    config = changed_config(row, ROOT / "tests/facts/configs")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "config.json")
        file.write_text(json.dumps(config))
        found = open_path(str(file), None)
    flags: dict[str, FlagValue] = {
        name.replace("_", "-"): str(row[name]) for name in ("max_model_len", "max_num_seqs")
    }
    launch = Launch("x", "x", "vllm", "0.26.0", flags)
    weights = loaded_weights(launch, found.architecture, found.weights).weights
    kv = size_kv_cache(launch, found.architecture, 4096, 1)
    stored = stored_bytes(weights)
    return step_model(launch, found.architecture, stored, weights.tied_head, kv, BANDWIDTH)


def rate(model: StepModel, users: int, layers_by: float) -> float:
    costs = {name: cost * (layers_by if name.endswith("_layer") else 1) for name, cost in model.costs.items()}
    scaled = replace(model, costs=costs)
    return scaled.tokens_per_s(scaled.terms(DEPTH, users, INDEPENDENCE)).expected


def layer_factor(model: StepModel, measured: float) -> float:
    low, high = 0.0, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if rate(model, 1, middle) > measured else (low, middle)
    return low


if __name__ == "__main__":
    sys.exit(main())
