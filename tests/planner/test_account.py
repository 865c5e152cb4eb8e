"""Weights as an engine holds them."""

from __future__ import annotations

import pytest

from firesteel.facts.model.architecture import Architecture, FullAttention
from firesteel.facts.model.tensors import Role, Weights
from firesteel.launch import EngineName, FlagValue, Launch
from firesteel.planner.memory.account import loaded_weights

SHAPE = Architecture("qwen3", (FullAttention(8, 128, 128),), 4096, 1000, 8192)
WEIGHTS = Weights(
    {Role.ATTENTION: 100, Role.DRAFTER: 7},
    "counted",
    "a header",
    bytes_by_format={(Role.ATTENTION, "BF16"): 100, (Role.DRAFTER, "BF16"): 7},
)
MTP: dict[str, FlagValue] = {"speculative-config": {"method": "mtp", "num_speculative_tokens": 2}}


@pytest.mark.parametrize(
    ("engine", "flags", "total"),
    [
        ("vllm", {}, 100),
        ("vllm", MTP, 107),
        ("sglang", {}, 100),
        ("sglang", {"speculative-algorithm": "NEXTN"}, 107),
        ("llamacpp", {}, 107),
    ],
)
def test_an_unused_drafter_is_not_loaded(engine: EngineName, flags: dict[str, FlagValue], total: int) -> None:
    held = loaded_weights(Launch("m", "org/m", engine, flags=flags), SHAPE, WEIGHTS).weights
    assert held.total_bytes == total == sum(held.bytes_by_format.values())
    assert ("not loaded" in held.source) == (total == 100)
