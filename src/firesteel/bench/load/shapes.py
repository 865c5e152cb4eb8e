"""Load shapes: data (`data/bench/shapes.yaml`) and what the user asked for -> points. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from itertools import product
from typing import Annotated

from pydantic import Field

from firesteel.bench.values import Point, Text
from firesteel.errors import UsageError
from firesteel.yaml_schema import FileSchema, load

MAX_POINTS = 200
MAX_USERS = 1024
MAX_TOKENS = 2**21
_OPEN_USERS = 512
"""Open at once in an open loop: all that arrive in one visit, so that too much waits at the server."""
_ROOM = 64
"""Tokens of the context that a chat template may take."""

_Count = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
_Users = Annotated[int, Field(ge=1, le=MAX_USERS)]
_Rate = Annotated[float, Field(gt=0, le=1000)]


class Shape(FileSchema):
    about: str
    users: list[_Users]
    prompt: list[_Count]
    answer: _Count
    shared: Annotated[int, Field(ge=0, le=MAX_TOKENS)] = 0
    turns: Annotated[int, Field(ge=1, le=64)] = 1
    rates: list[_Rate] = []
    texts: list[Text] = ["prose"]


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the user asked for in place of a shape's own; empty: as the shape has it."""

    users: tuple[int, ...] = ()
    depths: tuple[int, ...] = ()
    texts: tuple[Text, ...] = ()
    rates: tuple[float, ...] = ()
    answer: int | None = None


@cache
def shapes() -> Mapping[str, Shape]:
    text = (files("firesteel") / "data" / "bench" / "shapes.yaml").read_text("utf-8")
    return load("data/bench/shapes.yaml", text, dict[str, Shape])


def points(names: Iterable[str], sizes: Sizes | None = None) -> tuple[Point, ...]:
    """Every point of these shapes once, in the order named. Rates are for shapes that have some, where one of
    these has; else they make an open loop of any."""
    asked, wanted = sizes or Sizes(), [_named(name) for name in names]
    _insist(asked)
    has_open = any(shape.rates for _, shape in wanted)
    every = (
        point
        for name, shape in wanted
        for point in _points(name, shape, replace(asked, rates=()) if has_open and not shape.rates else asked)
    )
    found = tuple(dict.fromkeys(every))
    if not found or len(found) > MAX_POINTS:
        raise UsageError(f"{len(found)} points are not 1 to {MAX_POINTS}", next="name fewer sizes")
    return found


def _named(name: str) -> tuple[str, Shape]:
    shape = shapes().get(name)
    if shape is None:
        raise UsageError(f"no load shape is called `{name[:40]}`", next=f"one of {', '.join(shapes())}")
    return name, shape


def _points(name: str, shape: Shape, asked: Sizes) -> Iterable[Point]:
    depths = asked.depths or [shape.shared + prompt for prompt in shape.prompt]
    rates: Iterable[float | None] = asked.rates or shape.rates or (None,)
    texts, answer = asked.texts or shape.texts, asked.answer or shape.answer
    for users, depth, text, rate in product(asked.users or shape.users, depths, texts, rates):
        most = users if rate is None else max(_OPEN_USERS, *shape.users)
        yield _deep(Point(name, text, most, shape.prompt[0], answer, shape.shared, shape.turns, rate), depth)


def _deep(point: Point, depth: int) -> Point:
    """A shared prefix takes up what the new tokens leave; without one all of the depth is new."""
    if not point.shared_tokens:
        return replace(point, prompt_tokens=depth)
    new = min(point.prompt_tokens, max(1, depth // 2))
    return replace(point, prompt_tokens=new, shared_tokens=depth - new)


def _insist(asked: Sizes) -> None:
    for what, most, given in (
        ("users", MAX_USERS, asked.users),
        ("tokens of depth", MAX_TOKENS, asked.depths),
        ("tokens of an answer", MAX_TOKENS, (asked.answer,) if asked.answer is not None else ()),
    ):
        wrong = next((each for each in given if not 1 <= each <= most), None)
        if wrong is not None:
            raise UsageError(f"{wrong:,} {what}: write 1 to {most:,}", next="firesteel bench --help")
    if any(not 0 < rate <= 1000 for rate in asked.rates):
        raise UsageError("a rate is more than 0 and at most 1000 requests a second", next="--rate 0.5,2")


def longest(point: Point) -> int:
    """Tokens of context that its last request needs, its answer included."""
    return point.shared_tokens + point.turns * (point.prompt_tokens + point.answer_tokens + _ROOM)


def fitting(points: Iterable[Point], context: int | None) -> tuple[tuple[Point, ...], tuple[str, ...]]:
    """Those that fit the context, and a sentence about those that do not."""
    every = tuple(points)
    kept = tuple(point for point in every if context is None or longest(point) <= context)
    left = sorted({longest(point) for point in every if point not in kept})
    if not left:
        return kept, ()
    needed = ", ".join(f"{tokens:,}" for tokens in left)
    return kept, (f"left out: points that need {needed} tokens of context, where {context:,} are served",)
