"""The search finds the best in few runs, the same each time, and asks for nothing that is forbidden.

What tune may change: only what the release takes, what fits, and what no rule stops.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product
from math import exp

import pytest

from firesteel.bench.tune.knobs import AS_IT_IS, OFF, Goal
from firesteel.bench.tune.search import (
    PlanningContext,
    Search,
    SearchAxis,
    SearchSpace,
    Setting,
    make_search_space,
)
from firesteel.edge.programs import embedded_server
from firesteel.engines.schema.releases import find_schema
from firesteel.facts.host.hardware import hardware, idle_host
from firesteel.launch import Ask
from firesteel.library import plans
from firesteel.planner.propose import Proposal
from firesteel.units import Band
from firesteel.values import replace

AXES = (SearchAxis(4, True), SearchAxis(3, True), SearchAxis(4, True), SearchAxis(2), SearchAxis(4))
START = (3, 1, 2, 0, 1)
GRID = list(product(*(range(axis.size) for axis in AXES)))
Truth = Callable[[Setting], float]


def truth(seed: int) -> Truth:
    """Each choice has its factor, ladders a peak, and some pairs one of their own."""
    lot = random.Random(seed)
    main = [[lot.gauss(0, 0.1) for _ in range(axis.size)] for axis in AXES]
    peaks = [lot.uniform(0, axis.size - 1) for axis in AXES]
    pairs = {(k, a, m, b): lot.gauss(0, 0.03) for k, a, m, b in ((0, 1, 3, 1), (2, 0, 4, 2), (0, 0, 4, 3))}

    def score(setting: Setting) -> float:
        total = 0.0
        for k, (axis, at) in enumerate(zip(AXES, setting, strict=True)):
            total += -0.06 * abs(at - peaks[k]) if axis.is_ladder else main[k][at]
        total += sum(gain for (k, a, m, b), gain in pairs.items() if (setting[k], setting[m]) == (a, b))
        return 100 * exp(total)

    return score


def run(search: Search, score: Truth, noise: float = 0.01, seed: int = 0) -> Search:
    lot = random.Random(seed)
    while (setting := search.ask()) is not None:
        search.tell(setting, [score(setting) * exp(lot.gauss(0, noise)) for _ in range(4)])
    return search


@pytest.mark.parametrize("seed", range(8))
def test_near_the_best_in_a_third_of_the_grid(seed: int) -> None:
    score = truth(seed)
    search = run(Search(AXES, START, max_runs=len(GRID)), score, seed=seed)
    assert search.best is not None
    assert score(search.best.setting) >= 0.98 * max(map(score, GRID))
    assert len(search.observations) <= len(GRID) / 3
    assert len({each.setting for each in search.observations}) == len(search.observations)


def test_far_fewer_runs_than_random_search() -> None:
    """How many drawn by lot come as near as often: the search must be worth its code."""
    ours, lots = [], []
    for seed in range(6):
        score = truth(seed)
        near = 0.98 * max(map(score, GRID))
        search = run(Search(AXES, START, max_runs=len(GRID)), score, seed=seed)
        ours.append(next(at for at, each in enumerate(search.observations, 1) if score(each.setting) >= near))
        good = sum(score(setting) >= near for setting in GRID)
        lots.append((len(GRID) + 1) / (good + 1))  # the mean place of the first good one
    assert sum(ours) < 0.5 * sum(lots), (ours, lots)


def test_the_current_setting_comes_first() -> None:
    assert Search(AXES, START).ask() == START


def test_each_knob_is_first_moved_by_itself() -> None:
    """A first alternative that changes five knobs says nothing about any of them."""
    search = run(Search(AXES, START, max_runs=1 + len(AXES)), truth(1), noise=0.3)
    moved = [
        [knob for knob, choice in enumerate(each.setting) if choice != START[knob]]
        for each in search.observations[1:]
    ]
    assert all(len(knobs) == 1 for knobs in moved) and len({knobs[0] for knobs in moved}) == len(AXES), moved


def test_a_knob_that_may_not_be_moved_is_left_out() -> None:
    search = Search(AXES, START, is_excluded=lambda setting: setting[0] != START[0], max_runs=8)
    found = run(search, truth(2)).observations
    assert len(found) == 8 and len({each.setting for each in found}) == 8


def test_the_search_is_deterministic() -> None:
    first, second = (run(Search(AXES, START, seed=3), truth(3)) for _ in range(2))
    assert [each.setting for each in first.observations] == [each.setting for each in second.observations]


def test_replayed_observations_continue_the_search() -> None:
    """What a journal has is all that there is to know."""
    whole = run(Search(AXES, START), truth(4))
    for cut in (1, 5, len(whole.observations) - 1):
        again = Search(AXES, START)
        for each in whole.observations[:cut]:
            again.tell(each.setting, each.values)
        assert again.ask() == whole.observations[cut].setting


def test_excluded_settings_are_never_asked_for() -> None:
    search = run(Search(AXES, START, is_excluded=lambda setting: setting[3] == 1), truth(5))
    assert len(search.observations) > 3 and all(each.setting[3] == 0 for each in search.observations)


def test_max_runs() -> None:
    assert len(run(Search(AXES, START, max_runs=4), truth(6)).observations) == 4


def test_a_choice_that_never_works_is_given_up() -> None:
    score = truth(7)
    search = Search(AXES, START, max_runs=len(GRID))
    while (setting := search.ask()) is not None:
        search.tell(setting, () if setting[4] == 2 else [score(setting)] * 4)
    failed = [each for each in search.observations if not each.values]
    assert len(failed) <= 2
    assert search.best is not None and search.best.setting[4] != 2


def test_it_ends_soon_if_nothing_matters() -> None:
    search = run(Search(AXES, START, max_runs=len(GRID)), lambda setting: 50.0)
    assert len(search.observations) < 30


def test_the_plan_decides_first() -> None:
    """What is expected to be far better is tried before the rest."""
    search = Search(AXES, START, expected=lambda setting: 300.0 if setting[3] == 1 else 100.0)
    search.tell(START, [100.0] * 4)
    asked = search.ask()
    assert asked is not None and asked[3] == 1


def test_clearly_beaten() -> None:
    search = Search(AXES, START)
    assert not search.is_beaten([1.0, 1.0, 1.0])  # nothing to be beaten by
    search.tell(START, [100.0, 101.0, 99.0, 100.0])
    assert search.is_beaten([80.0, 81.0, 79.0])
    assert not search.is_beaten([80.0, 120.0, 60.0])  # too wide to say
    assert not search.is_beaten([99.0, 101.0, 100.0])
    assert not search.is_beaten([50.0, 50.0])  # two may agree by chance


def test_invalid_values_are_a_failure() -> None:
    search = Search(AXES, START)
    search.tell(START, [0.0, -1.0])
    assert search.best is None and search.ask() is None


def test_a_very_large_space_is_drawn_from() -> None:
    axes = tuple(SearchAxis(10) for _ in range(6))
    search = Search(axes, (0,) * 6, max_runs=4)
    found = run(search, lambda setting: 100.0 + sum(setting))
    assert len(found.observations) == 4 and all(len(each.setting) == 6 for each in found.observations)


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
