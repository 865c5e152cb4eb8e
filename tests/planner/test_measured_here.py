"""What an earlier start took replaces what was estimated; what was counted stays."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

import firesteel
from firesteel import library
from firesteel.launch import Ask, FlagValue, Launch
from firesteel.planner import Plan, Realised, launch_key, plan
from firesteel.rules.choose import propose
from firesteel.units import GIB

GB10 = firesteel.host("gb10")
PROPOSAL = firesteel.propose(Ask("qwen3.6-35b-a3b-nvfp4"), GB10)[0]
BEFORE = PROPOSAL.plan
KEY = launch_key(BEFORE.launch)


def again(**seen: int | str | None) -> Plan:
    """The same launch, planned after it ran."""
    parts = {"key": KEY, "engine": "vllm", "version": "0.24.0", "seen": "2026-11-15", **seen}
    return plan(BEFORE.launch, BEFORE.shape, BEFORE.weights, GB10, Realised(**parts))  # type: ignore[arg-type]


def sure() -> int:
    return round(sum(part.bytes.expected for part in BEFORE.memory.parts if part.basis != "estimated"))


def test_estimates_give_way_to_what_the_process_held() -> None:
    after = again(process_bytes=sure() + 4 * GIB)
    assert not any(part.basis == "estimated" for part in after.memory.parts)
    engine = next(part for part in after.memory.parts if part.basis == "measured")
    assert engine.bytes.expected == 4 * GIB and "ran here on 2026-11-15" in engine.why
    assert (
        after.memory.needed.high - after.memory.needed.low
        < BEFORE.memory.needed.high - BEFORE.memory.needed.low
    )
    assert after.memory.needed.expected == sure() + 4 * GIB
    assert after.notes == BEFORE.notes


def test_counted_parts_stay_where_the_engine_says_the_same() -> None:
    weights = BEFORE.memory.parts[0]
    said = round(weights.bytes.expected * 1.01)
    after = again(process_bytes=sure() + GIB, weights_bytes=said if weights.basis == "counted" else None)
    assert after.memory.parts[0] == weights


def test_an_engine_that_differs_is_believed_and_said() -> None:
    cache = BEFORE.memory.parts[1]
    after = again(process_bytes=sure() + 6 * GIB, kv_bytes=round(cache.bytes.expected * 1.2))
    assert after.memory.parts[1].basis == "measured"
    assert any("KV cache:" in note and "by vllm on 2026-11-15" in note for note in after.notes)


def test_derived_weights_are_replaced_by_the_engines_own() -> None:
    derived = replace(BEFORE.weights, provenance="derived")
    seen = Realised(
        KEY, "vllm", None, sure() + 4 * GIB, "2026-11-15", weights_bytes=derived.total_bytes + GIB
    )
    after = plan(BEFORE.launch, BEFORE.shape, derived, GB10, seen)
    assert after.memory.parts[0].basis == "measured"
    assert after.memory.parts[0].bytes.expected == derived.total_bytes + GIB


def test_tokens_that_differ_are_said() -> None:
    tokens = BEFORE.printed[0].tokens
    assert any(
        "tokens when it ran here" in note for note in again(process_bytes=sure() + GIB, kv_tokens=7).notes
    )
    assert not any("tokens" in note for note in again(process_bytes=sure() + GIB, kv_tokens=tokens).notes)


@pytest.mark.parametrize("seen", [{"key": "x", "process_bytes": 100 * GIB}, {"process_bytes": 5 * GIB}])
def test_what_cannot_be_true_is_not_used(seen: dict[str, int | str]) -> None:
    after = again(**seen)
    assert after.memory.needed == BEFORE.memory.needed
    assert any("not used" in note for note in after.notes)


def test_proposals_find_it_by_their_own_key() -> None:
    seen = {KEY: Realised(KEY, "vllm", None, sure() + 4 * GIB, "2026-11-15")}
    (found, *_) = propose(library.catalog(), GB10, Ask("qwen3.6-35b-a3b-nvfp4"), seen)
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
        "from firesteel.launch import Launch; from firesteel.planner import launch_key; "
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
