"""Plans held against what llama.cpp b11434 took on an H200 on 2026-11-16, to the MiB.

`benchmarks/gpu/random_ggufs.py` made six files with random weights and loaded them.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from firesteel.edge.checkpoints import open_path
from firesteel.facts.host.hardware import Gpu, Host, hardware, idle_host
from firesteel.facts.model.tensors import Tensor, Weights, role_of, sum_weights
from firesteel.launch import EngineProgram, FlagValue, Launch
from firesteel.planner.plan import Plan, plan
from firesteel.units import GIB, MIB
from firesteel.values import replace

ROOT = Path(__file__).parent.parent.parent
RECORDED = (Path(__file__).parent / "gpu/llamacpp-11434-h200.jsonl").read_text()
LOADED = {row["name"]: row for row in map(json.loads, RECORDED.splitlines())}
VOCAB = 49152
BYTES = {"F16": 2.0, "Q8_0": 34 / 32, "Q4_0": 18 / 32}
SPARK = idle_host(hardware("gb10"))
H200 = Host(
    "local", "a server", None, 16, 128 * GIB, 120 * GIB, 0, None, "reported",
    (Gpu("NVIDIA H200", "580.159", "9.0", 143771 * MIB),),
)  # fmt: skip


def random_ggufs() -> Any:
    spec = importlib.util.spec_from_file_location("random_ggufs", ROOT / "benchmarks/gpu/random_ggufs.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def weights(shape: dict[str, Any]) -> Weights:
    tensors = []
    for name, dims in random_ggufs().tensors(shape, VOCAB).items():
        count = 1
        for side in dims:
            count *= side
        plain = len(dims) == 1 or name.endswith("ffn_gate_inp.weight")
        kind = "F32" if plain else shape["type"]
        size = round(count * (4 if plain else BYTES[shape["type"]]))
        tensors.append(Tensor(name, kind, dims, size, role_of(name)))
    return sum_weights(tensors, "counted", "made")


def planned(name: str, host: Host, folder: Path) -> Plan:
    row = LOADED[name]
    shape = row["shape"]
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": VOCAB, "head_dim": 64,
        "hidden_size": shape["hidden"], "intermediate_size": shape["inner"], "rms_norm_eps": 1e-5,
        "num_hidden_layers": shape["layers"], "num_attention_heads": shape["heads"], "torch_dtype": "float16",
        "num_key_value_heads": shape["kv"], "max_position_embeddings": 8192,
        "tie_word_embeddings": shape["tied"],
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    found = open_path(str(folder / "config.json"), None)
    flags: dict[str, FlagValue] = {"ctx-size": str(row["context"]), "parallel": "1"}
    program = EngineProgram(("llama-server",), "11434", uses_gpu=bool(host.gpus or host.hardware))
    launch = Launch("x", "x", "llamacpp", "11434", flags, program=program)
    return plan(launch, found.architecture, weights(shape), host)


def part(plan: Plan, name: str) -> float:
    return next(part.bytes.expected for part in plan.memory.parts if part.name == name) / MIB


def loaded(name: str, kind: str, place: str) -> float:
    return sum(
        float(size)
        for where, what, size in LOADED[name]["buffers"]
        if what == kind and where.startswith(place)
    )


@pytest.mark.parametrize("name", LOADED)
def test_weights_and_cache_on_a_gpu_to_the_mib(name: str, tmp_path: Path) -> None:
    own = planned(name, H200, tmp_path)
    assert part(own, "weights") == pytest.approx(loaded(name, "model", "CUDA"), abs=0.01)
    assert part(own, "KV cache") == pytest.approx(loaded(name, "KV", "CUDA"), abs=0.01)


@pytest.mark.parametrize("name", LOADED)
def test_a_shared_memory_holds_what_is_on_both_sides(name: str, tmp_path: Path) -> None:
    shared = part(planned(name, SPARK, tmp_path), "weights")
    assert shared == pytest.approx(loaded(name, "model", ""), abs=0.02)


def test_nothing_is_loaded_twice_without_a_gpu(tmp_path: Path) -> None:
    name = "llama-tied-f16"
    without = planned(name, replace(H200, gpus=()), tmp_path)
    assert part(without, "weights") == pytest.approx(loaded(name, "model", "CUDA"), abs=0.01)
