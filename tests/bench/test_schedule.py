"""The schedule with made-up durations: how a budget is shared among points.

Shapes as data: all that are asked for, and what the user's sizes make of them.
"""

from __future__ import annotations

import pytest

from firesteel.bench.load.schedule import (
    MAX_POINTS,
    RunLimits,
    Schedule,
    Sizes,
    fit_context,
    needed_context,
    points,
    shapes,
)
from firesteel.bench.measurements import Point
from firesteel.errors import UsageError

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
def test_a_budget_is_kept_and_shared(budget_s: float, request_s: float, per_user_s: float) -> None:
    """The first repetition of several users may take longer than expected; it is cut off then."""
    warm, now, schedule = spent(QUICK, budget_s, request_s, per_user_s)
    four_s = request_s + 3 * per_user_s
    assert now <= budget_s + 3 * per_user_s
    assert warm["prose", 1] >= 1, warm
    if 2 * request_s + 4 * four_s <= budget_s:
        assert warm["prose", 4] >= 1, warm
    if warm["prose", 4] >= 1:
        assert abs(warm["prose", 1] - warm["prose", 4]) <= 1, warm
    else:
        assert "prose with 4 users" in schedule.missing_note()
    for users in (1, 4):  # the other text is begun where it fits
        assert warm["code", users] >= 1 or warm["prose", 1] <= 8, warm
        assert (warm["code", users] < 1) == (QUICK.index(_point("code", users)) in schedule.dropped)


def test_a_budget_that_was_too_short_says_how_long_it_takes() -> None:
    """A host of 5 tok/s: after its first repetition nothing that counts fits, so nothing more is begun."""
    warm, now, schedule = spent(QUICK, 20.0, 16.0, 3.0)
    assert warm["prose", 1] == 0 and warm["prose", 4] < 0 and now == 16.0
    note = schedule.missing_note()
    assert note.startswith("not measured: prose with 1 user, prose with 4 users. "), note
    assert "took 16 s; about --budget 4m would do" in note, note
    enough, _, longer = spent(QUICK, 480.0, 16.0, 3.0)
    assert min(enough["prose", 1], enough["prose", 4]) >= 2 and not longer.missing_note()


def test_of_named_points_the_heaviest_are_left_out() -> None:
    named = points(["sweep"], Sizes(users=(4, 1, 2), texts=("prose", "code")))
    warm, now, schedule = spent(named, 20.0, 2.0)
    assert now <= 20.0 and not schedule.dropped
    assert warm["prose", 1] >= 1 and warm["code", 1] >= 1 and warm["prose", 4] < 0, warm
    assert "prose with 4 users" in schedule.missing_note()


def test_a_longer_prompt_is_expected_to_take_longer() -> None:
    """32k tokens are not begun in the last seconds because 512 were quick."""
    deep = points(["depth"])
    schedule = Schedule(deep, RunLimits(20.0), 0, lambda index: False, [0] * len(deep))
    assert deep[schedule.next(0.0) or 0].depth == 512
    schedule.record(0, 2.0, has_good_sample=True)
    begun: list[int] = []
    while (index := schedule.next(2.0 + 2.0 * len(begun))) is not None:
        begun.append(deep[index].depth)
        schedule.record(index, 2.0, has_good_sample=True)
    assert 32768 not in begun and 2048 in begun


def _point(text: str, users: int) -> Point:
    return next(point for point in QUICK if (point.text, point.users) == (text, users))


def test_known_shapes() -> None:
    assert set(shapes()) == {"quick", "single", "sweep", "depth", "agent", "rag", "burst", "open"}
    assert points(["single"]) == (Point("single", "prose", 1, 512, 256),)
    assert [each.users for each in points(["sweep"])] == [1, 2, 4, 8, 16]
    depths = [each.depth for each in points(["depth"])]
    assert depths == sorted(depths) and len(depths) > 2
    agent = points(["agent"])[0]
    assert agent.turns > 1 and agent.shared_tokens > 4 * agent.prompt_tokens and agent.text == "code"
    rag = points(["rag"])[0]
    assert rag.prompt_tokens > 50 * rag.answer_tokens
    assert all(each.rate_per_s for each in points(["open"]))


def test_sizes_replace_those_of_the_shape() -> None:
    sizes = Sizes(users=(1, 4), depths=(1024, 8192), texts=("code", "json"), answer=32)
    found = points(["single"], sizes)
    assert len(found) == 8 and {each.answer_tokens for each in found} == {32}
    assert {(each.users, each.depth, each.text) for each in found} == {
        (users, depth, text) for users in (1, 4) for depth in (1024, 8192) for text in ("code", "json")
    }
    deep = points(["agent"], Sizes(users=(1,), depths=(4096,)))[0]
    assert deep.depth == 4096 and deep.prompt_tokens == 512 and deep.shared_tokens == 3584


def test_a_point_is_listed_once() -> None:
    assert points(["single", "single"]) == points(["single"])


@pytest.mark.parametrize(
    ("names", "sizes"),
    [
        (["nonsense"], Sizes()),
        (["single"], Sizes(users=(0,))),
        (["single"], Sizes(users=(10**6,))),
        (["single"], Sizes(depths=(10**9,))),
        (["single"], Sizes(answer=0)),
        (["open"], Sizes(rates=(0.0,))),
        (["open"], Sizes(rates=(float("nan"),))),
        ([], Sizes()),
        (["sweep"], Sizes(depths=tuple(range(1, MAX_POINTS)))),
    ],
)
def test_invalid_sizes_are_refused(names: list[str], sizes: Sizes) -> None:
    with pytest.raises(UsageError) as error:
        points(names, sizes)
    assert error.value.next


def test_points_that_do_not_fit_are_left_out_and_named() -> None:
    every = points(["depth"])
    kept, notes = fit_context(every, 4096)
    assert kept == tuple(each for each in every if needed_context(each) <= 4096) and kept
    assert "4,096 are served" in notes[0]
    assert fit_context(every, None) == (every, ())
    assert fit_context([Point("single", "prose", 1, 4000, 512)], 4096)[0] == (), "an answer takes room too"
    turns = Point("agent", "code", 1, 500, 200, shared_tokens=1000, turns=4)
    assert needed_context(turns) > 1000 + 4 * 700


def test_rates_are_for_open_loops() -> None:
    rag, open_ = points(["rag", "open"], Sizes(users=(1,), rates=(2.0,)))
    assert rag.rate_per_s is None and rag.users == 1
    assert open_.rate_per_s == 2.0 and open_.users == 512
    (alone,) = points(["rag"], Sizes(users=(1,), rates=(2.0,)))
    assert alone.rate_per_s == 2.0 and alone.users == 512
