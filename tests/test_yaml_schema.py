"""Strict YAML: text stays text, and every mistake has its file and line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.file_schema import file_schema
from firesteel.yaml_schema import InvalidFile, load, read


@file_schema
class Part:
    size: int


@file_schema
class Thing:
    version: str
    port: int
    on: bool = False
    note: str | None = "unsaid"
    parts: tuple[Part, ...] = ()


GOOD = "version: 0.20\nport: 22\non: yes\nnote: null\nparts:\n  - {size: 3}\n"


def test_the_schema_gives_the_types() -> None:
    thing = load("a.yaml", GOOD, Thing)
    assert thing == Thing(version="0.20", port=22, on=True, note=None, parts=(Part(size=3),))


def test_a_quoted_null_is_text() -> None:
    assert load("a.yaml", 'version: "1"\nport: 1\nnote: "null"\n', Thing).note == "null"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("version: 1\nport: 1\nprot: 2\n", "a.yaml:3: `prot`: no such key"),
        ("version: 1\n", "a.yaml:1: `port`: is missing"),
        ("version: 1\nport: many\n", "a.yaml:2: `port`: should be a valid integer"),
        ("version: 1\nport: 1\nport: 2\n", "a.yaml:3: `port` is given twice"),
        ("version: 1\nport: 1\nparts:\n  - size: 1\n  - size: x\n", "a.yaml:5: `parts.1.size`"),
        ("version: &a 1\nport: *a\n", "a.yaml:2: aliases"),
        ("version: &a 1\n? *a\n: 1\n", "a.yaml:2: a key must be plain text"),
        ("version: 1\nport: 1\n---\nport: 2\n", "a.yaml:3: a second document begins here"),
        ("version: [1\n", "a.yaml:2:"),
        ("a: \x00\n", "a.yaml:1: not YAML"),
        ("? [a]\n: 1\n", "a.yaml:1: a key must be plain text"),
        ("[" * 60 + "]" * 60, "nested deeper than 20 levels"),
        ("# " + "x" * 2**20, "a.yaml:1: longer than"),
    ],
)
def test_mistakes_have_file_and_line(text: str, says: str) -> None:
    with pytest.raises(InvalidFile) as bad:
        load("a.yaml", text, Thing)
    assert says in bad.value.what
    assert bad.value.next.startswith(("correct a.yaml", "shorten a.yaml"))


def test_all_mistakes_are_reported_at_once() -> None:
    with pytest.raises(InvalidFile) as bad:
        load("a.yaml", "port: x\nnope: 1\n", Thing)
    assert len(bad.value.what.splitlines()) == 3


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        read("a.yaml", text)
    except InvalidFile as bad:
        assert bad.what.startswith("a.yaml:")
