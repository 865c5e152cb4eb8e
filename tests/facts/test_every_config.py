"""Every config of the reference data is read, and what is not known is refused by name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.facts.model.architecture import LinearAttention, UnknownArchitecture
from firesteel.facts.model.config import architecture_of_config

from .test_config import CONFIGS, DSA, MLA, WINDOW, load_config, of, small, summary

FULL, SLIDING = "full_attention", "sliding_attention"


EVERY = {
    "MiniMaxAI--MiniMax-M2.5": ("F62", "", 256, 8),
    "MiniMaxAI--MiniMax-M2.7": ("F62", "", 256, 8),
    "MiniMaxAI--MiniMax-M3": ("F3 X57", "X1", 128, 4),
    "Qwen--Qwen3-0.6B": ("F28", "", 0, 0),
    "Qwen--Qwen3-1.7B": ("F28", "", 0, 0),
    "Qwen--Qwen3-235B-A22B-FP8": ("F94", "", 128, 8),
    "Qwen--Qwen3-235B-A22B": ("F94", "", 128, 8),
    "Qwen--Qwen3-30B-A3B-FP8": ("F48", "", 128, 8),
    "Qwen--Qwen3-30B-A3B": ("F48", "", 128, 8),
    "Qwen--Qwen3-32B-FP8-Static-PerTensor": ("F64", "", 0, 0),
    "Qwen--Qwen3-32B-FP8": ("F64", "", 0, 0),
    "Qwen--Qwen3-32B": ("F64", "", 0, 0),
    "Qwen--Qwen3-8B": ("F36", "", 0, 0),
    "Qwen--Qwen3-Coder-480B-A35B-Instruct": ("F62", "", 160, 8),
    "Qwen--Qwen3-VL-235B-A22B-Instruct": ("F94", "", 128, 8),
    "Qwen--Qwen3-VL-2B-Instruct": ("F28", "", 0, 0),
    "Qwen--Qwen3-VL-30B-A3B-Instruct": ("F48", "", 128, 8),
    "Qwen--Qwen3-VL-32B-Instruct": ("F64", "", 0, 0),
    "Qwen--Qwen3-VL-32B-Thinking": ("F64", "", 0, 0),
    "Qwen--Qwen3-VL-4B-Instruct": ("F36", "", 0, 0),
    "Qwen--Qwen3-VL-8B-Instruct": ("F36", "", 0, 0),
    "Qwen--Qwen3.5-122B-A10B": ("L36 F12", "F1", 256, 8),
    "Qwen--Qwen3.5-27B": ("L48 F16", "F1", 0, 0),
    "Qwen--Qwen3.5-35B-A3B": ("L30 F10", "F1", 256, 8),
    "Qwen--Qwen3.5-397B-A17B": ("L45 F15", "F1", 512, 10),
    "XiaomiMiMo--MiMo-7B-Base": ("F36", "F1", 0, 0),
    "XiaomiMiMo--MiMo-V2-Flash": ("F9 S39", "", 256, 8),
    "deepseek-ai--DeepSeek-R1": ("A61", "A1", 256, 8),
    "deepseek-ai--DeepSeek-V3.2": ("I61", "I1", 256, 8),
    "deepseek-ai--DeepSeek-V3": ("A61", "A1", 256, 8),
    "deepseek-ai--DeepSeek-V4-Flash": ("D43", "D1", 256, 6),
    "deepseek-ai--DeepSeek-V4-Pro": ("D61", "D1", 384, 6),
    "google--gemma-4-26B-A4B": ("S25 F5", "", 128, 8),
    "meta-llama--Llama-4-Maverick-17B-128E-Instruct": ("C36 F12", "", 128, 1),
    "meta-llama--Llama-4-Scout-17B-16E-Instruct": ("C36 F12", "", 16, 1),
    "meta-llama--Meta-Llama-3.1-405B": ("F126", "", 0, 0),
    "meta-llama--Meta-Llama-3.1-70B": ("F80", "", 0, 0),
    "meta-llama--Meta-Llama-3.1-8B": ("F32", "", 0, 0),
    "mistralai--Mixtral-8x22B-v0.1": ("F56", "", 8, 2),
    "mistralai--Mixtral-8x7B-v0.1": ("F32", "", 8, 2),
    "moonshotai--Kimi-K2-Instruct": ("A61", "", 384, 8),
    "moonshotai--Kimi-K2.5": ("A61", "", 384, 8),
    "moonshotai--Kimi-K3": ("L69 A24", "", 896, 16),
    "nvidia--DeepSeek-V3.1-NVFP4": ("A61", "A1", 256, 8),
    "nvidia--DeepSeek-V3.2-NVFP4": ("I61", "I1", 256, 8),
    "nvidia--DeepSeek-V4-Flash-NVFP4": ("D43", "D1", 256, 6),
    "nvidia--DeepSeek-V4-Pro-NVFP4": ("D61", "D1", 384, 6),
    "nvidia--GLM-5-NVFP4": ("I78", "I1", 256, 8),
    "nvidia--GLM-5.1-NVFP4": ("I78", "I1", 256, 8),
    "nvidia--GLM-5.2-NVFP4": ("I21 A57", "I1", 256, 8),
    "nvidia--Gemma-4-26B-A4B-NVFP4": ("S25 F5", "", 128, 8),
    "nvidia--Gemma-4-31B-IT-NVFP4": ("S50 F10", "", 0, 0),
    "nvidia--Kimi-K2.5-NVFP4": ("A61", "", 384, 8),
    "nvidia--Kimi-K2.6-NVFP4": ("A61", "", 384, 8),
    "nvidia--Kimi-K2.7-Code-NVFP4": ("A61", "", 384, 8),
    "nvidia--Llama-3.1-70B-Instruct-FP8": ("F80", "", 0, 0),
    "nvidia--Llama-3_3-Nemotron-Super-49B-v1": ("F49 -31", "", 0, 0),
    "nvidia--MiniMax-M2.5-NVFP4": ("F62", "", 256, 8),
    "nvidia--MiniMax-M2.7-NVFP4": ("F62", "", 256, 8),
    "nvidia--MiniMax-M3-NVFP4": ("F3 X57", "", 128, 4),
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": ("M23 E23 F6", "", 128, 6),
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4": ("M23 E23 F6", "", 128, 6),
    "nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-FP8": ("M40 E40 F8", "F1 E1", 512, 22),
    "nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4": ("M40 E40 F8", "F1 E1", 512, 22),
    "nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": ("M48 E48 F12", "F1 E1", 512, 22),
    "nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-FP8": ("M48 E48 F12", "F1 E1", 512, 22),
    "nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4": ("M48 E48 F12", "F1 E1", 512, 22),
    "nvidia--NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4": ("M23 E23 F6", "F1 E1", 128, 6),
    "nvidia--Nemotron-H-56B-Base-8K": ("M54 -54 F10", "", 0, 0),
    "nvidia--Qwen3-235B-A22B-NVFP4": ("F94", "", 128, 8),
    "nvidia--Qwen3.5-122B-A10B-NVFP4": ("L36 F12", "F1", 256, 8),
    "nvidia--Qwen3.5-397B-A17B-NVFP4": ("L45 F15", "F1", 512, 10),
    "nvidia--Qwen3.6-27B-NVFP4": ("L48 F16", "F1", 0, 0),
    "nvidia--Qwen3.6-35B-A3B-NVFP4": ("L30 F10", "F1", 256, 8),
    "openai--gpt-oss-120b": ("S18 F18", "", 128, 4),
    "openai--gpt-oss-20b": ("S12 F12", "", 32, 4),
    "sgl-project--DeepSeek-V4-Flash-FP8": ("D43", "D1", 256, 6),
    "sgl-project--DeepSeek-V4-Pro-FP8": ("D61", "D1", 384, 6),
    "stepfun-ai--Step-3.7-Flash-FP8": ("F12 S33", "F3", 288, 8),
    "stepfun-ai--Step-3.7-Flash": ("F12 S33", "F3", 288, 8),
    "zai-org--GLM-5-FP8": ("I78", "I1", 256, 8),
    "zai-org--GLM-5.1-FP8": ("I78", "I1", 256, 8),
    "zai-org--GLM-5.1": ("I78", "I1", 256, 8),
    "zai-org--GLM-5.2-FP8": ("I21 A57", "I1", 256, 8),
    "zai-org--GLM-5.2": ("I21 A57", "I1", 256, 8),
    "zai-org--GLM-5": ("I78", "I1", 256, 8),
}
"""Layers, drafters, and experts with how many a token uses, of every config of the reference data."""


@pytest.mark.parametrize("name", sorted(path.stem for path in CONFIGS.glob("*.json")))
def test_every_config_is_read(name: str) -> None:
    found = of(name)
    assert (summary(found.layers), summary(found.drafters), found.experts, found.experts_per_token) == EVERY[
        name
    ]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("bailing_hybrid", "L28 A4"),
        ("minimax_m1", "L70 F10"),
        ("laguna", "F10 S30"),
        ("exaone_moe", "S36 F12"),
        ("afmoe", "S24 F8"),
        ("olmo_hybrid", "L24 F8"),
        ("mistral4", "A36"),
        ("muse_glimmer_text", "S39 F13"),
        ("hy_v3", "F80"),
    ],
)
def test_layers_of_families_of_this_autumn(name: str, line: str) -> None:
    assert summary(of(f"families/{name}").layers) == line


def test_ling_3_has_kda_where_ling_2_5_has_lightning_attention() -> None:
    """By the keys of inclusionAI/Ling-3.0-flash, whose model_type is the same; what is left after the last
    group of layers has full attention."""
    ling = load_config("families/bailing_hybrid") | {"num_hidden_layers": 33}
    lightning, kda = (
        architecture_of_config(config) for config in (ling, ling | {"short_conv_kernel_size": 4})
    )
    assert summary(lightning.layers) == summary(kda.layers) == "L28 A5"
    assert kda.layers[0] == LinearAttention(32 * 128 * 128, 3 * 32 * 128, 4)
    assert lightning.layers[0] == LinearAttention(32 * 128 * 128, 0, 1)
    assert (lightning.state_dtype, kda.state_dtype) == ("bfloat16", None)


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (small("longcat_flash", kv_lora_rank=512), "`longcat_flash` has multi-head latent attention (MLA)"),
        (small("llama", kv_lora_rank=512), "`llama` has multi-head latent attention (MLA)"),
        (small("deepseek_v3", kv_lora_rank=512, index_topk=9), "sparse attention with an index cache"),
        (small("llama", hybrid_override_pattern="M*"), "`llama` has Mamba layers"),
        (small("llama", num_kv_shared_layers=2), "share a KV cache"),
        (small("llama", per_layer_config={"1": {}}), "layers that differ one by one (`per_layer_config`)"),
        (small("qwen3", sparse_attention_config={"a": 1}), "block-sparse attention"),
        ({}, "no `model_type`"),
        ({"model_type": ["llama"]}, "no `model_type`"),
        (small("mamba2"), "`mamba2` is a model_type that firesteel does not know"),
        (small("deepseek_v3"), "has no `kv_lora_rank`"),
        (small("deepseek_v32", **MLA, index_topk=2048), "has no `index_n_heads`"),
        (small("glm_moe_dsa", **MLA, **DSA, indexer_types=["full"]), "not as many `indexer_types`"),
        (small("deepseek_v4", head_dim=512), "has no `compress_ratios`"),
        (small("deepseek_v4", compress_ratios=[8] * 6), "compresses 8 tokens into one, not 4 or 128"),
        (small("deepseek_v4", compress_ratios=[4] * 5), "not as many `compress_ratios`"),
        (small("nemotron_h"), "does not list its blocks"),
        (small("nemotron_h", hybrid_override_pattern="M*"), "has 2 blocks but not as many"),
        (small("nemotron_h", hybrid_override_pattern="MMMMM?"), "has a block of the unknown type `?`"),
        (small("nemotron_h", hybrid_override_pattern="MMMMM*"), "has no `mamba_num_heads`"),
        (small("nemotron-nas"), "does not list each layer in `block_configs`"),
        (small("nemotron-nas", block_configs=[{}] * 6), "has no `attention`"),
        (
            small(
                "nemotron-nas", block_configs=[{"attention": {"replace_with_linear": True}, "ffn": {}}] * 6
            ),
            "has a layer with `replace_with_linear`",
        ),
        (small("kimi_linear", **MLA), "has no `linear_attn_config`"),
        (small("kimi_linear", **MLA, linear_attn_config={"kda_layers": [1]}), "does not list layer 2"),
        (small("minimax_m3", sparse_attention_config={"sparse_attention_freq": [2]}), "no mark for each"),
        (small("llama4_text", no_rope_layers=[1]), "no mark for each layer in `no_rope_layers`"),
        (small("deepseek_v3", **MLA, num_nextn_predict_layers=10**6), "has 1,000,000 MTP layers"),
        (small("llama", sliding_window=1024), "which its family does not use"),
        (
            small("gemma4_text", num_kv_shared_layers=1, layer_types=[SLIDING] * 5 + [FULL]) | WINDOW,
            "shares the KV cache of a `full_attention` layer that it does not have",
        ),
        (small("gemma3_text", use_bidirectional_attention=True), "both directions"),
        (small("step3p7"), "has no `layer_types`"),
        (small("qwen3", layer_types=["full_attention"] * 5), "not as many `layer_types`"),
        (small("qwen3", layer_types=7), "not as many `layer_types`"),
        (small("qwen3", layer_types=["chunked_attention"] * 6), "unknown type `chunked_attention`"),
        (small("qwen3", layer_types=["linear_attention"] * 6), "unknown type `linear_attention`"),
        (small("qwen3", layer_types=[None] * 6), "unknown type `None`"),
        (small("gpt_oss", layer_types=["sliding_attention"] * 6), "no `sliding_window`"),
        (small("mimo_v2_flash", sliding_window=128), "`hybrid_layer_pattern`"),
        (small("minimax_m1", attn_type_list=[1]), "no mark for each layer in `attn_type_list`"),
        (small("mimo_v2_flash", hybrid_layer_pattern=[0, 1, 2, 0, 0, 0]), "`hybrid_layer_pattern`"),
        (small("qwen3_next"), "has no `linear_num_key_heads`"),
        (small("mistral", num_key_value_heads=None), "has no `num_key_value_heads`"),
        (small(hidden_size=None), "has no `hidden_size`"),
        (small(hidden_size=65), "has no `head_dim`"),
        (small(hidden_size="64"), "has the `hidden_size` '64'"),
        (small(hidden_size=64.0), "has the `hidden_size` 64.0"),
        (small(hidden_size=float("nan")), "has the `hidden_size` nan"),
        (small(hidden_size=True), "has the `hidden_size` True"),
        (small(hidden_size=0), "has the `hidden_size` 0"),
        (small(hidden_size=10**5000), "has the `hidden_size` of more digits"),
        (small(hidden_size=[64]), "has the `hidden_size` of type list"),
        (small("a\nb" * 1000), "`a ba b"),
        (small(num_hidden_layers=10**9), "has 1,000,000,000 layers"),
        (small("qwen3_moe", num_experts=8), "uses 0 for a token"),
        (small("qwen3_moe", num_experts=8, num_experts_per_tok=9), "uses 9 for a token"),
        (small("qwen3_moe", num_experts=-1), "has the `num_experts` -1"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused_by_name(config: dict[str, object], line: str) -> None:
    with pytest.raises(UnknownArchitecture) as caught:
        architecture_of_config(config)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.next


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def changed_config(data: st.DataObject) -> dict[str, object]:
    """A published one, in which up to three values are anything."""
    config = load_config(data.draw(st.sampled_from(sorted(path.stem for path in CONFIGS.glob("*.json")))))
    text = config.get("text_config", config)
    assert isinstance(text, dict)
    for key in data.draw(st.lists(st.sampled_from(sorted(text)), max_size=3)):
        text[key] = data.draw(anything)
    return config


@given(st.data())
def test_a_changed_config_is_read_or_refused(data: st.DataObject) -> None:
    config = changed_config(data)
    try:
        assert architecture_of_config(config).layers
    except UnknownArchitecture as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(("held", "named"), [([], "list"), ("llama", "str"), (7, "int"), (None, "NoneType")])
def test_a_config_that_is_not_an_object_is_refused(held: object, named: str) -> None:
    with pytest.raises(UnknownArchitecture, match=f"holds a {named}"):
        architecture_of_config(held)
