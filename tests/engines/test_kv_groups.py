"""How vLLM's layers share a pool: rules that no recorded case reaches, and what holds for every model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given, reject
from hypothesis import strategies as st

from firesteel.engines.kv_cache import reported_kv, size_kv_cache
from firesteel.engines.vllm.kv_cache import VllmPool, vllm_pool
from firesteel.errors import UsageError
from firesteel.facts.model.architecture import (
    Architecture,
    ChunkedAttention,
    FullAttention,
    LatentAttention,
    Layer,
    LinearAttention,
    Mamba2,
    SlidingAttention,
)
from firesteel.facts.model.config import architecture_of_config
from firesteel.launch import FlagValue, Launch
from firesteel.units import GIB

FAMILIES = Path(__file__).parents[1] / "facts/configs/families"


def vllm_launch(version: str | None, **flags: FlagValue) -> Launch:
    return Launch("x", "x", "vllm", version, {name.replace("_", "-"): value for name, value in flags.items()})


def test_pages_that_do_not_divide_are_refused_before_they_were_padded() -> None:
    odd = Architecture("odd", (FullAttention(3, 64, 64), SlidingAttention(4, 64, 64, 128)), 512, 1000, 4096)
    with pytest.raises(UsageError, match=r"padded from 0\.24"):
        vllm_pool(vllm_launch("0.23.0"), odd, 4096)
    assert {group.page_bytes for group in vllm_pool(vllm_launch("0.32.0"), odd, 4096).groups} == {
        16 * 4 * 128 * 2
    }


@pytest.mark.parametrize(
    ("version", "layers"),
    [("0.11.2", [10, 7, 7]), ("0.17.1", [10, 7, 7]), ("0.18.1", [10, 14]), ("0.32.0", [10, 14])],
)
def test_near_even_kinds_share_the_larger_size(version: str, layers: list[int]) -> None:
    """10 and 14 layers are near enough from 0.18, where 1.25 became 1.5."""
    few, many = [SlidingAttention(8, 64, 64, 128)] * 10, [FullAttention(8, 64, 64)] * 14
    architecture = Architecture("test", (*few, *many), 1, 1, 2**20)
    assert [group.layers for group in vllm_pool(vllm_launch(version), architecture, 4096).groups] == layers


@pytest.mark.parametrize(("version", "blocks"), [("0.27.1", 1032 + 1), ("0.28.0", 1033 + 1)])
def test_windows_keep_tokens_for_drafters_of_several_modules(version: str, blocks: int) -> None:
    """127 tokens and two batches of 8192 are just under 1032 blocks; two more tokens are over."""
    window = SlidingAttention(8, 64, 64, 128)
    architecture = Architecture("test", (window,), 1, 1, 2**20, drafter_layers=3, drafters=(window,) * 3)
    mtp = vllm_launch(version, speculative_config={"method": "mtp", "num_speculative_tokens": 3})
    pool = vllm_pool(mtp, architecture, 131072)
    assert pool.request_bytes == blocks * pool.block_bytes


heads = (st.integers(1, 16), st.sampled_from([64, 96, 128, 256]), st.sampled_from([64, 128, 256]))
attending = st.one_of(
    st.builds(FullAttention, *heads),
    st.builds(SlidingAttention, *heads, st.integers(1, 8192)),
    st.builds(ChunkedAttention, *heads, st.integers(1, 8192)),
)
recurrent = st.one_of(
    st.builds(LinearAttention, st.integers(1, 2**20), st.integers(1, 2**14), st.integers(1, 8)),
    st.builds(Mamba2, st.integers(1, 128), st.just(64), st.just(128), st.integers(1, 8), st.integers(1, 4)),
)
latent = st.builds(LatentAttention, st.sampled_from([256, 512]), st.just(64))
models = st.one_of(
    st.lists(st.one_of(attending, recurrent), min_size=1, max_size=12),
    st.lists(latent, min_size=1, max_size=12),
)
versions = st.sampled_from(
    ["0.11.2", "0.12.0", "0.14.1", "0.19.1", "0.20.1", "0.24.0", "0.26.0", "0.28.0", "0.30.0", "0.32.0"]
)


def pool_of(layers: list[Layer], version: str, context: int, **flags: FlagValue) -> VllmPool:
    """Models that vLLM refuses do not matter here."""
    try:
        return vllm_pool(
            vllm_launch(version, **flags), Architecture("test", tuple(layers), 1, 1, 2**20), context
        )
    except UsageError:
        reject()


@given(models, versions, st.integers(1, 10**6), st.integers(0, 10**6))
def test_more_context_never_needs_less(layers: list[Layer], version: str, context: int, more: int) -> None:
    pool = pool_of(layers, version, context)
    assert pool.request_bytes_at(context) <= pool.request_bytes_at(context + more)
    assert pool.request_bytes <= pool_of(layers, version, context + more).request_bytes
    assert pool.least_bytes >= pool.request_bytes > 0


@given(models, versions, st.integers(1, 10**6), st.integers(1, 2**40), st.integers(0, 2**40))
def test_more_bytes_never_give_less(
    layers: list[Layer], version: str, context: int, some: int, more: int
) -> None:
    pool = pool_of(layers, version, context)
    less, greater = pool.reported(some), pool.reported(some + more)
    assert less.tokens <= greater.tokens and less.num_blocks <= greater.num_blocks
    if less.refused and greater.refused:
        assert less.refused.largest_context <= greater.refused.largest_context
    assert not (greater.refused and not less.refused)


@given(models, versions, st.integers(1, 10**6))
def test_what_is_refused_is_what_lies_below_the_least(
    layers: list[Layer], version: str, context: int
) -> None:
    pool = pool_of(layers, version, context)
    assert pool.reported(pool.least_bytes).refused is None
    short = pool.reported(pool.least_bytes - 1).refused
    assert short and short.largest_context < context
    if short.largest_context:
        auto = pool.reported(pool.least_bytes - 1, auto=True)
        assert auto.refused is None and auto.context == short.largest_context


@given(models, versions, st.integers(1, 10**6))
def test_layers_are_all_in_some_group(layers: list[Layer], version: str, context: int) -> None:
    pool = pool_of(layers, version, context)
    assert sum(group.layers for group in pool.groups) == len(layers)
    assert all(group.total_page_bytes <= pool.block_bytes for group in pool.groups)


@given(st.lists(attending, min_size=1, max_size=12), versions, st.integers(1, 10**6))
def test_fp8_never_needs_more(layers: list[Layer], version: str, context: int) -> None:
    """Without states, that is: those are padded to pages, and pages of FP8 round up further."""
    auto, fp8 = pool_of(layers, version, context), pool_of(layers, version, context, kv_cache_dtype="fp8")
    assert 2 * fp8.request_bytes == auto.request_bytes


@given(models, versions, st.integers(1, 10**6), st.integers(1, 16))
@example(
    [FullAttention(12, 128, 64), LinearAttention(637178, 9455, 3), FullAttention(3, 64, 64)], "0.12.0", 16, 1
)
@example(
    [FullAttention(1, 64, 64), SlidingAttention(1, 64, 64, 1), ChunkedAttention(1, 64, 64, 1)], "0.11.2", 1, 1
)
def test_each_further_user_adds_what_a_request_keeps_between_steps(
    layers: list[Layer], version: str, context: int, users: int
) -> None:
    pool = pool_of(layers, version, context)
    architecture = Architecture("test", tuple(layers), 1, 1, 2**20)
    cache = size_kv_cache(vllm_launch(version), architecture, context, users)
    first = pool.bytes_for(1)
    further = pool.bytes_for(2) - first
    assert cache.bytes == first + (users - 1) * further
    assert further <= first >= pool.request_bytes
    assert first % pool.block_bytes == 0
    if not any(isinstance(layer, SlidingAttention | ChunkedAttention) for layer in layers):
        assert further == first
    assert pool.resident(cache.pool_bytes) >= users
    assert cache.pool_bytes >= cache.bytes + pool.block_bytes


def test_ling_2_6_has_the_pool_of_vllms_own_class() -> None:
    """28 layers of lightning attention whose states have the dtype of the model, and 4 of MLA.

    vLLM 0.32's BailingMoeV2_5ForCausalLM, asked by `scripts/record-kv` on 2026-11-16: transformers does not
    know the type of its config, so it was asked with the type of DeepSeek-V3 and all keys of its own.
    """
    config = json.loads((FAMILIES / "bailing_hybrid.json").read_text()) | {"num_nextn_predict_layers": 0}
    launch = vllm_launch("0.32.0", max_model_len="65536", kv_cache_memory_bytes=str(16 * GIB))
    architecture = architecture_of_config(config)
    pool = vllm_pool(launch, architecture, 65_536)
    assert (pool.block_bytes, pool.request_bytes, pool.least_bytes) == (4_718_592, 368_050_176, 372_768_768)
    assert {spec.block_size for group in pool.groups for spec in group.specs} == {1024}
    (printed,) = reported_kv(launch, architecture, 65_536, 16 * GIB)
    assert (printed.num_blocks, printed.tokens, printed.concurrency_text) == (3640, 3_058_346, "46.67")
