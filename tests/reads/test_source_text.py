"""The position of text in a file."""

from __future__ import annotations

import pytest

from firesteel.errors import UsageError
from firesteel.reads.source_text import MAX_CHARACTERS, SourceFile, SourceText, source_file


def test_places() -> None:
    text = SourceFile("x", "ab\n\ncd")
    assert [text.place(offset) for offset in (0, 2, 3, 4, 5)] == [(1, 1), (1, 3), (2, 1), (3, 1), (3, 2)]
    assert [text.line(number) for number in (1, 2, 3)] == ["ab", "", "cd"]


def test_a_text_inside_a_text() -> None:
    """Indents away, then a quoted part of what is left."""
    source = "    run 'a\n    b'\n"
    outer = SourceText("run 'a\nb'\n", ((0, 4), (7, 15)))
    inner = outer.inner("a\nb", ((0, 5),))
    assert [source[inner.at(offset)] for offset in range(3)] == ["a", "\n", "b"]
    assert inner.span(0, 3) == (9, 16)
    assert inner.part(2, 3).at(0) == 15


def test_accepted_text() -> None:
    assert source_file("\ufeffa \\\r\n b\r\n", "x").text == "a \\\n b\n"
    with pytest.raises(UsageError, match="zero bytes"):
        source_file("a\0b", "x")
    with pytest.raises(UsageError, match="longer than 1,048,576 characters"):
        source_file("a" * (MAX_CHARACTERS + 1), "x")
