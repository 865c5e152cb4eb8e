from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.run.restart import GOOD_RUN_S, WAITS_S, End, EndKind, GiveUp, Wait, after

SERVED = End("died", 600, -9, was_ready=True)
FAILED = End("died", 40, 1)
LONG = End("died", GOOD_RUN_S, -9, was_ready=True)


@pytest.mark.parametrize(
    ("ends", "answer"),
    [
        ([SERVED], Wait(10, 1, 3)),
        ([SERVED, SERVED], Wait(60, 2, 3)),
        ([SERVED, FAILED, FAILED], Wait(300, 3, 3)),
        ([SERVED] * 4, GiveUp("it ended 4 times, the last time after 10 min")),
        ([End("stuck", 900, -9, was_ready=True)], Wait(10, 1, 3)),
        ([FAILED], Wait(10, 1, 1)),
        ([FAILED, FAILED], GiveUp("it never got ready in 2 starts")),
        ([SERVED, SERVED, SERVED, LONG], Wait(10, 1, 3)),
        ([FAILED, LONG, SERVED], Wait(60, 2, 3)),
        ([End("guard", 5000, -9, was_ready=True)], GiveUp("the memory guard stopped it, and would again")),
        ([End("told", 9, 0, was_ready=True)], GiveUp("it was told to stop")),
        ([End("died", 3, 2)], GiveUp("the engine refused its words (exit code 2)")),
        ([End("died", 3, 127)], GiveUp("its program is not there (exit code 127)")),
        ([End("died", 3, 1, is_fatal=True)], GiveUp("its log names what no restart mends")),
        ([End("died", 600, 0, was_ready=True)], Wait(10, 1, 3)),
    ],
)
def test_what_follows_an_end(ends: list[End], answer: Wait | GiveUp) -> None:
    assert after(ends) == answer


ends = st.builds(
    End,
    st.sampled_from(["died", "stuck", "guard", "told"]),
    st.floats(0, 1e6),
    st.one_of(st.none(), st.integers(-15, 255)),
    st.booleans(),
    st.booleans(),
)


@given(st.lists(ends, min_size=1, max_size=40))
def test_without_a_long_good_run_starts_are_few_and_further_apart(history: list[End]) -> None:
    """However it goes: a loop of restarts cannot happen."""
    waits: list[float] = []
    for count in range(1, len(history) + 1):
        if history[count - 1].was_ready and history[count - 1].ran_s >= GOOD_RUN_S:
            waits = []
        answer = after(history[:count])
        if isinstance(answer, Wait):
            waits.append(answer.seconds)
    assert len(waits) <= len(WAITS_S) and waits == sorted(set(waits))


@pytest.mark.parametrize("kind", ["guard", "told"])
@given(st.lists(ends, max_size=5))
def test_a_stop_on_purpose_stays_stopped(kind: EndKind, before: list[End]) -> None:
    assert isinstance(after([*before, End(kind, 10, was_ready=True)]), GiveUp)
