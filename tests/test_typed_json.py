"""JSON back into the dataclasses that it was written from, and nothing else into them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.typed_json import InvalidValue, from_json


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: float = 0.5


@dataclass(frozen=True, slots=True)
class Everything:
    name: str
    kind: Literal["a", "b"]
    count: int | None = None
    is_on: bool = False
    words: tuple[str, ...] = ()
    pair: tuple[int, str] = (1, "one")
    points: list[Point] = field(default_factory=list)
    env: Mapping[str, str] = field(default_factory=dict)
    anything: Any = None


VALUE = Everything("n", "b", 3, True, ("w",), (2, "two"), [Point(1, 2.5)], {"A": "b"}, {"free": [1]})


def test_a_value_comes_back_as_it_was_written() -> None:
    assert from_json(Everything, json.loads(json.dumps(asdict(VALUE)))) == VALUE
    assert from_json(Everything, {"name": "n", "kind": "a"}) == Everything("n", "a")


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"name": 1}, "Everything.name is 1"),
        ({"kind": "c"}, "Everything.kind is 'c'"),
        ({"count": "3"}, "Everything.count"),
        ({"count": True}, "Everything.count"),
        ({"is_on": 1}, "Everything.is_on is 1"),
        ({"words": "abc"}, "Everything.words is not a list"),
        ({"words": ["a", 1]}, r"Everything.words\[1\] is 1"),
        ({"pair": [1]}, "Everything.pair has 1 values in place of 2"),
        ({"points": [{"y": 1}]}, r"Everything.points\[0\].x is missing"),
        ({"points": [{"x": 1.5}]}, r"Everything.points\[0\].x is 1.5"),
        ({"env": {"A": 1}}, "Everything.env.A is 1"),
        ({"env": []}, "Everything.env is not an object"),
    ],
)
def test_a_wrong_type_is_named(change: dict[str, Any], where: str) -> None:
    with pytest.raises(InvalidValue, match=where):
        from_json(Everything, {**asdict(VALUE), **change})


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


@given(st.dictionaries(st.sampled_from([*Everything.__dataclass_fields__]), JSON))
def test_whatever_stands_there_gives_a_value_of_the_type_or_an_error(found: dict[str, object]) -> None:
    try:
        value = from_json(Everything, found)
    except InvalidValue:
        return
    assert value.kind in ("a", "b")
    assert all(isinstance(point, Point) for point in value.points)
