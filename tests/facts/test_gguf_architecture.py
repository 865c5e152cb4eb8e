from __future__ import annotations

from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.facts import (
    Architecture,
    ArrayInfo,
    FullAttention,
    GgufHeader,
    LinearAttention,
    SlidingAttention,
    UnknownArchitecture,
    architecture_of_gguf,
)
from firesteel.facts.gguf import Value

from .test_config import kinds

TOKENS = ArrayInfo("string", 1000)


def small(name: str = "llama", **others: Value | None) -> GgufHeader:
    """A small model of any architecture; a key has `__` for a dot, None takes it away."""
    figures: dict[str, Value | None] = {
        "block_count": 6,
        "embedding_length": 64,
        "context_length": 4096,
        "attention.head_count": 8,
        "attention.head_count_kv": 2,
    }
    figures |= {key.replace("__", "."): value for key, value in others.items()}
    metadata: dict[str, Value] = {"general.architecture": name, "tokenizer.ggml.tokens": TOKENS}
    metadata |= {f"{name}.{key}": value for key, value in figures.items() if value is not None}
    return GgufHeader("x.gguf", 3, MappingProxyType(metadata), ())


def of(name: str, **others: Value | None) -> Architecture:
    return architecture_of_gguf(small(name, **others))


def test_plain_attention() -> None:
    found = of("llama")
    assert found.layers == (FullAttention(kv_heads=2, key_dim=8, value_dim=8),) * 6
    assert (found.model_type, found.hidden_size, found.vocab_size, found.max_context) == (
        "llama",
        64,
        1000,
        4096,
    )
    assert (found.experts, found.drafter_layers) == (0, 0)


def test_every_figure_can_be_said() -> None:
    found = of(
        "qwen3moe",
        attention__key_length=128,
        attention__value_length=96,
        expert_count=128,
        expert_used_count=8,
    )
    assert found.layers[0] == FullAttention(kv_heads=2, key_dim=128, value_dim=96)
    assert (found.experts, found.experts_per_token) == (128, 8)


def test_without_kv_heads_there_are_as_many_as_heads() -> None:
    assert of("llama", attention__head_count_kv=None).layers[0] == FullAttention(8, 8, 8)


PATTERN = "attention__sliding_window_pattern"


@pytest.mark.parametrize(
    ("name", "others", "layers"),
    [
        ("llama", {"attention__sliding_window": 128}, "FFFFFF"),  # llama.cpp slides no llama
        ("phi3", {"attention__sliding_window": 128}, "FFFFFF"),
        ("gpt-oss", {"attention__sliding_window": 128}, "SFSFSF"),
        ("gpt-oss", {"attention__sliding_window": 128, PATTERN: 3}, "SSFSSF"),
        ("gpt-oss", {"attention__sliding_window": 128, PATTERN: (True,) * 6}, "SFSFSF"),
        ("gemma2", {}, "SFSFSF"),
        ("gemma3", {"attention__sliding_window": 512}, "SSSSSF"),
        ("gemma3", {"attention__sliding_window": 512, PATTERN: 2}, "SFSFSF"),
        ("gemma3", {"attention__sliding_window": 0}, "FFFFFF"),
        ("gemma3", {}, "FFFFFF"),
        ("olmo2", {}, "FFFFFF"),
        ("olmo2", {"attention__sliding_window": 512}, "SSSFSS"),
        ("gemma4", {"attention__sliding_window": 512, PATTERN: (True, True, False) * 2}, "SSFSSF"),
        ("mimo2", {"attention__sliding_window": 512, PATTERN: (0, 1, 1, 1, 1, 0)}, "FSSSSF"),
    ],
)
def test_patterns_are_those_of_llama_cpp(name: str, others: dict[str, Value], layers: str) -> None:
    assert kinds(of(name, **others)) == layers


def test_gemma2_has_its_window_built_in() -> None:
    assert of("gemma2").layers[0] == SlidingAttention(2, 8, 8, window=4096)


def test_layers_may_differ_in_heads_and_dimensions() -> None:
    found = of(
        "gemma4",
        attention__sliding_window=1024,
        attention__sliding_window_pattern=(True, True, True, True, True, False),
        attention__head_count_kv=(8, 8, 8, 8, 8, 2),
        attention__key_length=512,
        attention__value_length=512,
        attention__key_length_swa=256,
        attention__value_length_swa=256,
    )
    assert found.layers[0] == SlidingAttention(kv_heads=8, key_dim=256, value_dim=256, window=1024)
    assert found.layers[5] == FullAttention(kv_heads=2, key_dim=512, value_dim=512)


SSM: dict[str, Value] = {
    "ssm__conv_kernel": 4,
    "ssm__inner_size": 4096,
    "ssm__state_size": 128,
    "ssm__group_count": 16,
    "ssm__time_step_rank": 32,
}


@pytest.mark.parametrize(
    ("others", "layers"),
    [
        ({}, "LLLFLL"),
        ({"full_attention_interval": 2}, "LFLFLF"),
        ({"attention__recurrent_layers": (1, 0, 1, 0, 0, 0)}, "LFLFFF"),
    ],
)
def test_delta_net(others: dict[str, Value], layers: str) -> None:
    found = of("qwen35moe", **SSM, **others)
    assert kinds(found) == layers
    assert found.layers[0] == LinearAttention(
        state_elements=32 * 128 * 128, conv_channels=8192, conv_kernel=4
    )


def test_mtp_blocks_are_counted_but_are_not_layers() -> None:
    found = of("qwen35", **SSM, nextn_predict_layers=2)
    assert (kinds(found), found.drafter_layers) == ("LLLF", 2)


def test_vocabulary_is_what_the_tokenizer_has() -> None:
    assert of("llama", vocab_size=7).vocab_size == 1000
    header = small("llama", vocab_size=7)
    metadata = {key: value for key, value in header.metadata.items() if not key.startswith("tokenizer")}
    assert architecture_of_gguf(GgufHeader("x", 3, metadata, ())).vocab_size == 7


@pytest.mark.parametrize(
    ("name", "others", "line"),
    [
        ("deepseek2", {"attention__kv_lora_rank": 512}, "multi-head latent attention (MLA)"),
        ("minimax-m3", {"attention__indexer__head_count": 4}, "sparse attention"),
        ("gemma4", {"attention__shared_kv_layers": 2}, "share a KV cache"),
        ("mamba2", {}, "`mamba2` is a GGUF architecture that firesteel does not know"),
        ("nemotron_h_moe", {}, "does not know"),
        ("llama", {"block_count": None}, "`block_count`"),
        ("llama", {"block_count": 10**9}, "`block_count`"),
        ("llama", {"block_count": "6"}, "`block_count`"),
        ("llama", {"nextn_predict_layers": 6}, "`block_count`"),
        ("llama", {"embedding_length": None}, "has no `embedding_length`"),
        ("llama", {"embedding_length": -1}, "has the `embedding_length` -1"),
        ("llama", {"embedding_length": 1.5}, "has the `embedding_length` 1.5"),
        ("llama", {"attention__head_count": None}, "has no `attention.head_count`"),
        ("llama", {"attention__head_count": 0}, "has the `attention.head_count` 0"),
        ("llama", {"attention__head_count_kv": (2, 2)}, "has no `attention.head_count_kv`"),
        ("llama", {"attention__head_count_kv": (2, 0, 2, 0, 2, 2)}, "has the `attention.head_count_kv` 0"),
        ("llama", {"attention__head_count_kv": TOKENS}, "has the `attention.head_count_kv`"),
        ("gpt-oss", {}, "has no `attention.sliding_window`"),
        ("gpt-oss", {"attention__sliding_window": 128, PATTERN: 0}, "`attention.sliding_window_pattern` 0"),
        ("gemma4", {"attention__sliding_window": 128}, "has no `attention.sliding_window_pattern`"),
        ("qwen35", {}, "has no `ssm.inner_size`"),
        ("qwen3moe", {"expert_count": 8}, "uses 0 for a token"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused_by_name(name: str, others: dict[str, Value | None], line: str) -> None:
    with pytest.raises(UnknownArchitecture) as caught:
        of(name, **others)
    assert line in str(caught.value)


def test_a_file_without_an_architecture_is_refused() -> None:
    with pytest.raises(UnknownArchitecture, match=r"x.gguf has no `general.architecture`"):
        architecture_of_gguf(GgufHeader("x.gguf", 3, {"general.architecture": 7}, ()))


values = st.integers() | st.floats() | st.booleans() | st.text(max_size=3) | st.just(ArrayInfo("int8", 9))
keys = sorted({*SSM, PATTERN, "attention__sliding_window", "attention__head_count_kv", "block_count"})


@given(
    st.sampled_from(["llama", "gemma3", "gemma4", "qwen35moe"]),
    st.dictionaries(st.sampled_from(keys), values | st.lists(st.integers(-1, 3), max_size=7).map(tuple)),
)
def test_any_metadata_is_read_or_refused(name: str, others: dict[str, Value]) -> None:
    try:
        assert of(name, **others).layers
    except UnknownArchitecture as error:
        assert "\n" not in str(error)
