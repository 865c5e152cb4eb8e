"""What tune may change: only what the release takes, what fits, and what no rule stops."""

from __future__ import annotations

import random

import pytest

from firesteel.bench.tune.knobs import AS_IT_IS, OFF, Goal
from firesteel.bench.tune.proposals import PlanningContext
from firesteel.bench.tune.space import SearchSpace, make_search_space
from firesteel.edge.programs import embedded_server
from firesteel.engines.schema.releases import find_schema
from firesteel.facts.host.hardware import hardware, idle_host
from firesteel.launch import Ask
from firesteel.library import plans
from firesteel.planner.propose import Proposal
from firesteel.units import Band
from firesteel.values import replace

GB10 = idle_host(hardware("gb10"))
MTP = "qwen3.6-35b-a3b-nvfp4"


def proposed(model: str, version: str | None = None, context: int | None = None) -> Proposal:
    return plans.propose(Ask(model, context, 4, version=version), GB10)[0]


def around() -> PlanningContext:
    known = plans.catalog()
    return PlanningContext(known.images, recipes=tuple(known.recipes.values()))


def spaced(base: Proposal, users: int = 4, goal: Goal = "latency") -> SearchSpace:
    return make_search_space(base, goal, users, around())


@pytest.fixture(scope="module")
def space() -> SearchSpace:
    return spaced(proposed(MTP, context=8192))


def labels(space: SearchSpace, knob: str) -> tuple[str, ...]:
    at = space.knob_index(knob)
    return space.knobs[at].labels if at is not None else ()


def test_the_start_is_the_launch_as_it_is(space: SearchSpace) -> None:
    assert space.changes(space.start) == {}
    assert space.proposal(space.start).plan.launch == space.base.plan.launch


def test_labels_and_settings_are_inverse(space: SearchSpace) -> None:
    lot = random.Random(1)
    for _ in range(100):
        setting = tuple(lot.randrange(len(knob.choices)) for knob in space.knobs)
        assert space.setting(space.labels(setting)) == setting


def test_unknown_flags_of_a_release_are_never_offered() -> None:
    """`--attention-backend` came with 0.13.0."""
    now, old = spaced(proposed("gpt-oss-20b", "0.24.0")), spaced(proposed("gpt-oss-20b", "0.11.0"))
    assert labels(now, "attention-backend") and not labels(old, "attention-backend")


@pytest.mark.parametrize("model", [MTP, "qwen3.5-27b-dflash", "gpt-oss-20b", "mistral-small-4-nvfp4"])
def test_every_choice_is_of_the_release(model: str) -> None:
    space = spaced(proposed(model))
    launch = space.base.plan.launch
    assert launch.version is not None
    known = find_schema("vllm", launch.version)
    assert known is not None
    for knob in space.knobs:
        for choice in knob.choices:
            for flag, value in choice.flags.items():
                assert flag in known.flags, flag
                assert not isinstance(value, str) or known.flags[flag].value.accepts(value), (flag, value)


def test_settings_that_do_not_fit_are_listed_with_the_reason() -> None:
    refused = spaced(plans.propose(Ask("qwen3.6-27b-nvfp4"), GB10)[0], users=8).refused()
    why = [why for changes, why in refused if changes == {"kv-cache-dtype": "auto"}]
    assert len(why) == 1 and "does not fit" in why[0]


def test_settings_that_a_rule_stops_are_listed_with_the_rule() -> None:
    space = spaced(proposed("gpt-oss-20b", "0.26.0"))
    why = [why for changes, why in space.refused() if changes == {"attention-backend": "FLASHINFER"}]
    assert len(why) == 1 and ": " in why[0] and "does not fit" not in why[0]
    at = space.knob_index("attention-backend")
    assert at is not None
    barred = space.with_choice(space.start, at, labels(space, "attention-backend").index("FLASHINFER"))
    assert space.refusal(barred) and not space.refusal(space.start)


def test_only_drafters_of_the_model() -> None:
    assert labels(spaced(proposed(MTP)), "speculation") == (OFF, "mtp 1", "mtp 2", "mtp 3")
    assert labels(spaced(proposed(f"{MTP}-plain")), "speculation") == (OFF, "mtp 1", "mtp 2", "mtp 3")
    assert labels(spaced(proposed("gpt-oss-20b")), "speculation") == ()
    assert "dflash 15" in labels(spaced(proposed("qwen3.5-27b-dflash")), "speculation")


def test_turning_drafting_off_removes_the_flag(space: SearchSpace) -> None:
    at = space.knob_index("speculation")
    assert at is not None
    plain = space.proposal(space.with_choice(space.start, at, 0)).plan
    assert "speculative-config" not in plain.launch.flags
    assert plain.memory.needed.expected < space.base.plan.memory.needed.expected  # its drafter is not loaded


def test_more_sequences_are_planned_again(space: SearchSpace) -> None:
    at = space.knob_index("max-num-seqs")
    assert at is not None and labels(space, "max-num-seqs") == ("4", "8")
    more = space.proposal(space.with_choice(space.start, at, 1)).plan.launch.flags
    assert more["max-num-seqs"] == "8"
    now, then = (int(str(f["kv-cache-memory-bytes"])) for f in (space.base.plan.launch.flags, more))
    assert then > 1.5 * now


def test_fewer_sequences_than_users_only_for_throughput() -> None:
    base = proposed(MTP, context=8192)
    assert "2" in labels(spaced(base, goal="throughput"), "max-num-seqs")
    assert "2" not in labels(spaced(base, goal="latency"), "max-num-seqs")


def test_the_embedded_engine_is_offered_its_own_flags() -> None:
    space = spaced(plans.plan("smollm2")[0], users=1)
    assert {"threads", "flash-attn", "ubatch-size"} <= {knob.name for knob in space.knobs}
    flags = {flag for knob in space.knobs for choice in knob.choices for flag in choice.flags}
    assert flags <= embedded_server.TAKES_VALUE.keys()
    assert labels(space, "ubatch-size") == ("256", AS_IT_IS, "1024", "2048")  # 512 is what it is anyway


def test_load_format_does_not_affect_speed(space: SearchSpace) -> None:
    at = space.knob_index("load-format")
    assert at is not None and space.knobs[at].moves == "start"
    assert space.size * 2 == _grid(space)


def _grid(space: SearchSpace) -> int:
    found = 1
    for knob in space.knobs:
        found *= len(knob.choices)
    return found


def test_own_measurements_do_not_decide_the_ranking(space: SearchSpace) -> None:
    """A start that was measured at ten times its plan must not make all others look slow."""
    speed = space.base.plan.speed
    assert speed is not None
    band = speed.decode_tokens_per_s
    faster = Band(10 * band.low, 10 * band.expected, 10 * band.high)
    fast = replace(speed, basis="measured here", decode_tokens_per_s=faster)
    base = replace(space.base, plan=replace(space.base.plan, speed=fast))
    at = space.knob_index("max-num-batched-tokens")
    assert at is not None
    biased = spaced(base)
    settings = (biased.start, biased.with_choice(biased.start, at, 0))
    now, then = (biased.expected_speed(each, "latency", ("code",), 1) for each in settings)
    assert now is not None and then is not None and then > 0.5 * now


def test_the_plan_ranks_what_it_knows(space: SearchSpace) -> None:
    """One user: more of the past to read with a wider cache, so fp8 is expected to be faster."""
    at = space.knob_index("kv-cache-dtype")
    assert at is not None
    wider = space.with_choice(space.start, at, labels(space, "kv-cache-dtype").index("auto"))
    now, then = (space.expected_speed(each, "latency", ("code",), 1) for each in (space.start, wider))
    assert now is not None and then is not None and now != then
