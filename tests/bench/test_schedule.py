"""The schedule with made-up durations: how a budget is shared among points."""

from __future__ import annotations

import pytest

from firesteel.bench.load.schedule import RunLimits, Schedule
from firesteel.bench.load.shapes import Sizes, points
from firesteel.bench.values import Point

QUICK = points(["quick"])


def spent(
    points: tuple[Point, ...], budget_s: float, request_s: float, per_user_s: float = 0.0
) -> tuple[dict[tuple[str, int], int], float, Schedule]:
    """Warm repetitions by point, the time of all of them, and the schedule. A request takes `request_s`, and
    `per_user_s` more for each other user; users of a closed loop ask several times."""
    schedule = Schedule(points, RunLimits(budget_s), 0, lambda index: False, [0] * len(points))
    now = 0.0
    while (index := schedule.next(now)) is not None:
        point, is_cold = points[index], not schedule.repetitions[index]
        rounds = 1 if is_cold or point.users == 1 else schedule.rounds(index) + 1
        took = rounds * (request_s + per_user_s * (point.users - 1))
        now += took
        schedule.record(index, took, has_good_sample=True)
    done = zip(points, schedule.repetitions, strict=True)
    return {(point.text, point.users): count - 1 for point, count in done}, now, schedule


@pytest.mark.parametrize("request_s", [0.5, 1.0, 2.0, 4.0, 6.0])
@pytest.mark.parametrize("per_user_s", [0.0, 0.3, 1.5])
@pytest.mark.parametrize("budget_s", [30.0, 45.0, 120.0])
def test_no_number_of_users_is_empty_while_another_has_many(
    budget_s: float, request_s: float, per_user_s: float
) -> None:
    warm, now, schedule = spent(QUICK, budget_s, request_s, per_user_s)
    longest = max(took for each in schedule._durations_s.values() for took in each)
    assert now < 2 * budget_s + longest
    if now < 2 * budget_s:
        assert min(warm["prose", 1], warm["prose", 4]) >= 1, warm
    assert abs(warm["prose", 1] - warm["prose", 4]) <= 1, warm
    for users in (1, 4):  # the other text is begun where it fits
        assert warm["code", users] >= 1 or warm["prose", 1] <= 8, warm
        assert (warm["code", users] < 1) == (QUICK.index(_point("code", users)) in schedule.dropped)


def test_a_budget_that_was_too_short_says_how_long_it_takes() -> None:
    """A host of 5 tok/s: after the first repetitions twice the budget is over, and no figure is there."""
    warm, _, schedule = spent(QUICK, 20.0, 16.0, 3.0)
    assert warm["prose", 1] == warm["prose", 4] == 0
    note = schedule.missing_note()
    assert note.startswith("not measured: prose with 1 user, prose with 4 users. "), note
    assert "took 25 s; about --budget 6m would do" in note, note
    enough, _, longer = spent(QUICK, 360.0, 16.0, 3.0)
    assert min(enough["prose", 1], enough["prose", 4]) >= 3 and not longer.missing_note()


def test_points_that_somebody_named_are_never_dropped() -> None:
    named = points(["sweep"], Sizes(users=(1, 2, 4), texts=("prose", "code")))
    warm, _, schedule = spent(named, 20.0, 2.0)
    assert not schedule.dropped and max(warm.values()) - min(warm.values()) <= 1


def _point(text: str, users: int) -> Point:
    return next(point for point in QUICK if (point.text, point.users) == (text, users))
