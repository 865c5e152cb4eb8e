"""Which weights are kept, and which share a global scale."""

from __future__ import annotations

import pytest

from firesteel.facts.model.tensors import quantize_policy, role_of, scale_groups, scale_partners, split_leaf

LAYER = "model.layers.3."


@pytest.mark.parametrize(
    ("name", "module", "leaf"),
    [
        (f"{LAYER}self_attn.q_proj.weight", f"{LAYER}self_attn.q_proj", "weight"),
        (f"{LAYER}mlp.experts.7.up_proj.weight_scale_2", f"{LAYER}mlp.experts.7.up_proj", "weight_scale_2"),
        (f"{LAYER}mlp.experts.gate_up_proj", f"{LAYER}mlp.experts.gate_up_proj", ""),
        (f"{LAYER}linear_attn.A_log", f"{LAYER}linear_attn.A_log", ""),
        ("weight", "weight", ""),
    ],
)
def test_split_leaf(name: str, module: str, leaf: str) -> None:
    assert split_leaf(name) == (module, leaf)


def test_partners_stand_in_one_parent() -> None:
    assert scale_partners("a.experts.7.up_proj") == ("a.experts.7.gate_proj", "a.experts.7.up_proj")
    assert scale_partners("a.down_proj") == ("a.down_proj",)
    assert scale_partners("lm_head") == ("lm_head",)


def test_groups_keep_the_order_and_miss_nobody() -> None:
    names = [
        "a.k_proj",
        "a.o_proj",
        "a.q_proj",
        "b.q_a_proj",
        "b.kv_a_proj_with_mqa",
        "a.w3",
        "a.w1",
        "c.in_proj_z",
    ]
    assert scale_groups(names) == (
        ("a.k_proj", "a.q_proj"),
        ("a.o_proj",),
        ("b.q_a_proj", "b.kv_a_proj_with_mqa"),
        ("a.w3", "a.w1"),
        ("c.in_proj_z",),
    )


KEPT = [
    "model.embed_tokens", "lm_head", f"{LAYER}mlp.gate", f"{LAYER}mlp.shared_expert_gate",
    f"{LAYER}linear_attn.conv1d", f"{LAYER}linear_attn.in_proj_ba", f"{LAYER}linear_attn.in_proj_a",
    "model.visual.blocks.0.mlp.linear_fc1", "mtp.layers.0.mlp.experts.0.up_proj", 
    f"{LAYER}self_attn.indexer.wq_b",
]  # fmt: skip
QUANTIZED = [
    f"{LAYER}self_attn.q_proj", f"{LAYER}mlp.gate_proj", f"{LAYER}mlp.experts.0.up_proj",
    f"{LAYER}mlp.shared_expert.down_proj", f"{LAYER}linear_attn.in_proj_qkv", f"{LAYER}self_attn.kv_b_proj",
]  # fmt: skip


@pytest.mark.parametrize("module", KEPT)
def test_kept_with_a_reason(module: str) -> None:
    rule = quantize_policy().kept_by(module, role_of(f"{module}.weight"), "qwen3_next", "nvfp4")
    assert rule is not None
    assert rule.why


@pytest.mark.parametrize("module", QUANTIZED)
def test_quantized(module: str) -> None:
    assert quantize_policy().kept_by(module, role_of(f"{module}.weight"), "qwen3_next", "nvfp4") is None


def test_the_head_is_quantized_only_for_spark() -> None:
    role = role_of("lm_head.weight")
    assert quantize_policy().kept_by("lm_head", role, "llama", "fp8-dynamic")
    assert quantize_policy().kept_by("lm_head", role, "llama", "nvfp4-spark") is None
