"""Frozen dataclasses that are cheap to define: the standard library's own are the reference."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, field, fields, replace
from functools import cached_property
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.dataclass import dataclass

VALUES = st.one_of(st.integers(0, 2), st.just(float("nan")), st.sampled_from(["", "a"]), st.just([1]))
NAMES = ("alpha", "beta", "gamma", "delta")


@dataclasses.dataclass
class Spec:
    """A field of a random class."""

    default: Any
    is_made: bool
    compare: bool
    repr: bool
    kw_only: bool

    @property
    def declared(self) -> Any:
        options: dict[str, Any] = {"compare": self.compare, "repr": self.repr, "kw_only": self.kw_only}
        if self.is_made:
            options["default_factory"] = list
        elif self.default is not dataclasses.MISSING:
            options["default"] = self.default
        return field(**options)


SPECS = st.builds(
    Spec,
    st.sampled_from([dataclasses.MISSING, None, 1, ("x",)]),
    *[st.booleans()] * 4,
)


def classes(specs: list[Spec], **options: bool) -> list[type]:
    """The same class from both decorators; they may refuse it alike."""
    made = []
    for decorator in (dataclass, dataclasses.dataclass):
        names = NAMES[: len(specs)]
        body = {"__annotations__": dict.fromkeys(names, "Any"), "__doc__": "A class.", "__module__": __name__}
        body |= {name: spec.declared for name, spec in zip(names, specs, strict=True)}
        decorate: Callable[[type], type] = decorator(frozen=True, **options)
        try:
            made.append(decorate(type("Random", (), body)))
        except TypeError:
            made.append(TypeError)
    return made


def outcome(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except (TypeError, FrozenInstanceError):
        return "refused"


def behaviour(cls: type, given_: list[Any], named: dict[str, Any], changes: dict[str, Any]) -> list[Any]:
    one, other = (outcome(lambda: cls(*given_, **named)) for _ in range(2))
    if one == "refused":
        return [one]
    changed = outcome(lambda: replace(one, **changes))
    return [
        repr(one),
        repr(asdict(one)),
        repr(changed),
        [one == other, one == changed, one == object(), one == copy.copy(one)],
        repr(copy.copy(one)),
        outcome(lambda: isinstance(hash(one), int)),
        outcome(lambda: hash(one) == hash(other)),
        [outcome(lambda name=name: setattr(one, name, 1)) for name in NAMES],  # type: ignore[misc]
        [outcome(lambda name=name: delattr(one, name)) for name in NAMES],  # type: ignore[misc]
        [item.name for item in fields(one)],
    ]


@given(
    st.lists(SPECS, max_size=4),
    st.fixed_dictionaries({"slots": st.booleans(), "kw_only": st.booleans()}),
    st.lists(VALUES, max_size=4),
    st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4),
    st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=2),
)
def test_any_class_behaves_like_the_standard_one(
    specs: list[Spec],
    options: dict[str, bool],
    given_: list[Any],
    named: dict[str, Any],
    changes: dict[str, Any],
) -> None:
    ours, standard = classes(specs, **options)
    if standard is TypeError:
        assert ours is TypeError
        return
    assert str(inspect.signature(ours)) == str(inspect.signature(standard))
    assert ours.__match_args__ == standard.__match_args__  # type: ignore[attr-defined]
    assert hasattr(ours, "__slots__") == hasattr(standard, "__slots__") == options["slots"]
    assert behaviour(ours, given_, named, changes) == behaviour(standard, given_, named, changes)


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: tuple[int, ...] = ()
    note: list[str] = field(default_factory=list, compare=False)


@dataclass(frozen=True, slots=True)
class Named(Point):
    name: str = "n"

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("no name")


@dataclass(frozen=True)
class Cached:
    text: str

    @cached_property
    def length(self) -> int:
        return len(self.text)


@dataclass(frozen=True, slots=True)
class Caseless:
    text: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Caseless) and self.text.lower() == other.text.lower()

    def __hash__(self) -> int:
        return hash(self.text.lower())

    def __repr__(self) -> str:
        return f"<{self.text}>"


@dataclass(slots=True)
class Mutable:
    count: int = 0


def test_inheritance_adds_fields_and_runs_post_init() -> None:
    named = Named(1, (2,), name="a")
    assert repr(named) == "Named(x=1, y=(2,), note=[], name='a')"
    assert vars(Named)["__slots__"] == ("name",)
    assert named != Point(1, (2,))
    with pytest.raises(ValueError, match="no name"):
        replace(named, name="")
    match named:
        case Named(x, y):
            assert (x, y) == (1, (2,))


def test_what_a_class_defines_itself_stays() -> None:
    assert {Caseless("A"), Caseless("a")} == {Caseless("A")}
    assert repr(Caseless("A")) == "<A>"
    assert Cached("four").length == 4


@pytest.mark.parametrize("value", [Named(1, (2,), ["n"], "a"), Cached("text"), Caseless("b")])
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickle(value: object, protocol: int) -> None:
    again = pickle.loads(pickle.dumps(value, protocol))
    assert again == value
    assert type(again) is type(value)


def test_msgspec_reads_into_it() -> None:
    assert msgspec.convert({"x": 1, "y": [2], "name": "a"}, Named) == Named(1, (2,), name="a")


def test_a_value_that_contains_itself_can_be_printed() -> None:
    point = Point(1)
    point.note.append(point)  # type: ignore[arg-type]
    assert repr(point) == "Point(x=1, y=(), note=[...])"


def test_a_class_that_is_not_frozen_is_the_standard_one() -> None:
    mutable = Mutable()
    mutable.count = 3
    assert mutable == Mutable(3)


def test_what_it_cannot_do_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="init=False"):

        @dataclass(frozen=True)
        class Later:
            later: int = field(init=False)
