"""What an earlier start took replaces what was estimated; what was counted stays."""

from __future__ import annotations

import subprocess
import sys

import pytest

import firesteel
from firesteel.facts.host.memory import MeasuredMemory
from firesteel.launch import Ask, FlagValue, Launch
from firesteel.library import plans
from firesteel.planner.memory.measured import launch_key
from firesteel.planner.plan import Plan, plan
from firesteel.planner.propose import propose
from firesteel.units import GIB
from firesteel.values import replace

GB10 = firesteel.host("gb10")
PROPOSAL = firesteel.propose(Ask("qwen3.6-35b-a3b-nvfp4"), GB10)[0]
BEFORE = PROPOSAL.plan
KEY = launch_key(BEFORE.launch)


def row(process_bytes: int, planned: Plan, **seen: int | str | None) -> MeasuredMemory:
    """A start of a plan, as it is remembered."""
    parts = {
        "key": launch_key(planned.launch),
        "engine": "vllm",
        "version": "0.24.0",
        "seen": "2026-11-15",
        "checkpoint_bytes": planned.weights.total_bytes,
        "planned_kv_bytes": planned.kv_bytes,
        **seen,
    }
    return MeasuredMemory(process_bytes=process_bytes, **parts)  # type: ignore[arg-type]  # a table of fields


def again(process_bytes: int, **seen: int | str | None) -> Plan:
    """The same launch, planned after it ran."""
    return plan(BEFORE.launch, BEFORE.shape, BEFORE.weights, GB10, row(process_bytes, BEFORE, **seen))


def sure() -> int:
    return round(sum(part.bytes.expected for part in BEFORE.memory.parts if part.basis != "estimated"))


def test_the_measured_process_replaces_estimates() -> None:
    after = again(process_bytes=sure() + 4 * GIB)
    assert not any(part.basis == "estimated" for part in after.memory.parts)
    engine = next(part for part in after.memory.parts if part.basis == "measured")
    assert engine.bytes.expected == 4 * GIB and "ran here on 2026-11-15" in engine.explanation
    assert (
        after.memory.needed.high - after.memory.needed.low
        < BEFORE.memory.needed.high - BEFORE.memory.needed.low
    )
    assert after.memory.needed.expected == sure() + 4 * GIB
    assert after.notes == BEFORE.notes


def test_counted_parts_stay_where_the_engine_agrees() -> None:
    weights = BEFORE.memory.parts[0]
    said = round(weights.bytes.expected * 1.01)
    after = again(process_bytes=sure() + GIB, weights_bytes=said if weights.basis == "counted" else None)
    assert after.memory.parts[0] == weights


def test_a_larger_cache_than_planned_is_noted() -> None:
    cache = BEFORE.memory.parts[1]
    after = again(process_bytes=sure() + 6 * GIB, kv_bytes=round(cache.bytes.expected * 1.2))
    assert (after.memory.parts[1].bytes, after.memory.parts[1].basis) == (cache.bytes, "formula")
    assert after.memory.needed.expected == sure() + 6 * GIB
    assert any("KV cache:" in note and "by vllm on 2026-11-15" in note for note in after.notes)


def test_reported_weights_replace_derived_ones() -> None:
    derived = replace(BEFORE.weights, provenance="derived")
    seen = row(sure() + 4 * GIB, BEFORE, weights_bytes=derived.total_bytes + GIB)
    after = plan(BEFORE.launch, BEFORE.shape, derived, GB10, seen)
    assert after.memory.parts[0].basis == "measured"
    assert after.memory.parts[0].bytes.expected == derived.total_bytes + GIB


def told(kv_bytes: int, *seen: MeasuredMemory) -> Plan:
    """gpt-oss-120b in vLLM with a cache of so many bytes."""
    ask = Ask("gpt-oss-120b-vllm", kv_cache_bytes=kv_bytes)
    return propose(plans.catalog(), GB10, ask, {each.key: each for each in seen})[0].plan


@pytest.mark.parametrize(
    ("said", "planned"), [(5 * GIB, 5 * GIB), (5 * GIB, None), (None, 5 * GIB), (None, None)]
)
def test_a_larger_cache_than_measured_needs_more(said: int | None, planned: int | None) -> None:
    """It was planned with the 5 GiB of then, and fitted where it would have frozen the host."""
    before = told(5 * GIB)
    seen = row(76 * GIB, before, kv_bytes=said, planned_kv_bytes=planned)
    if said or planned:
        assert told(5 * GIB, seen).memory.needed.expected == 76 * GIB
    after = told(60 * GIB, seen)
    assert after.memory.needed.expected > 120 * GIB and not after.fits


def test_a_smaller_cache_than_measured_needs_no_more() -> None:
    seen = row(84 * GIB, told(12 * GIB), kv_bytes=12 * GIB)
    assert told(5 * GIB, seen).memory.needed.expected == 77 * GIB
    bare = replace(seen, planned_kv_bytes=None)
    assert told(5 * GIB, bare).memory.needed.expected == 84 * GIB


@pytest.mark.parametrize("said", [{}, {"checkpoint_bytes": None}])
@pytest.mark.parametrize("share", [0.5, 0.9, 1.1, 1.5])
def test_another_file_under_the_same_name_is_another_model(share: float, said: dict[str, None]) -> None:
    """A path says nothing of what lies there; the bytes do."""
    sizes = {role: round(size * share) for role, size in BEFORE.weights.bytes_by_role.items()}
    other = replace(BEFORE.weights, bytes_by_role=sizes, provenance="counted")
    seen = row(sure() + 4 * GIB, BEFORE, weights_bytes=BEFORE.weights.total_bytes, **said)
    after = plan(BEFORE.launch, BEFORE.shape, other, GB10, seen)
    assert after.memory.needed == plan(BEFORE.launch, BEFORE.shape, other, GB10).memory.needed
    assert any("of other weights" in note and "not used" in note for note in after.notes)


def test_a_measurement_without_weights_is_not_used() -> None:
    after = again(process_bytes=sure() + 4 * GIB, checkpoint_bytes=None)
    assert after.memory.needed == BEFORE.memory.needed
    assert any("does not say of which weights" in note for note in after.notes)


def test_padding_counted_as_weights_is_not_another_file() -> None:
    before = told(5 * GIB)
    weights, padding = (
        next(part.bytes.expected for part in before.memory.parts if part.name == name)
        for name in ("weights", "expert padding")
    )
    seen = row(80 * GIB, before, weights_bytes=round(weights + padding), checkpoint_bytes=None)
    assert told(5 * GIB, seen).memory.needed.expected == pytest.approx(80 * GIB)


def test_a_different_token_count_is_noted() -> None:
    tokens = BEFORE.printed[0].tokens
    assert any(
        "tokens when it ran here" in note for note in again(process_bytes=sure() + GIB, kv_tokens=7).notes
    )
    assert not any("tokens" in note for note in again(process_bytes=sure() + GIB, kv_tokens=tokens).notes)


@pytest.mark.parametrize(("took", "key"), [(100 * GIB, "x"), (5 * GIB, KEY)])
def test_an_impossible_measurement_is_not_used(took: int, key: str) -> None:
    after = again(took, key=key)
    assert after.memory.needed == BEFORE.memory.needed
    assert any("not used" in note for note in after.notes)


def test_proposals_find_measurements_by_launch_key() -> None:
    seen = {KEY: row(sure() + 4 * GIB, BEFORE)}
    (found, *_) = propose(plans.catalog(), GB10, Ask("qwen3.6-35b-a3b-nvfp4"), seen)
    assert any(part.basis == "measured" for part in found.plan.memory.parts)


LAUNCH = Launch("a", "org/m", "vllm", "0.24.0", {"max-model-len": "8192", "async-scheduling": True})


def with_flags(**flags: FlagValue) -> Launch:
    return replace(
        LAUNCH, flags={**LAUNCH.flags, **{name.replace("_", "-"): value for name, value in flags.items()}}
    )


@pytest.mark.parametrize(
    "same",
    [
        replace(LAUNCH, name="b", port=9000),
        replace(LAUNCH, flags=dict(reversed(list(LAUNCH.flags.items())))),
        replace(LAUNCH, env={"HF_TOKEN": "hf_x"}),
        with_flags(kv_cache_memory_bytes="1", gpu_memory_utilization="0.5", api_key="k", host="0.0.0.0"),
    ],
)
def test_launches_that_take_the_same_have_one_key(same: Launch) -> None:
    assert launch_key(same) == launch_key(LAUNCH)


@pytest.mark.parametrize(
    "other",
    [
        replace(LAUNCH, version="0.24.1"),
        replace(LAUNCH, model="org/n"),
        replace(LAUNCH, engine="sglang"),
        replace(LAUNCH, sparks=2),
        replace(LAUNCH, env={"VLLM_USE_V1": "1"}),
        with_flags(max_model_len="4096"),
        with_flags(enforce_eager=True),
    ],
)
def test_launches_that_may_take_more_have_another(other: Launch) -> None:
    assert launch_key(other) != launch_key(LAUNCH)


def test_a_key_is_the_same_in_every_process() -> None:
    words = (
        "from firesteel.launch import Launch; from firesteel.planner.memory.measured import launch_key; "
        "print(launch_key(Launch('z', 'org/m', 'vllm', '0.24.0', "
        "{'async-scheduling': True, 'max-model-len': '8192'})))"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", words],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed},
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert said == {launch_key(LAUNCH)}
