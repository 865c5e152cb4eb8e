"""Shapes as data: all that are asked for, and what the user's sizes make of them."""

from __future__ import annotations

import pytest

from firesteel.bench.load.shapes import MAX_POINTS, Sizes, fit_context, needed_context, points, shapes
from firesteel.bench.values import Point
from firesteel.errors import UsageError


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
