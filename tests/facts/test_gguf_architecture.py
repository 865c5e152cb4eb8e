from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.facts.formats import gguf_architecture
from firesteel.facts.formats.gguf import ArrayInfo, GgufHeader, MetadataValue
from firesteel.facts.formats.gguf_architecture import architecture_of_gguf
from firesteel.facts.model.architecture import (
    Architecture,
    ChunkedAttention,
    CompressedAttention,
    FullAttention,
    Indexer,
    LatentAttention,
    LinearAttention,
    Mamba2,
    SharedKv,
    SlidingAttention,
    SparseAttention,
    UnknownArchitecture,
)

from .test_config import kinds

TOKENS = ArrayInfo("string", 1000)


def small(name: str = "llama", **others: MetadataValue | None) -> GgufHeader:
    """A small model of any architecture; a key has `__` for a dot, None takes it away."""
    figures: dict[str, MetadataValue | None] = {
        "block_count": 6,
        "embedding_length": 64,
        "context_length": 4096,
        "attention.head_count": 8,
        "attention.head_count_kv": 2,
    }
    figures |= {key.replace("__", "."): value for key, value in others.items()}
    metadata: dict[str, MetadataValue] = {"general.architecture": name, "tokenizer.ggml.tokens": TOKENS}
    metadata |= {f"{name}.{key}": value for key, value in figures.items() if value is not None}
    return GgufHeader("x.gguf", 3, MappingProxyType(metadata), ())


def of(name: str, **others: MetadataValue | None) -> Architecture:
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


def test_every_value_can_be_in_the_file() -> None:
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
def test_patterns_are_those_of_llama_cpp(name: str, others: dict[str, MetadataValue], layers: str) -> None:
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


SSM: dict[str, MetadataValue] = {
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
def test_delta_net(others: dict[str, MetadataValue], layers: str) -> None:
    found = of("qwen35moe", **SSM, **others)
    assert kinds(found) == layers
    assert found.layers[0] == LinearAttention(
        state_elements=32 * 128 * 128, conv_channels=8192, conv_kernel=4
    )


MLA: dict[str, MetadataValue] = {
    "attention__head_count_kv": 1,
    "attention__kv_lora_rank": 512,
    "attention__key_length": 576,
    "attention__value_length": 512,
    "attention__key_length_mla": 192,
    "attention__value_length_mla": 128,
}
INDEXER: dict[str, MetadataValue] = {
    "attention__indexer__head_count": 64,
    "attention__indexer__key_length": 128,
    "attention__indexer__top_k": 2048,
}


def test_latent_attention() -> None:
    assert of("deepseek2", **MLA).layers == (LatentAttention(512, 64),) * 6


def test_files_without_lengths_for_mla_keep_every_head() -> None:
    """As llama.cpp loads what was converted before it had MLA."""
    old: dict[str, MetadataValue] = {"attention__key_length": 192, "attention__value_length": 128}
    found = of("deepseek2", attention__kv_lora_rank=512, attention__head_count_kv=8, **old)
    assert found.layers[0] == FullAttention(kv_heads=8, key_dim=192, value_dim=128)


@pytest.mark.parametrize(
    ("name", "others", "layers"),
    [
        ("deepseek32", {}, "IIIIII"),
        ("glm-dsa", {}, "IIIIII"),
        ("glm-dsa", {"attention__indexer__types": (1, 1, 0, 0, 0, 1)}, "IIAAAI"),
        ("glm-dsa", {"context_length": 2**20, "block_count": 11}, "IIIAAAIAAAI"),
    ],
)
def test_indexers(name: str, others: dict[str, MetadataValue], layers: str) -> None:
    found = of(name, **MLA, **INDEXER, **others)
    assert kinds(found) == layers
    assert found.layers[0] == LatentAttention(512, 64, Indexer(64, 128), attends=2048)


@pytest.mark.parametrize("name", ["nemotron_h", "nemotron_h_moe"])
def test_blocks_are_recognized_by_what_they_lack(name: str) -> None:
    lists: dict[str, MetadataValue] = {
        "attention__head_count_kv": (0, 0, 2, 0, 0, 2),
        "attention__head_count": (0, 0, 8, 0, 0, 8),
        "feed_forward_length": (0, 1856, 0, 0, 1856, 0),
    }
    experts: dict[str, MetadataValue] = (
        {"expert_count": 8, "expert_used_count": 2} if name.endswith("moe") else {}
    )
    found = of(name, **SSM, **lists, **experts)
    assert kinds(found) == ("MEFMEF" if experts else "M-FM-F")
    assert found.layers[0] == Mamba2(heads=32, head_dim=128, state_size=128, groups=16, conv_kernel=4)
    assert found.layers[2] == FullAttention(2, 8, 8)


def test_mamba() -> None:
    assert kinds(of("mamba2", **SSM)) == "MMMMMM"
    assert kinds(of("granitehybrid", **SSM, attention__head_count_kv=(0, 0, 2, 0, 0, 2))) == "MMFMMF"


def test_kda_beside_latent_attention() -> None:
    found = of(
        "kimi-linear",
        **MLA | {"attention__head_count_kv": (0, 0, 0, 1, 0, 1)},
        kda__head_dim=128,
        ssm__conv_kernel=4,
    )
    assert kinds(found) == "LLLALA"
    assert found.layers[0] == LinearAttention(8 * 128 * 128, 3 * 8 * 128, 4)


@pytest.mark.parametrize(
    ("others", "layers"),
    [
        ({}, "CCCFCC"),
        ({"attention__sliding_window": 0}, "FFFFFF"),
        ({PATTERN: 2}, "CFCFCF"),
    ],
)
def test_chunks(others: dict[str, MetadataValue], layers: str) -> None:
    assert kinds(of("llama4", **others)) == layers


def test_the_chunk_is_built_in() -> None:
    assert of("llama4", attention__sliding_window=512).layers[0] == ChunkedAttention(2, 8, 8, chunk=8192)


@pytest.mark.parametrize(
    ("name", "others", "shared"),
    [
        ("gemma4", {"attention__shared_kv_layers": 3, PATTERN: (1, 1, 0, 1, 1, 0)}, {3: 1, 4: 1, 5: 2}),
        ("gemma4", {"attention__shared_kv_layers": 0, PATTERN: (1, 1, 0, 1, 1, 0)}, {}),
        ("gemma3n", {"block_count": 26}, {20: 18, 21: 18, 22: 18, 23: 18, 24: 19, 25: 18}),
    ],
)
def test_shared_kv(name: str, others: dict[str, MetadataValue], shared: dict[int, int]) -> None:
    found = of(name, attention__sliding_window=512, **others).layers
    assert {number: layer.of for number, layer in enumerate(found) if isinstance(layer, SharedKv)} == shared


def test_sparse_attention_behind_dense_layers() -> None:
    blocks: dict[str, MetadataValue] = {
        "attention__indexer__top_k": 16,
        "attention__indexer__block_size": 128,
    }
    found = of("minimax-m3", **INDEXER | blocks, leading_dense_block_count=2)
    assert kinds(found) == "FFXXXX"
    assert found.layers[2] == SparseAttention(2, 8, 8, Indexer(64, 128), attends=2048)


def test_compressed_attention() -> None:
    found = of(
        "deepseek4",
        **INDEXER,
        attention__compress_ratios=(0, 4, 128, 4, 128, 4, 0),
        attention__key_length=512,
        attention__sliding_window=128,
        rope__dimension_count=64,
    )
    assert found.layers[1] == CompressedAttention(512, 64, 128, 4, Indexer(64, 128), attends=2048)
    assert found.layers[2] == CompressedAttention(512, 64, 128, 128)


def test_pruned_layers() -> None:
    found = of("deci", attention__head_count_kv=(8, 0, 4, 0, 8, 8), feed_forward_length=(9, 9, 9, 0, 9, 9))
    assert kinds(found) == "F-F0FF"
    assert found.layers[2] == FullAttention(4, 8, 8)


def test_keys_and_architectures_are_those_of_the_gguf_package() -> None:
    """Every key that the reader asks for is one that llama.cpp's own writer has, and every architecture."""
    source = Path(gguf_architecture.__file__).read_text()
    asked = set(re.findall(r'"((?:attention|ssm|kda|rope)\.[a-z_.]+)"', source))
    assert asked - set(written_keys(gguf.Keys)) <= NEWER
    assert set(gguf_architecture.GGUF_FAMILIES) - set(gguf.MODEL_ARCH_NAMES.values()) <= NEWER


NEWER = {
    "attention.compress_ratios",
    "attention.indexer.block_size",
    "attention.indexer.types",
    "attention.recurrent_layers",
    "deepseek32",
    "deepseek4",
    "kimi-k3",
    "minimax-m3",
}
"""In llama.cpp's `src/llama-arch.cpp` as of 2026-08-22, and not yet in release 0.19.0 of the package."""


def written_keys(section: type) -> Iterator[str]:
    for value in vars(section).values():
        if isinstance(value, str):
            yield value.removeprefix("{arch}.")
        elif isinstance(value, type):
            yield from written_keys(value)


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
        ("bailingmoe3", {"attention__kv_lora_rank": 512}, "multi-head latent attention (MLA)"),
        ("dots3note", {"attention__indexer__head_count": 4}, "sparse attention"),
        ("llama", {"attention__shared_kv_layers": 2}, "share a KV cache"),
        ("jamba", {}, "`jamba` is a GGUF architecture that firesteel does not know"),
        ("falcon-h1", {}, "does not know"),
        ("mamba2", {}, "has no `ssm.inner_size`"),
        ("mamba2", SSM | {"ssm__time_step_rank": 33}, "which 33 heads do not divide"),
        ("nemotron_h_moe", {"attention__head_count_kv": (0,) * 6}, "has no `feed_forward_length`"),
        ("deepseek2", {"attention__key_length_mla": 192}, "has no `attention.kv_lora_rank`"),
        ("deepseek2", MLA | {"attention__key_length": 512}, "has keys of 512 with a"),
        ("deepseek32", MLA | {"attention__indexer__head_count": 4}, "has no `attention.indexer.top_k`"),
        ("kimi-linear", {"attention__head_count_kv": (0,) * 6}, "has no `kda.head_dim`"),
        ("deepseek4", {}, "has no `attention.compress_ratios`"),
        ("deepseek4", {"attention__compress_ratios": (7,) * 6}, "compresses 7 tokens into one"),
        ("gemma3n", {"attention__sliding_window": 9, "attention__shared_kv_layers": 5}, "of which 1 have"),
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
def test_what_is_not_known_is_refused_by_name(
    name: str, others: dict[str, MetadataValue | None], line: str
) -> None:
    with pytest.raises(UnknownArchitecture) as caught:
        of(name, **others)
    assert line in str(caught.value)


def test_a_file_without_an_architecture_is_refused() -> None:
    with pytest.raises(UnknownArchitecture, match=r"x.gguf has no `general.architecture`"):
        architecture_of_gguf(GgufHeader("x.gguf", 3, {"general.architecture": 7}, ()))


values = st.integers() | st.floats() | st.booleans() | st.text(max_size=3) | st.just(ArrayInfo("int8", 9))
keys = sorted(
    {
        *SSM,
        *MLA,
        *INDEXER,
        PATTERN,
        "attention__sliding_window",
        "attention__compress_ratios",
        "attention__shared_kv_layers",
        "feed_forward_length",
        "block_count",
    }
)


@given(
    st.sampled_from(sorted(gguf_architecture.GGUF_FAMILIES)),
    st.dictionaries(st.sampled_from(keys), values | st.lists(st.integers(-1, 3), max_size=7).map(tuple)),
)
def test_any_metadata_is_read_or_refused(name: str, others: dict[str, MetadataValue]) -> None:
    try:
        assert of(name, **others).layers
    except UnknownArchitecture as error:
        assert "\n" not in str(error)
