"""Splitting text the way a shell would."""

from __future__ import annotations

import shlex
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.errors import UsageError
from firesteel.reads.shell import MAX_CHARACTERS, normal, split


def texts(text: str) -> list[list[str]]:
    return [list(line.texts) for line in split(text, "run.sh")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b  c", [["a", "b", "c"]]),
        ('a \'b c\' "d $X \\"e\\""', [["a", "b c", 'd $X "e"']]),
        ("a '' x", [["a", "", "x"]]),
        ("a \\\n  b\nc", [["a", "b"], ["c"]]),
        ("a\\\nb", [["ab"]]),
        ("a # b\nc#d", [["a"], ["c#d"]]),
        ("a && b || c; d | e & f", [["a"], ["b"], ["c"], ["d"], ["e"], ["f"]]),
        ("a > log 2>&1 b", [["a", "b"]]),
        ("a &> log", [["a"]]),
        ("vllm serve <HF_MODEL> -x", [["vllm", "serve", "<HF_MODEL>", "-x"]]),
        ("a ${HOME:-/root x}/b $(id -u):$(echo ')') `pwd -P`", None),
        ("$ docker ps", [["docker", "ps"]]),
        ("me@spark:~$ docker ps", [["docker", "ps"]]),
        ('a "x \\\n y"', [["a", "x  y"]]),
        ("a $'b\\n\\'c'", [["a", "b\n'c"]]),
        ("a \\", [["a", "\\"]]),
        ("(a b)", [["a", "b"]]),
        ("a\u00a0b", [["a", "b"]]),
        ("", []),
    ],
)
def test_words(text: str, expected: list[list[str]] | None) -> None:
    if expected is None:
        expected = [["a", "${HOME:-/root x}/b", "$(id -u):$(echo ')')", "`pwd -P`"]]
    assert texts(text) == expected


def test_lines_and_environment() -> None:
    (line,) = split("# top\n\nA=1 B='x y' \\\n  run \\\n --b", "run.sh", first_line=10)
    assert [(word.text, word.line) for word in line.words] == [("run", 13), ("--b", 14)]
    assert {name: (word.text, word.line) for name, word in line.env.items()} == {
        "A": ("1", 12),
        "B": ("x y", 12),
    }


@pytest.mark.parametrize("text", ["a 'b", 'x\na "b', "a $(b", "a `b", "a $(b ' )"])
def test_unclosed(text: str) -> None:
    with pytest.raises(UsageError, match=rf"run.sh:{text.count(chr(10)) + 1}: the .* here is never closed"):
        split(text, "run.sh")


def test_windows_line_ends_and_what_is_not_text() -> None:
    assert texts(normal("\ufeffa \\\r\n b\r\n", "x")) == [["a", "b"]]
    with pytest.raises(UsageError, match="zero bytes"):
        normal("a\0b", "x")
    with pytest.raises(UsageError, match="longer than 1,048,576 characters"):
        normal("a" * (MAX_CHARACTERS + 1), "x")


@settings(deadline=None, max_examples=100)
@given(st.lists(st.text(string.printable + "é", min_size=1, max_size=12), min_size=1, max_size=8))
def test_undoes_what_shlex_quotes(words: list[str]) -> None:
    (line,) = split("run " + shlex.join(words), "run.sh")
    assert list(line.texts[1:]) == words


@settings(deadline=None, max_examples=200)
@given(st.text("abc '\"\\$(){}`<>|&;#\n=-\t", max_size=60))
def test_any_text_splits_or_is_refused(text: str) -> None:
    try:
        split(text, "run.sh")
    except UsageError as error:
        assert "never closed" in error.what


@pytest.mark.parametrize("unit", ["$(", "(", "{", "<", "a ", "\\\n", "\\", "#", "${", "> ", "$'", "x=1 "])
def test_a_megabyte_of_anything_ends(unit: str) -> None:
    text = unit * (MAX_CHARACTERS // len(unit) // 4)
    try:
        split(text, "run.sh")
    except UsageError as error:
        assert "never closed" in error.what
