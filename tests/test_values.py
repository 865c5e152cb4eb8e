"""YAML files as values: text gets its type from the declaration, and every mistake has its file and line."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from firesteel.errors import InvalidFile
from firesteel.units import parse_size
from firesteel.values import Expand, FileValue, Regex, Texts, as_json, load
from firesteel.yaml_reader import read


class Part(FileValue, kw_only=True):
    size: int


class Square(FileValue, kw_only=True, tag="square", tag_field="kind"):
    side: Annotated[int, Expand(parse_size)]


class Circle(FileValue, kw_only=True, tag="circle", tag_field="kind"):
    radius: float


def _part(value: object) -> object:
    return {"size": value} if isinstance(value, str) else value


class Thing(FileValue, kw_only=True):
    version: str
    port: int
    on: bool = False
    note: str | None = "unsaid"
    parts: tuple[Annotated[Part, Expand(_part)], ...] = ()
    shapes: dict[str, Square | Circle] = {}
    pattern: Regex = ""
    words: Texts = ("none",)
    any: dict[str, Annotated[Any, Expand(as_json)]] = {}
    pair: tuple[int, str] = (0, "")
    mode: Literal["fast", "slow"] | None = None
    few: Annotated[tuple[int, ...], Meta(max_length=2)] = ()


GOOD = "version: 0.20\nport: 22\non: yes\nnote: null\nparts:\n  - {size: 3}\n"


def test_the_declaration_gives_the_types() -> None:
    thing = load("a.yaml", GOOD, Thing)
    assert thing == Thing(version="0.20", port=22, on=True, note=None, parts=(Part(size=3),))


def test_a_quoted_null_is_text() -> None:
    assert load("a.yaml", 'version: "1"\nport: 1\nnote: "null"\n', Thing).note == "null"


def test_shorter_forms_are_expanded_wherever_they_stand() -> None:
    text = (
        "version: 1\nport: 1_000\nparts: [3, {size: 4}]\npattern: a+\nwords: one\nany: {a: [1, 'x', 0.5]}\n"
        "pair: [1, b]\nmode: fast\nshapes: {a: {kind: square, side: 1KiB}, b: {kind: circle, radius: 2}}\n"
    )
    thing = load("a.yaml", text, Thing)
    assert (thing.parts, thing.words) == ((Part(size=3), Part(size=4)), ("one",))
    assert thing.shapes == {"a": Square(side=1024), "b": Circle(radius=2.0)}
    assert (thing.port, thing.any, thing.pair, thing.mode) == (1000, {"a": [1, "x", 0.5]}, (1, "b"), "fast")


@pytest.mark.parametrize("word", ["yes", "on", "y", "true", "1", "True", "ON"])
def test_words_for_true(word: str) -> None:
    assert load("a.yaml", f"version: 1\nport: 1\non: {word}\n", Thing).on is True


@pytest.mark.parametrize("word", ["no", "off", "n", "false", "0", "False", "OFF"])
def test_words_for_false(word: str) -> None:
    assert load("a.yaml", f"version: 1\nport: 1\non: {word}\n", Thing).on is False


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("version: 1\nport: 1\nprot: 2\n", "a.yaml:3: `prot`: no such key"),
        ("version: 1\n", "a.yaml:1: `port`: is missing"),
        ("version: 1\nport: many\n", "a.yaml:2: `port`: should be a whole number, got `many`"),
        ("version: 1\nport: 1\non: perhaps\n", "a.yaml:3: `on`: should be true or false, got `perhaps`"),
        ("version: 1\nport: 1\nport: 2\n", "a.yaml:3: `port` is given twice"),
        ("version: 1\nport: 1\nparts:\n  - size: 1\n  - size: x\n", "a.yaml:5: `parts.1.size`"),
        ("version: 1\nport: 1\nparts: 5\n", "a.yaml:3: `parts`: should be a list"),
        ("version: 1\nport: 1\nparts:\n  - 1\n  - []\n", "a.yaml:5: `parts.1`: should be a map"),
        ("version: 1\nport: 1\npattern: '('\n", "a.yaml:3: `pattern`: not a regular expression"),
        ("version: 1\nport: 1\nwords: []\n", "a.yaml:3: `words`: should have at least 1 item"),
        ("version: 1\nport: 1\nfew: [1, 2,\n 3]\n", "a.yaml:3: `few`: should have at most 2 items"),
        ("version: 1\nport: 1\npair: [1]\n", "a.yaml:3: `pair`: "),
        ("version: 1\nport: 1\npair: [b,\n b]\n", "a.yaml:3: `pair.0`: should be a whole number, got `b`"),
        ("version: 1\nport: 1\nmode: quick\n", "a.yaml:3: `mode`: should be `fast` or `slow`, got `quick`"),
        (
            "version: 1\nport: 1\nshapes:\n  a:\n    kind: square\n    side: x\n",
            "a.yaml:6: `shapes.a.side`: ",
        ),
        ("version: 1\nport: 1\nshapes:\n  a: {kind: square, angle: 3}\n", "`shapes.a.angle`: no such key"),
        (
            "version: 1\nport: 1\nshapes:\n  a: {kind: oval}\n",
            "`shapes.a.kind`: should be `square` or `circle`",
        ),
        ("version: &a 1\nport: *a\n", "a.yaml:2: aliases"),
        ("version: &a 1\n? *a\n: 1\n", "a.yaml:2: a key must be plain text"),
        ("version: 1\nport: 1\n---\nport: 2\n", "a.yaml:3: a second document begins here"),
        ("version: [1\n", "a.yaml:2:"),
        ("a: \x00\n", "a.yaml:1: not YAML"),
        ("? [a]\n: 1\n", "a.yaml:1: a key must be plain text"),
        ("[" * 60 + "]" * 60, "nested deeper than 20 levels"),
        ("# " + "x" * 2**20, "a.yaml:1: longer than"),
        ("", "a.yaml:1: should be a map"),
    ],
)
def test_mistakes_have_file_and_line(text: str, says: str) -> None:
    with pytest.raises(InvalidFile) as bad:
        load("a.yaml", text, Thing)
    assert says in bad.value.what
    assert bad.value.next.startswith(("correct a.yaml", "shorten a.yaml"))


def test_all_mistakes_are_reported_at_once_in_the_order_of_their_lines() -> None:
    text = "port: x\nnope: 1\nparts: [a, {sise: 1}]\nshapes:\n  a: {kind: square, side: big}\n  b: 3\n"
    with pytest.raises(InvalidFile) as bad:
        load("a.yaml", text, Thing)
    said = [each.split(": ")[:2] for each in bad.value.what.splitlines()]
    assert said == [
        ["a.yaml:1", "`version`"], ["a.yaml:1", "`port`"], ["a.yaml:2", "`nope`"],
        ["a.yaml:3", "`parts.0.size`"], ["a.yaml:3", "`parts.1.sise`"], ["a.yaml:3", "`parts.1.size`"],
        ["a.yaml:5", "`shapes.a.side`"], ["a.yaml:6", "`shapes.b`"],
    ]  # fmt: skip


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        read("a.yaml", text)
    except InvalidFile as bad:
        assert bad.what.startswith("a.yaml:")
