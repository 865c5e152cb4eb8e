"""SGLang's pool, held against what SGLang's own functions answer in two releases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.engines.kv_cache import size_kv_cache
from firesteel.engines.sglang.kv_cache import SglangPool, sglang_pool
from firesteel.errors import UsageError
from firesteel.facts.model.architecture import (
    Architecture,
    CompressedAttention,
    FullAttention,
    Indexer,
    LatentAttention,
    Layer,
    LinearAttention,
    SlidingAttention,
    SparseAttention,
)
from firesteel.facts.model.config import architecture_of_config
from firesteel.launch import FlagValue, Launch
from firesteel.units import GIB

CASES = Path(__file__).parent / "sglang_cases"
CONFIGS = Path(__file__).parent.parent / "facts" / "configs"
ASKED = json.loads((CASES / "cases.json").read_text())
RECORDED = {
    release: json.loads((CASES / f"{release}.json").read_text())["answers"]
    for release in ("0.5.12", "0.5.23")
}
PAIRS = [
    (release, case)
    for release, answers in RECORDED.items()
    for case in ASKED
    if "not_recorded" not in answers[case["name"]]
]
HAS_TOWERS = ("Qwen3.5", "gemma-4")


@pytest.mark.parametrize(("release", "case"), PAIRS, ids=lambda it: it if isinstance(it, str) else it["name"])
def test_bytes_and_tokens_equal_those_of_sglang(release: str, case: dict[str, Any]) -> None:
    recorded = RECORDED[release][case["name"]]
    config = json.loads((CONFIGS / f"{case['config']}.json").read_text())
    flags: dict[str, FlagValue] = {
        name: value if isinstance(value, bool) else str(value) for name, value in case["flags"].items()
    }
    sized = sglang_pool(flags, architecture_of_config(config), release)
    before, after = int(case["before_gib"] * GIB), int(case["after_gib"] * GIB)
    fraction = case["flags"].get("mem-fraction-static", 0.85)
    has_towers = any(name in case["config"] for name in HAS_TOWERS)
    rest = sized.rest_bytes(before, after, fraction, has_towers)
    found = {"cell_bytes": sized.cell_bytes, "tokens": sized.tokens(rest)}
    if sized.state_bytes:
        found |= {"states": sized.states(rest), "state_bytes": sized.state_bytes}
    else:
        found["rest_bytes"] = rest
    assert found == {key: recorded[key] for key in found}
    assert sized.tokens(sized.bytes_for(1000)) >= 1000 or sized.state_bytes


def test_two_releases_have_ten_cases_each() -> None:
    assert all(sum(release == known for known, _ in PAIRS) >= 10 for release in RECORDED)


def test_a_release_between_takes_the_larger_of_each() -> None:
    config = json.loads((CONFIGS / "zai-org--GLM-5.2.json").read_text())
    fp8: dict[str, FlagValue] = {"kv-cache-dtype": "fp8_e4m3"}
    sizes = [
        sglang_pool(fp8, architecture_of_config(config), release).cell_bytes
        for release in ("0.5.12", "0.5.18", "0.5.23")
    ]
    assert sizes[1] > max(sizes[0], sizes[2])


FULL, SLIDING = FullAttention(8, 64, 64), SlidingAttention(8, 64, 64, 128)
DELTA = LinearAttention(32 * 128 * 128, 8192, 4)
STATE = 32 * 128 * 128 * 4 + 3 * 8192 * 2


def pool(*layers: Layer, family: str = "test", version: str | None = None, **flags: FlagValue) -> SglangPool:
    shape = Architecture(family, layers, 2048, 1000, 2**20)
    return sglang_pool({name.replace("_", "-"): value for name, value in flags.items()}, shape, version)


@pytest.mark.parametrize(
    ("sized", "cell"),
    [
        (pool(FULL, FULL), 2 * 2048),
        (pool(FULL, FULL, kv_cache_dtype="fp8_e4m3"), 2 * 1024),
        (pool(LatentAttention(512, 64)), 1152),
        (pool(LatentAttention(512, 64), kv_cache_dtype="fp8_e4m3"), 576),
        (pool(LatentAttention(512, 64, Indexer(64, 128), 2048)), 1152 + 132),
        (pool(LatentAttention(512, 64, Indexer(64, 128), 2048), kv_cache_dtype="fp8_e4m3"), 656 + 132),
        (pool(LatentAttention(512, 64, None, 2048)), 1152),
        (pool(FULL, SLIDING, family="gpt_oss"), 2048 + 0.8 * 2048),
        (pool(FULL, SLIDING, family="gpt_oss", swa_full_tokens_ratio="0.5"), 1.5 * 2048),
        (pool(FULL, SLIDING, family="gpt_oss", disable_hybrid_swa_memory=True), 2 * 2048),
        (pool(FULL, SLIDING, family="gemma3_text"), 2 * 2048),
        (pool(SLIDING, SLIDING, family="gpt_oss"), 2 * 2048),
        (pool(FULL, DELTA), 2048),
    ],
)
def test_bytes_per_token(sized: SglangPool, cell: float) -> None:
    assert sized.cell_bytes == cell


def test_the_fraction_counts_weights_and_pool_together() -> None:
    """Of 100 GiB free before and 60 after loading, a fraction of 0.85 leaves 15 free and 45 for the pool."""
    assert pool(FULL).rest_bytes(100 * GIB, 60 * GIB, 0.85) == pytest.approx(45 * GIB, abs=1)


def test_tokens_are_whole_pages() -> None:
    assert pool(FULL).tokens(2048 * 1000 + 2047) == 1000
    assert pool(FULL, page_size="64").tokens(2048 * 1000) == 960


def test_states_take_their_share_first() -> None:
    """0.9 / 1.9 of the rest, in whole states of which one pads the pool."""
    rest = 19 * 1000 * STATE
    assert pool(FULL, DELTA).tokens(rest) == (rest - 9000 * STATE) // 2048
    assert pool(FULL, DELTA).tokens(STATE) == 0


@pytest.mark.parametrize(
    ("flags", "version", "each"),
    [
        ({"mamba_radix_cache_strategy": "no_buffer"}, None, 3),
        ({"mamba_scheduler_strategy": "extra_buffer"}, "0.5.12", 5),
        ({}, "0.5.12", 3),
        ({}, "0.5.14", 5),
        ({}, None, 5),
        ({"disable_overlap_schedule": True}, "0.5.23", 4),
        ({"mamba_radix_cache_strategy": "extra_buffer_lazy"}, "0.5.23", 4),
        ({"disable_radix_cache": True}, "0.5.23", 1),
    ],
)
def test_states_of_a_request_while_prefixes_are_cached(
    flags: dict[str, Any], version: str | None, each: int
) -> None:
    sized = pool(FULL, DELTA, version=version, **flags)
    assert sized.state_slots(4) == each * 4
    assert sized.state_bytes_for(4) == (each * 4 + sized.spare_states) * STATE


def test_states_that_a_launch_asks_for_and_those_of_drafts() -> None:
    assert pool(FULL, DELTA, max_mamba_cache_size="96").state_bytes_for(4) == 97 * STATE
    drafted = pool(
        FULL, DELTA, disable_radix_cache=True, speculative_algorithm="NEXTN", speculative_num_draft_tokens="3"
    )
    assert drafted.state_bytes_for(4) == (4 + 1 + 5 * 3) * STATE
    assert pool(FULL, speculative_algorithm="NEXTN").state_bytes_for(4) == 0
    assert pool(FULL, DELTA, mamba_ssm_dtype="bfloat16").state_bytes < STATE


@pytest.mark.parametrize(
    "layer",
    [
        SparseAttention(4, 128, 128, Indexer(4, 64), 2048),
        CompressedAttention(512, 64, 128, 4, Indexer(64, 128), 512),
    ],
)
def test_what_was_not_read_is_refused_by_name(layer: Layer) -> None:
    with pytest.raises(UsageError, match=type(layer).__name__):
        pool(layer)


@pytest.mark.parametrize("ratio", ["", "x", "-1", "0", "1e9", "9" * 40, True])
def test_a_ratio_is_a_number_above_zero(ratio: FlagValue) -> None:
    with pytest.raises(UsageError, match="swa-full-tokens-ratio"):
        pool(FULL, swa_full_tokens_ratio=ratio)


@given(
    st.lists(st.sampled_from([FULL, SLIDING, DELTA]), min_size=1, max_size=12),
    st.integers(1, 10**6),
    st.integers(0, 2**40),
    st.integers(0, 2**40),
)
def test_more_bytes_never_give_fewer_tokens_but_by_a_state(
    layers: list[Layer], page: int, some: int, more: int
) -> None:
    """One more state can cost tokens: its bytes are not all new."""
    sized = pool(*layers, family="gpt_oss", page_size=str(page))
    lost = sized.state_bytes / sized.cell_bytes + page + 1 if sized.cell_bytes else 0
    assert sized.tokens(some) <= sized.tokens(some + more) + lost


@given(st.lists(st.sampled_from([FULL, SLIDING]), min_size=1, max_size=12), st.integers(1, 10**6))
def test_a_pool_for_so_many_tokens_holds_them(layers: list[Layer], tokens: int) -> None:
    sized = pool(*layers, family="gpt_oss")
    assert sized.tokens(sized.bytes_for(tokens)) >= tokens


def test_the_cache_of_a_launch() -> None:
    launch = Launch("x", "x", "sglang", "0.5.23", {})
    cache = size_kv_cache(launch, Architecture("test", (FULL, DELTA), 2048, 1000, 2**20), 4096, 2)
    assert cache.bytes == 2048 * 4096 * 2 + 11 * STATE
    assert cache.state_slots == 10
    assert (cache.state_bytes, cache.bytes_per_token, cache.block_bytes) == (11 * STATE, 2048, 0)
