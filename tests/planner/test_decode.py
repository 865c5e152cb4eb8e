"""What a decode step reads, and what follows from it whatever the figures are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.facts.model.architecture import (
    Architecture,
    FullAttention,
    LatentAttention,
    LinearAttention,
    NoCache,
    SharedKv,
    SlidingAttention,
)
from firesteel.facts.model.tensors import Role, Weights
from firesteel.planner.speed.decode import (
    all_reduces,
    constants,
    coverage,
    kv_read_bytes,
    step_ms,
    step_reads,
    stored_bytes,
    terms,
)

BANDWIDTH = 273e9
FULL = FullAttention(8, 128, 128)
DENSE = Architecture("dense", (FULL,) * 32, 4096, 128_256, 131_072)
MIXTURE = Architecture("mixture", (FULL,) * 48, 2048, 151_936, 131_072, experts=128, experts_per_token=8)
WEIGHTS = {
    (Role.ATTENTION, "BF16"): 2e9,
    (Role.ROUTED_EXPERTS, "NVFP4"): 16e9,
    (Role.HEAD, "BF16"): 0.6e9,
    (Role.EMBEDDINGS, "BF16"): 0.6e9,
    (Role.TOWER, "BF16"): 1e9,
    (Role.DRAFTER, "BF16"): 1e9,
}


def test_a_step_reads_what_it_uses() -> None:
    read = step_reads("vllm", MIXTURE, WEIGHTS, False, 0, "fp8")
    assert read.weights == {"wide": 2e9, "head": 0.6e9}
    assert read.bytes() == pytest.approx(2e9 + 0.6e9 + 16e9 * 8 / 128)


def test_a_tied_head_is_its_table_and_not_the_tables_beside_it() -> None:
    """Gemma 4 E2B keeps a table for each layer too, of which a step reads a row."""
    table = 128_256 * 4096 * 2.0
    read = step_reads("vllm", DENSE, {(Role.EMBEDDINGS, "BF16"): table + 4.7e9}, True, 0, "auto")
    assert read.weights == {"head": table}


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        ("MXFP4", "mxfp4"),
        ("Q8_0", "q8_0"),
        ("Q4_0", "legacy"),
        ("Q5_0", "legacy"),
        ("Q6_K", "k_quant"),
        ("", ""),
    ],
)
def test_llamacpp_has_a_kernel_for_each_kind(dtype: str, kind: str) -> None:
    read = step_reads("llamacpp", DENSE, {(Role.DENSE_MLP, dtype): 1e9}, False, 0, "f16")
    assert read.weights == {kind: 1e9}


@pytest.mark.parametrize(
    ("layer", "depth", "elements"),
    [
        (FULL, 1000, 8 * 256 * 1000),
        (SlidingAttention(8, 128, 128, 128), 1000, 8 * 256 * 128),
        (SlidingAttention(8, 128, 128, 4096), 1000, 8 * 256 * 1000),
        (LatentAttention(512, 64), 1000, 576 * 1000),
        (LatentAttention(512, 64, attends=256), 1000, 576 * 256),
        (NoCache("moe"), 1000, 0),
    ],
)
def test_the_kv_cache_that_a_layer_reads(layer: FullAttention, depth: int, elements: int) -> None:
    shape = Architecture("one", (layer,), 4096, 1000, 4096)
    assert kv_read_bytes(shape, depth, "auto") == 2 * elements


def test_a_state_is_read_and_written_whatever_the_depth() -> None:
    shape = Architecture("state", (LinearAttention(524_288, 8192, 4),), 2048, 1000, 4096)
    assert (
        kv_read_bytes(shape, 10, "auto")
        == kv_read_bytes(shape, 100_000, "auto")
        == 2 * (524_288 * 4 + 8192 * 3 * 2)
    )


def test_a_layer_that_shares_a_cache_reads_it() -> None:
    alone = Architecture("alone", (FULL,), 4096, 1000, 4096)
    shared = Architecture("shared", (FULL, SharedKv(0)), 4096, 1000, 4096)
    assert kv_read_bytes(shared, 100, "auto") == 2 * kv_read_bytes(alone, 100, "auto")


@given(st.integers(2, 512), st.data())
def test_coverage_grows_with_users_and_never_passes_all(experts: int, data: st.DataObject) -> None:
    active = data.draw(st.integers(1, experts))
    users = data.draw(st.integers(1, 512))
    share = coverage(experts, active, users)
    assert active / experts - 1e-9 <= share <= 1
    assert share <= coverage(experts, active, users + 1) + 1e-12


def test_one_token_covers_its_own_experts() -> None:
    assert coverage(128, 8, 1) == pytest.approx(8 / 128)
    assert coverage(0, 0, 4) == 0


def milliseconds(users: int, depth: int, independence: float = 1.0) -> float:
    read = step_reads("vllm", MIXTURE, WEIGHTS, False, depth, "fp8")
    fits = constants().engines["vllm"]
    costs = {**fits.decode.costs, **fits.crowd.costs}
    return step_ms("vllm", terms(read, BANDWIDTH, users, independence), costs)[1]


@given(st.integers(2, 64), st.integers(0, 100_000), st.integers(0, 10_000))
def test_more_depth_and_more_users_never_make_a_step_shorter(users: int, depth: int, more: int) -> None:
    assert milliseconds(users, depth) <= milliseconds(users, depth + more)
    assert milliseconds(users, depth) <= milliseconds(users + 1, depth)


@given(st.integers(2, 64))
def test_users_who_share_experts_step_faster(users: int) -> None:
    assert milliseconds(users, 1024, 0.65) <= milliseconds(users, 1024, 1.0)


def test_no_step_is_faster_than_the_bandwidth() -> None:
    for engine, fits in constants().engines.items():
        read = step_reads(engine, MIXTURE, WEIGHTS, False, 4096, "fp8")
        bound = 1000 * read.bytes() / BANDWIDTH
        assert step_ms(engine, terms(read, BANDWIDTH), fits.decode.costs)[0] >= bound


def test_short_rows_cost_one_user_and_not_several() -> None:
    read = step_reads("vllm", MIXTURE, WEIGHTS, False, 0, "fp8")
    assert terms(read, BANDWIDTH)["narrow"] > 0
    assert "narrow" not in terms(read, BANDWIDTH, users=2)
    wide = Architecture("wide", (FULL,) * 48, 5120, 151_936, 131_072)
    assert terms(step_reads("vllm", wide, WEIGHTS, False, 0, "fp8"), BANDWIDTH)["narrow"] == 0


def test_an_unknown_format_spans_every_kind() -> None:
    costs = constants().engines["llamacpp"].decode.costs
    known = {
        kind: step_ms("llamacpp", {kind: 10.0}, costs)[1] for kind in ("mxfp4", "q8_0", "legacy", "k_quant")
    }
    least, likely, most = step_ms("llamacpp", {"": 10.0}, costs)
    assert (least, most) == (min(known.values()), max(known.values()))
    assert least < likely < most


def test_an_unknown_format_may_have_short_rows() -> None:
    unknown = step_reads("vllm", MIXTURE, {(Role.ATTENTION, ""): 2e9}, False, 0, "fp8")
    wide = step_reads("vllm", MIXTURE, {(Role.ATTENTION, "BF16"): 2e9}, False, 0, "fp8")
    costs = constants().engines["vllm"].decode.costs
    most = step_ms("vllm", terms(unknown, BANDWIDTH), costs)[2]
    assert most == pytest.approx(step_ms("vllm", terms(wide, BANDWIDTH), costs)[1])


def test_formats_are_told_where_the_weights_tell_them() -> None:
    weights = Weights({Role.ATTENTION: 100, Role.HEAD: 50}, "counted", "a header")
    assert stored_bytes(weights) == {(Role.ATTENTION, ""): 100, (Role.HEAD, ""): 50}


def test_all_reduces_are_one_a_block() -> None:
    assert all_reduces(DENSE) == 64  # attention and MLP of each layer
    apart = Architecture("apart", (FULL, NoCache("moe"), LinearAttention(1, 1, 4)), 4096, 1000, 4096)
    assert all_reduces(apart) == 3
