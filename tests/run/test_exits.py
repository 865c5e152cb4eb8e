from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.run.supervise.exits import (
    AGAIN_CODE,
    CONTAINER_PAUSES_S,
    GOOD_RUN_S,
    PAUSES_S,
    EngineExit,
    ExitKind,
    GiveUp,
    RestartAfter,
    decide,
)

SERVED = EngineExit("died", 600, -9, was_ready=True)
FAILED = EngineExit("died", 40, 1)
LONG = EngineExit("died", GOOD_RUN_S, -9, was_ready=True)


AGAIN = EngineExit("died", 90, AGAIN_CODE)


def test_the_runner_of_a_cluster_may_ask_to_be_started_again() -> None:
    assert decide([SERVED] * 7 + [AGAIN], is_cluster=True) == RestartAfter(1, 1, 1)
    assert decide([SERVED, AGAIN, SERVED], is_cluster=True) == RestartAfter(2, 2, 7), "it is not counted"
    assert decide([AGAIN, AGAIN]) == GiveUp("it was never ready in 2 starts"), "an engine may not"
    told = EngineExit("requested", 9, AGAIN_CODE, was_ready=True)
    assert decide([told], is_cluster=True) == GiveUp("it was told to stop")


@pytest.mark.parametrize(
    ("ends", "answer"),
    [
        ([SERVED], RestartAfter(1, 1, 7)),
        ([SERVED, SERVED], RestartAfter(2, 2, 7)),
        ([SERVED, FAILED, FAILED], RestartAfter(4, 3, 7)),
        ([SERVED] * 7, RestartAfter(60, 7, 7)),
        ([SERVED] * 8, GiveUp("it ended 8 times, the last time after 10 min")),
        ([EngineExit("stuck", 900, -9, was_ready=True)], RestartAfter(1, 1, 7)),
        ([FAILED], RestartAfter(1, 1, 1)),
        ([FAILED, FAILED], GiveUp("it was never ready in 2 starts")),
        ([SERVED, SERVED, SERVED, LONG], RestartAfter(1, 1, 7)),
        ([FAILED, LONG, SERVED], RestartAfter(2, 2, 7)),
        (
            [EngineExit("guard", 5000, -9, was_ready=True)],
            GiveUp("the memory guard stopped it, and would do so again"),
        ),
        ([EngineExit("requested", 9, 0, was_ready=True)], GiveUp("it was told to stop")),
        ([EngineExit("died", 3, 2)], GiveUp("the engine refused its arguments (exit code 2)")),
        ([EngineExit("died", 3, 127)], GiveUp("its program was not found (exit code 127)")),
        ([EngineExit("died", 3, 1, is_fatal=True)], GiveUp("a restart cannot help")),
        ([EngineExit("died", 600, 0, was_ready=True)], RestartAfter(1, 1, 7)),
    ],
)
def test_decide(ends: list[EngineExit], answer: RestartAfter | GiveUp) -> None:
    assert decide(ends) == answer


def test_a_container_gets_time_to_free_its_memory() -> None:
    """And fewer starts: each one that fails costs memory until the next reboot."""
    pauses = [decide([SERVED] * count, is_container=True) for count in (1, 2, 3)]
    assert pauses == [RestartAfter(10, 1, 3), RestartAfter(30, 2, 3), RestartAfter(60, 3, 3)]
    assert isinstance(decide([SERVED] * 4, is_container=True), GiveUp)


def test_the_manual_has_these_pauses() -> None:
    text = " ".join((Path(__file__).parents[2] / "docs" / "up.md").read_text().split())
    *first, last = (f"{seconds:.0f}" for seconds in PAUSES_S)
    *container, at_last = (f"{seconds:.0f}" for seconds in CONTAINER_PAUSES_S)
    assert f"after {', '.join(first)} and {last} s" in text
    assert f"a container after {', '.join(container)} and {at_last} s" in text


ends = st.builds(
    EngineExit,
    st.sampled_from(["died", "stuck", "guard", "requested"]),
    st.floats(0, 1e6),
    st.one_of(st.none(), st.integers(-15, 255)),
    st.booleans(),
    st.booleans(),
)


@given(st.lists(ends, min_size=1, max_size=40))
def test_without_a_long_good_run_restarts_are_few_with_growing_pauses(history: list[EngineExit]) -> None:
    """However it goes: a loop of restarts cannot happen."""
    waits: list[float] = []
    for count in range(1, len(history) + 1):
        if history[count - 1].was_ready and history[count - 1].ran_s >= GOOD_RUN_S:
            waits = []
        answer = decide(history[:count])
        if isinstance(answer, RestartAfter):
            waits.append(answer.seconds)
    assert len(waits) <= len(PAUSES_S) and waits == sorted(set(waits))


@pytest.mark.parametrize("kind", ["guard", "requested"])
@given(st.lists(ends, max_size=5))
def test_a_requested_stop_is_final(kind: ExitKind, before: list[EngineExit]) -> None:
    assert isinstance(decide([*before, EngineExit(kind, 10, was_ready=True)]), GiveUp)
