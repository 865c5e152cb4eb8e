from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.facts import (
    Architecture,
    FullAttention,
    LinearAttention,
    SlidingAttention,
    UnknownArchitecture,
    architecture_of_config,
)

FULL, SLIDING = "full_attention", "sliding_attention"
CONFIGS = Path(__file__).parent / "configs"


def config(name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((CONFIGS / f"{name}.json").read_text())
    return found


def of(name: str) -> Architecture:
    return architecture_of_config(config(name))


def small(model_type: str = "llama", **others: object) -> dict[str, object]:
    """A small config of any family; None takes a key away."""
    figures: dict[str, object] = {
        "model_type": model_type,
        "num_hidden_layers": 6,
        "hidden_size": 64,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "vocab_size": 1000,
        "max_position_embeddings": 4096,
    }
    return {key: value for key, value in (figures | others).items() if value is not None}


def kinds(found: Architecture) -> str:
    letters: Mapping[type, str] = {FullAttention: "F", SlidingAttention: "S", LinearAttention: "L"}
    return "".join(letters[type(layer)] for layer in found.layers)


def test_gated_delta_net_with_experts_and_mtp() -> None:
    found = of("nvidia--Qwen3.6-35B-A3B-NVFP4")
    assert kinds(found) == "LLLF" * 10
    assert found.layers[3] == FullAttention(kv_heads=2, key_dim=256, value_dim=256)
    assert found.layers[0] == LinearAttention(
        state_elements=32 * 128 * 128, conv_channels=8192, conv_kernel=4
    )
    assert (found.model_type, found.hidden_size, found.vocab_size) == ("qwen3_5_moe", 2048, 248_320)
    assert (found.max_context, found.experts, found.experts_per_token) == (262_144, 256, 8)
    assert found.drafter_layers == 1


def test_recurrent_state_is_the_published_figure() -> None:
    """The state in float32, and the last kernel - 1 columns of the convolution in bfloat16."""
    linear = [x for x in of("nvidia--Qwen3.6-35B-A3B-NVFP4").layers if isinstance(x, LinearAttention)]
    assert len(linear) == 30
    assert sum(x.state_elements * 4 + (x.conv_kernel - 1) * x.conv_channels * 2 for x in linear) == 64_389_120


def test_sliding_layers_with_experts() -> None:
    found = of("openai--gpt-oss-20b")
    assert kinds(found) == "SF" * 12
    assert found.layers[0] == SlidingAttention(kv_heads=8, key_dim=64, value_dim=64, window=128)
    assert (found.experts, found.experts_per_token, found.is_moe) == (32, 4, True)


def test_full_layers_may_have_other_heads() -> None:
    found = of("google--gemma-4-26B-A4B")
    assert kinds(found) == "SSSSSF" * 5
    assert found.layers[0] == SlidingAttention(kv_heads=8, key_dim=256, value_dim=256, window=1024)
    assert found.layers[5] == FullAttention(kv_heads=2, key_dim=512, value_dim=512)
    assert (found.experts, found.experts_per_token) == (128, 8)


def test_sliding_layers_may_have_other_heads() -> None:
    found = of("XiaomiMiMo--MiMo-V2-Flash")
    assert (kinds(found).count("F"), kinds(found).count("S")) == (9, 39)
    assert found.layers[0] == FullAttention(kv_heads=4, key_dim=192, value_dim=128)
    assert found.layers[1] == SlidingAttention(kv_heads=8, key_dim=192, value_dim=128, window=128)


def test_plain_attention() -> None:
    found = of("Qwen--Qwen3-8B")
    assert found.layers == (FullAttention(kv_heads=8, key_dim=128, value_dim=128),) * 36
    assert (found.experts, found.experts_per_token, found.drafter_layers, found.is_moe) == (0, 0, 0, False)


def test_head_dim_is_derived_where_the_config_leaves_it_out() -> None:
    found = of("mistralai--Mixtral-8x7B-v0.1")
    assert found.layers == (FullAttention(kv_heads=8, key_dim=128, value_dim=128),) * 32
    assert (found.experts, found.experts_per_token) == (8, 2)


def test_mtp_layers_are_counted_but_are_not_layers() -> None:
    found = of("stepfun-ai--Step-3.7-Flash")
    assert (len(found.layers), found.drafter_layers) == (45, 3)
    assert kinds(found).startswith("FSSSFSSS")


@pytest.mark.parametrize(
    ("figures", "layers"),
    [
        (small("mistral", sliding_window=1024), "SSSSSS"),
        (small("mistral"), "FFFFFF"),
        (small("qwen2", sliding_window=1024, use_sliding_window=True, max_window_layers=4), "FFFFSS"),
        (small("qwen2", sliding_window=1024, use_sliding_window=False, max_window_layers=4), "FFFFFF"),
        (small("qwen2", sliding_window=1024, max_window_layers=4), "FFFFFF"),
        (small("gemma2"), "SFSFSF"),
        (small("gemma3_text"), "SSSSSF"),
        (small("gemma3_text", sliding_window_pattern=3), "SSFSSF"),
        (small("gemma3_text") | {"sliding_window": None}, "FFFFFF"),
        (small("gemma3_text", sliding_window_pattern=1), "FFFFFF"),
        (small("gpt_oss", sliding_window=128), "SFSFSF"),
        (small("cohere2", sliding_window=128), "SSSFSS"),
        (small("olmo3", sliding_window=128), "SSSFSS"),
        (small("step3p7", sliding_window=9, layer_types=[SLIDING, FULL] * 3), "SFSFSF"),
        (small("step3p7", layer_types=[FULL] * 8, num_nextn_predict_layers=2), "FFFFFF"),
        (small("qwen3", layer_types=[SLIDING] * 6, sliding_window=9, use_sliding_window=False), "FFFFFF"),
        (small("mimo", sliding_window=32768, use_sliding_window=False), "FFFFFF"),
    ],
)  # fmt: skip
def test_patterns(figures: dict[str, object], layers: str) -> None:
    assert kinds(architecture_of_config(figures)) == layers


LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}


@pytest.mark.parametrize(("others", "layers"), [({}, "LLLFLL"), ({"full_attention_interval": 2}, "LFLFLF")])
def test_delta_net_without_layer_types_goes_by_its_interval(others: dict[str, object], layers: str) -> None:
    found = architecture_of_config(small("qwen3_next", **LINEAR, **others))
    assert kinds(found) == layers
    assert found.layers[0] == LinearAttention(4 * 8 * 16, 2 * 2 * 8 + 4 * 16, 4)


def test_gemma_3_configs_leave_out_what_transformers_fills_in() -> None:
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34, "sliding_window": 1024}
    found = architecture_of_config({"model_type": "gemma3", "text_config": text})
    assert (kinds(found).count("F"), kinds(found).count("S")) == (5, 29)
    assert found.layers[5] == FullAttention(kv_heads=4, key_dim=256, value_dim=256)
    assert (found.model_type, found.vocab_size, found.max_context) == ("gemma3", 262_208, 131_072)


def test_llama_without_kv_heads_has_as_many_as_heads() -> None:
    found = architecture_of_config(small(num_key_value_heads=None))
    assert found.layers[0] == FullAttention(kv_heads=8, key_dim=8, value_dim=8)


def test_gemma_4_keeps_its_kv_heads_where_keys_are_not_values() -> None:
    figures = config("google--gemma-4-26B-A4B")
    text = figures["text_config"]
    assert isinstance(text, dict)
    found = architecture_of_config(figures | {"text_config": text | {"attention_k_eq_v": False}})
    assert found.layers[5] == FullAttention(kv_heads=8, key_dim=512, value_dim=512)


@pytest.mark.parametrize(
    ("figures", "line"),
    [
        (config("deepseek-ai--DeepSeek-V3"), "`deepseek_v3` has multi-head latent attention (MLA)"),
        (config("nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4"), "`nemotron_h` has Mamba layers"),
        ({}, "no `model_type`"),
        ({"model_type": ["llama"]}, "no `model_type`"),
        (small("mamba2"), "`mamba2` is a model_type that firesteel does not know"),
        (small("llama4_text"), "does not know"),
        (small("llama", sliding_window=1024), "which its family does not use"),
        (small("gemma4_text", num_kv_shared_layers=2), "share a KV cache"),
        (small("gemma3_text", use_bidirectional_attention=True), "both directions"),
        (small("step3p7"), "has no `layer_types`"),
        (small("qwen3", layer_types=["full_attention"] * 5), "not as many `layer_types`"),
        (small("qwen3", layer_types=7), "not as many `layer_types`"),
        (small("qwen3", layer_types=["chunked_attention"] * 6), "unknown type `chunked_attention`"),
        (small("qwen3", layer_types=["linear_attention"] * 6), "unknown type `linear_attention`"),
        (small("qwen3", layer_types=[None] * 6), "unknown type `None`"),
        (small("gpt_oss", layer_types=["sliding_attention"] * 6), "no `sliding_window`"),
        (small("mimo_v2_flash", sliding_window=128), "`hybrid_layer_pattern`"),
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
        (small("a\nb" * 1000), "`a?ba?b"),
        (small(num_hidden_layers=10**9), "has 1,000,000,000 layers"),
        (small("qwen3_moe", num_experts=8), "uses 0 for a token"),
        (small("qwen3_moe", num_experts=8, num_experts_per_tok=9), "uses 9 for a token"),
        (small("qwen3_moe", num_experts=-1), "has the `num_experts` -1"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused_by_name(figures: dict[str, object], line: str) -> None:
    with pytest.raises(UnknownArchitecture) as caught:
        architecture_of_config(figures)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.next


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.data())
def test_a_changed_config_is_read_or_refused(data: st.DataObject) -> None:
    figures = config(data.draw(st.sampled_from(sorted(path.stem for path in CONFIGS.iterdir()))))
    text = figures.get("text_config", figures)
    assert isinstance(text, dict)
    for key in data.draw(st.lists(st.sampled_from(sorted(text)), max_size=3)):
        text[key] = data.draw(anything)
    try:
        assert architecture_of_config(figures).layers
    except UnknownArchitecture as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(("held", "named"), [([], "list"), ("llama", "str"), (7, "int"), (None, "NoneType")])
def test_a_config_that_is_no_object_is_refused_in_words(held: object, named: str) -> None:
    with pytest.raises(UnknownArchitecture, match=f"holds a {named}"):
        architecture_of_config(held)
