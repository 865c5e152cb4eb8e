"""The shipped recipes on a GB10 at rest: fit, sizes and speed against what people measured."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

import firesteel
from firesteel.facts.host import Host
from firesteel.launch import Ask
from firesteel.planner import Band
from firesteel.rules import Proposal, insist
from firesteel.units import GIB

GB10 = firesteel.host("gb10")


def best(name: str, host: Host = GB10, context: int | None = None, users: int | None = None) -> Proposal:
    return firesteel.propose(Ask(name, context, users), host)[0]


@pytest.mark.parametrize(
    ("name", "measured", "source"),
    [
        ("gpt-oss-120b-llamacpp", 58.72, "ggml-org/llama.cpp benches/dgx-spark, b7941"),
        ("gpt-oss-120b-llamacpp", 55.37, "NVIDIA's table, llama.cpp at 2k"),
        ("qwen3-coder-next-q4", 51.7, "jschmied/dgx-spark-setup-guide"),
        ("qwen3-coder-next-fp8", 43, "vLLM 0.15.1, reported"),
        ("qwen3.6-35b-a3b-nvfp4", 75.2, "heitor-mocelin/dgx-spark-research, no speculation"),
        ("gpt-oss-120b-vllm", 33.5, "dgx-spark-playbooks issue 79, vLLM 0.15.1"),
    ],
)
def test_published_speeds_lie_in_the_band(name: str, measured: float, source: str) -> None:
    speed = best(name).plan.speed
    assert speed is not None
    assert speed.decode_tokens_per_s.low <= measured <= speed.decode_tokens_per_s.high, source
    assert measured < speed.bound_tokens_per_s


def test_every_recipe_fits_an_idle_spark_and_breaks_no_rule() -> None:
    for proposal in firesteel.propose(Ask(), GB10):
        assert proposal.can_run, proposal.name


def test_vllm_gets_bytes_and_a_fraction_that_covers_them() -> None:
    plan = best("qwen3.6-35b-a3b-nvfp4").plan
    kv, fraction = plan.launch.flags["kv-cache-memory-bytes"], plan.launch.flags["gpu-memory-utilization"]
    assert isinstance(kv, str) and isinstance(fraction, str)
    assert int(kv) >= plan.cache.bytes
    assert float(fraction) * plan.host.memory_total_bytes >= plan.memory.needed.high


def test_the_parts_add_up() -> None:
    memory = best("gpt-oss-120b-vllm").plan.memory
    assert memory.needed.expected == sum(part.bytes.expected for part in memory.parts)
    assert [part.name for part in memory.parts][:2] == ["weights", "KV cache"]


def test_verdicts() -> None:
    needed = best("gpt-oss-120b-llamacpp").plan.memory.needed

    def verdict(room: float) -> str:
        host = replace(GB10, memory_available_bytes=ceil(room) + GB10.keep_free_bytes)
        return best("gpt-oss-120b-llamacpp", host).plan.memory.verdict

    assert verdict(needed.high) == "fits"
    assert verdict(needed.expected) == "tight"
    assert verdict(needed.expected - GIB) == "does not fit"


@given(st.integers(1024, 131072), st.integers(1, 8), st.integers(0, 65536))
def test_more_context_never_needs_less_and_is_never_faster(context: int, users: int, more: int) -> None:
    small = best("gpt-oss-120b-llamacpp", context=context, users=users).plan
    large = best("gpt-oss-120b-llamacpp", context=min(131072, context + more), users=users).plan
    assert small.memory.needed.expected <= large.memory.needed.expected
    assert small.speed is not None and large.speed is not None
    assert small.speed.decode_tokens_per_s.expected >= large.speed.decode_tokens_per_s.expected


def test_bands_add() -> None:
    assert Band(1, 2, 3) + Band.exactly(1) == Band(2, 3, 4)


def test_what_would_fit_is_said() -> None:
    host = replace(GB10, memory_available_bytes=70 * GIB + GB10.keep_free_bytes)
    with pytest.raises(firesteel.FiresteelError) as refused:
        insist(best("gpt-oss-120b-llamacpp", host, context=131072, users=8))
    assert refused.value.exit_code == 4
    assert refused.value.next.startswith("--context ")
    context = int(refused.value.next.split()[1])
    assert best("gpt-oss-120b-llamacpp", host, context=context, users=8).plan.fits
    assert not best("gpt-oss-120b-llamacpp", host, context=context + 1024, users=8).plan.fits


def test_weights_that_do_not_fit_get_no_advice_on_context() -> None:
    host = replace(GB10, memory_available_bytes=30 * GIB + GB10.keep_free_bytes)
    with pytest.raises(firesteel.FiresteelError, match="does not fit") as refused:
        insist(best("gpt-oss-120b-llamacpp", host))
    assert refused.value.next.startswith("firesteel models")
