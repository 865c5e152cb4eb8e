"""Turn load shapes (`data/bench/shapes.yaml`) and the user's options into points to measure. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from itertools import product
from typing import Annotated

from msgspec import Meta, field

from firesteel import shipped_data
from firesteel.bench.values import Point
from firesteel.errors import UsageError
from firesteel.launch import Text
from firesteel.values import FileValue, Value, replace

MAX_POINTS = 200
MAX_USERS = 1024
MAX_TOKENS = 2**21
MAX_RATE = 1000.0
OPEN_USERS = 512
"""Requests open at once in an open loop: all of one repetition, so that an overload queues at the server."""
_TEMPLATE_TOKENS = 64
"""Tokens that a chat template may add to each turn."""

_Count = Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
_Users = Annotated[int, Meta(ge=1, le=MAX_USERS)]
_Rate = Annotated[float, Meta(ge=1e-9, le=MAX_RATE)]


class Shape(FileValue, kw_only=True):
    about: str
    users: list[_Users]
    prompt: list[_Count]
    answer: _Count
    shared: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] = 0
    turns: Annotated[int, Meta(ge=1, le=64)] = 1
    rates: list[_Rate] = []
    texts: list[Text] = field(default_factory=lambda: ["prose"])


class Sizes(Value):
    """Sizes that replace those of a shape; empty: the shape's own."""

    users: tuple[int, ...] = ()
    depths: tuple[int, ...] = ()
    texts: tuple[Text, ...] = ()
    rates: tuple[float, ...] = ()
    answer: int | None = None


@cache
def shapes() -> Mapping[str, Shape]:
    return shipped_data.load("bench/shapes.yaml", dict[str, Shape])


def points(names: Iterable[str], sizes: Sizes | None = None) -> tuple[Point, ...]:
    """All points of these shapes, once each, in the order of the names.

    Rates apply to open-loop shapes if any of these is one; otherwise they turn every shape into an open loop.
    """
    sizes = sizes or Sizes()
    _check(sizes)
    chosen: dict[str, Shape] = {}
    for name in names:
        if name not in shapes():
            raise UsageError(f"no load shape is called `{name[:40]}`", next=f"one of {', '.join(shapes())}")
        chosen[name] = shapes()[name]
    has_open = any(shape.rates for shape in chosen.values())
    found: dict[Point, None] = {}
    for name, shape in chosen.items():
        own_sizes = replace(sizes, rates=()) if has_open and not shape.rates else sizes
        found |= dict.fromkeys(_points(name, shape, own_sizes))
    if not found or len(found) > MAX_POINTS:
        raise UsageError(f"{len(found)} points; 1 to {MAX_POINTS} can be measured", next="name fewer sizes")
    return tuple(found)


def _points(name: str, shape: Shape, sizes: Sizes) -> Iterable[Point]:
    depths = sizes.depths or [shape.shared + prompt for prompt in shape.prompt]
    rates: Iterable[float | None] = sizes.rates or shape.rates or (None,)
    texts, answer = sizes.texts or shape.texts, sizes.answer or shape.answer
    for users, depth, text, rate in product(sizes.users or shape.users, depths, texts, rates):
        most = users if rate is None else max(OPEN_USERS, *shape.users)
        point = Point(name, text, most, shape.prompt[0], answer, shape.shared, shape.turns, rate)
        yield _with_depth(point, depth)


def _with_depth(point: Point, depth: int) -> Point:
    """A shared prefix takes what the new tokens leave; without a prefix, all tokens are new."""
    if not point.shared_tokens:
        return replace(point, prompt_tokens=depth)
    new = min(point.prompt_tokens, max(1, depth // 2))
    return replace(point, prompt_tokens=new, shared_tokens=depth - new)


def _check(sizes: Sizes) -> None:
    for what, most, values in (
        ("users", MAX_USERS, sizes.users),
        ("tokens of depth", MAX_TOKENS, sizes.depths),
        ("tokens of an answer", MAX_TOKENS, (sizes.answer,) if sizes.answer is not None else ()),
    ):
        wrong = next((value for value in values if not 1 <= value <= most), None)
        if wrong is not None:
            raise UsageError(f"{wrong:,} {what}: write 1 to {most:,}", next="firesteel bench --help")
    if any(not 0 < rate <= MAX_RATE for rate in sizes.rates):
        raise UsageError("a rate must be above 0 and at most 1000 requests per second", next="--rate 0.5,2")


def needed_context(point: Point) -> int:
    """Context tokens that the last request of a conversation needs, including its answer."""
    return point.shared_tokens + point.turns * (point.prompt_tokens + point.answer_tokens + _TEMPLATE_TOKENS)


def fit_context(points: Iterable[Point], context: int | None) -> tuple[tuple[Point, ...], tuple[str, ...]]:
    """The points that fit the context, and a note about those that do not."""
    all_points = tuple(points)
    fitting = tuple(p for p in all_points if context is None or needed_context(p) <= context)
    too_long = sorted({needed_context(point) for point in all_points if point not in fitting})
    if not too_long:
        return fitting, ()
    needed = ", ".join(f"{tokens:,}" for tokens in too_long)
    return fitting, (f"left out: points that need {needed} tokens of context, where {context:,} are served",)
