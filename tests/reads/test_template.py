"""Placeholders in a template, and their values."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.errors import UsageError
from firesteel.reads.shell import NO_SPAN
from firesteel.reads.source_text import MAX_CHARACTERS, join_texts, source_file
from firesteel.reads.template import FilledTemplate, TemplateFiller, TemplateValues

PLACEHOLDER = re.compile(r"\{(\w+)\}")
FILE = source_file("a {port} b\nport: 8000\n", "recipe.yaml")


def fill(text: str, known: dict[str, str]) -> str:
    """Names filled from texts that stand nowhere."""
    whole = source_file(text, "-")
    filler = TemplateFiller(whole)
    values = TemplateValues(
        {name: source_file(value, "-").whole for name, value in known.items()}, PLACEHOLDER, filler
    )
    return filler.fill(whole.whole, PLACEHOLDER, lambda match: values.get(match[1])).content.text


def filled() -> FilledTemplate:
    value = FILE.whole.part(17, 21)
    return TemplateFiller(FILE).fill(FILE.whole.part(0, 10), PLACEHOLDER, lambda _: value)


def test_a_value_has_the_position_where_it_was_written() -> None:
    words = filled().words(FILE)
    assert [(word.text, word.line, word.column) for word in words] == [
        ("a", 1, 1),
        ("8000", 2, 7),
        ("b", 1, 10),
    ]


def test_a_filled_word_has_no_span() -> None:
    """A fix may not cut into `{port}`, and its neighbours keep their places."""
    assert [word.span for word in filled().words(FILE)] == [(0, 1), NO_SPAN, (9, 10)]
    assert [word.span for line in filled().commands(FILE) for word in line.words] == [
        (0, 1),
        NO_SPAN,
        (9, 10),
    ]


@pytest.mark.parametrize(
    ("text", "known", "expected"),
    [
        ("--port {port}", {"port": "8000"}, "--port 8000"),
        ("{a}{a}", {"a": "x"}, "xx"),
        ("{gone} {a}", {"a": ""}, "{gone} "),
        ("{url}", {"url": "http://{host}:{port}", "host": "h", "port": "1"}, "http://h:1"),
        ("{a}", {"a": "x{a}"}, "x{a}"),
        ("{a}", {"a": "{b}", "b": "{a}"}, "{a}"),
    ],
)
def test_filling(text: str, known: dict[str, str], expected: str) -> None:
    assert fill(text, known) == expected


@settings(deadline=None)
@given(st.lists(st.text("ab\n", max_size=4), max_size=6))
def test_joining_keeps_every_character(texts: list[str]) -> None:
    whole = source_file("".join(texts), "-")
    bounds = [sum(map(len, texts[:index])) for index in range(len(texts) + 1)]
    parts = [whole.whole.part(start, end) for start, end in pairwise(bounds)]
    made = join_texts(parts)
    assert made.text == whole.text
    assert all(whole.text[made.at(offset)] == character for offset, character in enumerate(made.text))


def test_a_bomb_ends() -> None:
    known = {f"a{index}": f"{{a{index + 1}}}" * 100 for index in range(8)}
    with pytest.raises(UsageError, match=f"{MAX_CHARACTERS:,}"):
        fill("{a0}", {**known, "a8": "x"})
