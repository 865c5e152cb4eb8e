"""JSON back into the values that it was written from, and nothing else into them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.values import InvalidValue, Value, from_json, plain


class Point(Value):
    x: int
    y: float = 0.5


class Everything(Value):
    name: str
    kind: Literal["a", "b"]
    count: int | None = None
    is_on: bool = False
    words: tuple[str, ...] = ()
    pair: tuple[int, str] = (1, "one")
    points: list[Point] = []
    env: Mapping[str, str] = {}
    anything: Any = None


VALUE = Everything("n", "b", 3, True, ("w",), (2, "two"), [Point(1, 2.5)], {"A": "b"}, {"free": [1]})


def test_a_value_comes_back_as_it_was_written() -> None:
    assert from_json(Everything, json.loads(json.dumps(plain(VALUE)))) == VALUE
    assert from_json(Everything, {"name": "n", "kind": "a"}) == Everything("n", "a")


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"name": 1}, "`name`: should be text"),
        ({"kind": "c"}, "`kind`: should be `a` or `b`, got `c`"),
        ({"count": "3"}, "`count`: should be a whole number, got `3`"),
        ({"count": True}, "`count`: should be a whole number"),
        ({"is_on": 1}, "`is_on`: should be true or false"),
        ({"words": "abc"}, "`words`: should be a list"),
        ({"words": ["a", 1]}, "`words.1`: should be text"),
        ({"pair": [1]}, "`pair`: should have 2 items"),
        ({"points": [{"y": 1}]}, "`points.0.x`: is missing"),
        ({"points": [{"x": 1.5}]}, "`points.0.x`: should be a whole number"),
        ({"env": {"A": 1}}, "`env.A`: should be text"),
        ({"env": []}, "`env`: should be a map"),
    ],
)
def test_a_wrong_type_is_named(change: dict[str, Any], where: str) -> None:
    with pytest.raises(InvalidValue, match=where):
        from_json(Everything, {**plain(VALUE), **change})


@pytest.mark.parametrize("value", [None, [], "text", 1, {}, {"name": "n"}])
def test_what_is_no_such_object_is_refused(value: object) -> None:
    with pytest.raises(InvalidValue):
        from_json(Everything, value)


def test_keys_of_another_release_are_ignored() -> None:
    assert from_json(Point, {"x": 1, "z": 3}) == Point(1)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@given(st.dictionaries(st.sampled_from([*Everything.__struct_fields__]), JSON))
def test_whatever_stands_there_gives_a_value_of_the_type_or_an_error(found: dict[str, object]) -> None:
    try:
        value = from_json(Everything, found)
    except InvalidValue:
        return
    assert value.kind in ("a", "b")
    assert all(isinstance(point, Point) for point in value.points)
