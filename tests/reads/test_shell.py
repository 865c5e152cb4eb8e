"""Splitting text the way a shell would."""

from __future__ import annotations

import shlex
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.errors import UsageError
from firesteel.reads import shell
from firesteel.reads.shell import ShellCommand
from firesteel.reads.source_text import MAX_CHARACTERS, SourceFile


def split(text: str) -> tuple[ShellCommand, ...]:
    whole = SourceFile("run.sh", text)
    return shell.split(whole.whole, whole)


def texts(text: str) -> list[list[str]]:
    return [list(line.texts) for line in split(text) if line.words or line.env]


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
    (line,) = split("# top\n\nA=1 B='x y' \\\n  run \\\n --b")
    assert [(word.text, word.line, word.column) for word in line.words] == [("run", 4, 3), ("--b", 5, 2)]
    assert {name: (word.text, word.line, word.column) for name, word in line.env.items()} == {
        "A": ("1", 3, 1),
        "B": ("x y", 3, 5),
    }


def test_a_word_knows_the_position_of_its_characters() -> None:
    text = """run -lc "a \\"b\\" 'c' \\\n  d\\$e" """
    (line,) = split(text)
    script = line.words[2]
    assert script.text == """a "b" 'c'   d$e"""
    assert [text[script.content.at(n)] for n in range(len(script.text))] == list(script.text)
    assert text[slice(*script.span)] == text[8:-1]


def test_a_blank_after_a_backslash_is_reported() -> None:
    first, second = split("a \\ \n b 'x\\ \n y'\nc \\\n d")
    assert first.texts == ("a", "b", "x\\ \n y")
    assert first.broken and (first.broken.line, first.broken.column) == (1, 4)
    assert second.broken is None


@pytest.mark.parametrize("text", ["a 'b", 'x\na "b', "a $(b", "a `b", "a $(b ' )"])
def test_unclosed(text: str) -> None:
    line = text.count("\n") + 1
    with pytest.raises(UsageError, match=rf"run.sh:{line}:\d+: this .* is never closed"):
        split(text)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.text(string.printable + "é", min_size=1, max_size=12), min_size=1, max_size=8))
def test_undoes_what_shlex_quotes(words: list[str]) -> None:
    (line,) = split("run " + shlex.join(words))
    assert list(line.texts[1:]) == words


@settings(deadline=None, max_examples=200)
@given(st.text("abc '\"\\$(){}`<>|&;#\n=-\t", max_size=60))
def test_any_text_splits_or_is_refused(text: str) -> None:
    try:
        split(text)
    except UsageError as error:
        assert "never closed" in error.what


@pytest.mark.parametrize("unit", ["$(", "(", "{", "<", "a ", "\\\n", "\\", "#", "${", "> ", "$'", "x=1 "])
def test_a_megabyte_of_anything_ends(unit: str) -> None:
    text = unit * (MAX_CHARACTERS // len(unit) // 4)
    try:
        split(text)
    except UsageError as error:
        assert "never closed" in error.what


def test_lines_are_split_one_by_one_where_the_whole_cannot_be() -> None:
    file = SourceFile(
        "guide.md", "$ run a \\\n  b\nERROR: can't open\n$ run x\n$ run 'c d'\nvllm serve \"y\n\n'z'"
    )
    lines, problem = shell.split_leniently(file.whole, file)
    assert [line.texts for line in lines] == [("run", "a", "b"), ("run", "x"), ("run", "c d"), ("z",)]
    assert lines[1].words[0].line == 4
    assert problem and "guide.md:6:12" in problem.what
