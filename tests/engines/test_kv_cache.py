"""KV bytes against what engines printed: vLLM's boot logs on a GB10, llama.cpp's own buffer lines.

How vLLM's layers share a pool: rules that no recorded case reaches, and what holds for every model.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given, reject
from hypothesis import strategies as st

from firesteel.engines.kv_cache import KvCache, reported_kv, size_kv_cache
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
from firesteel.launch import EngineName, EngineProgram, FlagValue, Launch
from firesteel.units import GIB, MIB
from firesteel.values import replace

FULL = FullAttention(2, 256, 256)
DELTA = LinearAttention(32 * 128 * 128, 2 * 16 * 128 + 32 * 128, 4)


def shape(*layers: Layer, drafters: int = 0) -> Architecture:
    return Architecture("test", layers, 2048, 1000, 2**20, drafter_layers=drafters)


def held(
    engine: EngineName,
    architecture: Architecture,
    context: int,
    users: int = 1,
    flags: dict[str, FlagValue] | None = None,
    version: str | None = None,
) -> KvCache:
    return size_kv_cache(Launch("x", "x", engine, version, flags or {}), architecture, context, users)


LAYERS: list[Layer] = [DELTA, DELTA, DELTA, FULL]
QWEN36 = shape(*LAYERS * 10, drafters=1)
PAIR: list[Layer] = [SlidingAttention(8, 64, 64, 128), FullAttention(8, 64, 64)]
GPT_OSS = shape(*PAIR * 18)


def test_vllm_hybrid_as_logged_on_a_gb10() -> None:
    """Qwen3.6-35B-A3B, BF16 KV: 47.55 GiB held 18.44 requests of 131,072 tokens (vLLM 0.19.2rc1)."""
    a_request = held("vllm", QWEN36, 131072, version="0.19.2rc1").bytes
    blocks = int(47.55 * GIB) // (1056 * 2048 * 10)
    assert a_request == 128 * 1056 * 2048 * 10
    assert blocks / 128 == pytest.approx(18.44, abs=0.005)


def test_vllm_hybrid_pages_grow_with_fp8_and_speculation() -> None:
    """Attention blocks of 2096 tokens with FP8 KV, as logged; a draft layer joins the attention group."""
    fp8 = held("vllm", QWEN36, 2096, flags={"kv-cache-dtype": "fp8"}, version="0.19.2rc1")
    assert fp8.bytes == (1 + 3) * 2096 * 1024 * 10
    speculating: dict[str, FlagValue] = {"speculative-config": {"method": "mtp", "num_speculative_tokens": 2}}
    assert held("vllm", QWEN36, 2096, flags=speculating).bytes_per_token == 11 * 2048


def test_the_naive_formula_is_four_times_off() -> None:
    naive = 40 * 2048 * 131072
    assert naive / held("vllm", QWEN36, 131072).bytes == pytest.approx(3.8, abs=0.1)


@pytest.mark.parametrize(
    ("version", "flags", "states"),
    [
        ("0.19.2rc1", {}, 1),
        ("0.25.0", {}, 1),
        ("0.25.0", {"enable-prefix-caching": True}, 2),
        ("0.26.0", {}, 1),
        ("0.27.1", {}, 1),
        ("0.28.0", {}, 2),
        ("0.28.0", {"enable-prefix-caching": False}, 1),
        ("0.28.0", {"speculative-config": {"method": "mtp", "num_speculative_tokens": 3}}, 5),
        (None, {}, 2),
        ("nightly", {}, 2),
    ],
)
def test_vllm_states_by_version_and_prefix_caching(
    version: str | None, flags: dict[str, FlagValue], states: int
) -> None:
    """`MambaSpec.max_memory_usage_bytes`; hybrids cache prefixes by default from 0.28."""
    cache = held("vllm", QWEN36, 1, flags=flags, version=version)
    assert cache.bytes == (1 + 3 * states) * cache.block_bytes


@pytest.mark.parametrize(
    ("version", "flags", "tokens"),
    [
        ("0.25.0", {}, 8192),
        ("0.28.0", {}, 2 * 8192),
        ("0.28.0", {"async-scheduling": False}, 8192),
        ("0.28.0", {"max-num-batched-tokens": "2048"}, 2 * 2048),
        (None, {}, 2 * 8192),
    ],
)
def test_vllm_windows_hold_the_batches_in_flight(
    version: str | None, flags: dict[str, FlagValue], tokens: int
) -> None:
    """`SlidingWindowSpec.max_admission_blocks_per_request`, with `max_in_flight_tokens` from 0.26."""
    cache = held("vllm", GPT_OSS, 131072, flags=flags, version=version)
    assert cache.bytes == (8192 + -(-(127 + tokens) // 16) + 1) * cache.block_bytes


@pytest.mark.parametrize(
    ("model_type", "flags", "block"),
    [
        ("qwen3_next", {}, 544),
        ("qwen3_5_moe", {}, 1056),
        ("qwen3_next", {"mamba-ssm-cache-dtype": "float32"}, 1056),
        ("qwen3_5_moe", {"mamba-ssm-cache-dtype": "bfloat16"}, 544),
    ],
)
def test_vllm_state_is_as_wide_as_the_family_has_it(
    model_type: str, flags: dict[str, FlagValue], block: int
) -> None:
    architecture = replace(shape(*LAYERS * 12), model_type=model_type)
    assert held("vllm", architecture, 131072, flags=flags).block_bytes == block * 2048 * 12


def test_vllm_pads_the_smaller_kind_when_both_are_near() -> None:
    """gpt-oss-20b with an EAGLE layer: 12 sliding and 13 full layers make two groups of 13."""
    architecture = shape(*[SlidingAttention(8, 64, 64, 128)] * 12, *[FullAttention(8, 64, 64)] * 13)
    assert held("vllm", architecture, 16).bytes == (1 + 2) * 16 * 2048 * 13


def test_a_model_without_attention_still_has_states() -> None:
    cache = held("vllm", shape(DELTA, DELTA), 131072)
    assert cache.bytes == 2 * (32 * 128 * 128 * 4 + 3 * 8192 * 2) == cache.state_bytes


def test_the_pool_has_a_block_to_spare() -> None:
    cache = held("vllm", GPT_OSS, 131072, 4)
    assert cache.pool_bytes >= 1.02 * (cache.bytes + cache.block_bytes)
    assert cache.pool_bytes % MIB == 0
    assert held("llamacpp", GPT_OSS, 131072).pool_bytes == held("llamacpp", GPT_OSS, 131072).bytes


@pytest.mark.parametrize(("context", "users"), [(1024, 1), (1000, 1), (1000, 4), (130, 16), (131072, 4)])
def test_blocks_of_128_tokens_hold_every_request_too(context: int, users: int) -> None:
    """vLLM on a CPU has such blocks: with 1,024 tokens planned for one user, 896 fitted."""
    architecture = shape(*[FullAttention(3, 64, 64)] * 30)
    cache = held("vllm", architecture, context, users)
    blocks = cache.pool_bytes // (128 * cache.bytes_per_token) - 1  # one stays empty
    assert blocks >= users * -(-context // 128)


def test_vllm_on_a_cpu_has_blocks_of_128_tokens() -> None:
    """vLLM 0.32 printed `CPU KV cache size: 1,152 tokens` for SmolLM2 with 26 MiB (2026-11-16): nine."""
    architecture = shape(*[FullAttention(3, 64, 64)] * 30)
    program = EngineProgram(("vllm", "serve"), "0.32.0", uses_gpu=False)
    launch = Launch("x", "x", "vllm", "0.32.0", {}, program=program)
    cache = size_kv_cache(launch, architecture, 1024, 1)
    assert cache.block_bytes == 128 * cache.bytes_per_token
    assert 26 * MIB // cache.block_bytes * 128 == 1152


def test_llamacpp_takes_256_users() -> None:
    assert held("llamacpp", GPT_OSS, 256, 256).users == 256
    with pytest.raises(UsageError, match="256 users") as refused:
        held("llamacpp", GPT_OSS, 256, 300)
    assert refused.value.next == "--users 256"


def test_llamacpp_checkpoints_copy_what_cannot_be_rolled_back() -> None:
    assert held("llamacpp", QWEN36, 4096).checkpoint_bytes == 30 * (32 * 128 * 128 + 3 * 8192) * 4
    assert held("llamacpp", GPT_OSS, 4096).checkpoint_bytes == 18 * 8 * 128 * 2 * 768
    assert held("llamacpp", GPT_OSS, 4096, flags={"swa-full": True}).checkpoint_bytes == 0
    assert held("llamacpp", shape(FULL), 4096).checkpoint_bytes == 0


def test_sliding_windows_stop_growing() -> None:
    for engine in ("vllm", "llamacpp"):
        cache = held(engine, GPT_OSS, 131072)
        full = 18 * 8 * 128 * 2 * 131072
        assert full < cache.bytes < 1.2 * full
        assert cache.bytes_per_token == 18 * 8 * 128 * 2


@pytest.mark.parametrize(
    ("context", "users", "flags", "mib"),
    [
        (2048, 2, {}, 90.00),
        (2048, 2, {"cache-type-k": "q8_0"}, 68.91),
        (4096, 2, {}, 180.00),
        (1000, 3, {}, 67.50),
    ],
)
def test_llamacpp_as_logged_for_smollm2(
    context: int, users: int, flags: dict[str, FlagValue], mib: float
) -> None:
    """`llama_kv_cache: size = ... MiB` of build 11549."""
    smollm2 = shape(*[FullAttention(3, 64, 64)] * 30)
    assert held("llamacpp", smollm2, context, users, flags).bytes / MIB == pytest.approx(mib, abs=0.01)


def test_an_unknown_cache_type_is_not_guessed() -> None:
    with pytest.raises(UsageError, match="turbo9"):
        held("vllm", GPT_OSS, 1000, flags={"kv-cache-dtype": "turbo9"})


layer = st.one_of(
    st.builds(FullAttention, st.integers(1, 16), st.integers(1, 256), st.integers(1, 256)),
    st.builds(
        SlidingAttention, st.integers(1, 16), st.integers(1, 256), st.integers(1, 256), st.integers(1, 4096)
    ),
    st.builds(LinearAttention, st.integers(1, 2**20), st.integers(1, 2**14), st.integers(1, 8)),
)


@given(
    st.sampled_from(["vllm", "llamacpp", "sglang"]),
    st.lists(layer, min_size=1, max_size=12),
    st.integers(1, 10**6),
    st.integers(0, 10**6),
    st.integers(1, 8),
)
def test_more_context_or_users_never_need_less(
    engine: EngineName, layers: list[Layer], context: int, more: int, users: int
) -> None:
    architecture = shape(*layers)
    small = held(engine, architecture, context, users)
    assert small.bytes <= held(engine, architecture, context + more, users).bytes
    assert small.bytes <= held(engine, architecture, context, users + 1).bytes
    assert small.bytes >= 0 and small.state_bytes <= max(small.bytes, small.state_bytes)


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
