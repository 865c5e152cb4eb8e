"""Texts of a compose file: variables read, and a command that is one text split into words.

Read as docker compose reads them: first `${NAME:-default}` and `$$`, then blanks, quotes and backslashes. No
shell stands between: a line end is only a blank, a `#` is a word like any other, a backslash before a line
end keeps the line end, and what follows a bare `;`, `&`, `|`, `<` or `>` is not passed on. `<MODEL>` is taken
for the placeholder that guides mean by it. Variables without a default stay as the text they are: their
values stand in the author's shell or `.env`.
Seen in compose-spec/compose-go (`template/template.go`, `types/command.go`) and mattn/go-shellwords,
2026-11-15.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping

from firesteel.errors import UsageError
from firesteel.reads import yaml_values
from firesteel.reads.shell import NOWHERE, Word
from firesteel.reads.source_text import Passage, SourceFile

MAX_VARIABLES = 10_000
"""Variables of one text; one with more is left as it is."""
_MAX_NESTED = 8
_USE = re.compile(r"\$\$|\$\{(?P<name>[A-Za-z_]\w*)(?P<mark>:?[-?])?")
_BRACE = re.compile(r"[{}]")
_TOKEN = re.compile(
    r"""
    (?P<space>[ \t\r\n]+)
  | (?P<placeholder><[A-Za-z_][\w./:-]*>)
  | (?P<end>[;&|<>])
  | (?P<single>'[^']*')
  | (?P<double>"[^"\\]*(?:\\.[^"\\]*)*")
  | (?P<escape>\\.)
  | (?P<variable>\$\{[^{}]*\}|\$\([^()]*\)|`[^`]*`)
  | (?P<plain>(?:[^ \t\r\n'"\\$`;&|<>]|\$(?!\{[^{}]*\}|\([^()]*\)))+|`)
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_LETTERS = {"t": "\t", "n": "\n"}


class ExpandedText:
    """A text with its variables read, and which parts of it came from one."""

    def __init__(self, passage: Passage) -> None:
        self.touched: list[tuple[int, int]] = []
        pieces: list[tuple[str, int]] = []
        length = 0
        text = passage.text if passage.text.count("$") <= MAX_VARIABLES else ""
        for start, end, is_touched in _kept(text, _closing(text), (0, len(text))):
            pieces.append((text[start:end], start))
            if is_touched:
                self.touched.append((length, length + end - start))
            length += end - start
        self.passage = yaml_values.made(passage, pieces) if self.touched else passage

    @property
    def text(self) -> str:
        return self.passage.text

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Where a part stands; nowhere as such when a variable is in it: no fix may cut through one."""
        index = bisect_right(self.touched, (end, len(self.text))) - 1
        if index >= 0 and self.touched[index][1] >= start:
            return NOWHERE
        return self.passage.span(start, end)


def _closing(text: str) -> dict[int, int]:
    """Each opening brace and the one that closes it."""
    found: dict[int, int] = {}
    opened: list[int] = []
    for brace in _BRACE.finditer(text) if "${" in text else ():
        if brace[0] == "{":
            opened.append(brace.start())
        elif opened:
            found[opened.pop()] = brace.start()
    return found


def _kept(
    text: str, closing: Mapping[int, int], bounds: tuple[int, int], depth: int = 0
) -> Iterator[tuple[int, int, bool]]:
    """What is left of a text, part by part: of `${A:-b}` the `b`, of `${A:?why}` the `${A}`, of `$$` one."""
    at, end = bounds
    while use := _USE.search(text, at, end):
        yield at, use.start(), depth > 0
        close = closing.get(use.start() + 1, end)
        if use["name"] is None:
            yield use.start() + 1, use.end(), True
            at = use.end()
        elif use["mark"] is None or close >= end or depth >= _MAX_NESTED:
            yield use.start(), use.end(), depth > 0
            at = use.end()
        elif use["mark"].endswith("?"):
            yield use.start(), use.end("name"), True
            yield close, close + 1, True
            at = close + 1
        else:
            yield from _kept(text, closing, (use.end(), close), depth + 1)
            at = close + 1
    yield at, end, depth > 0


def split(filled: ExpandedText, page: SourceFile) -> Iterator[Word]:
    """Words, as compose splits a command that is one text."""
    passage = filled.passage
    at, text = 0, passage.text
    tokens: list[re.Match[str]] = []
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise _unclosed(page, passage.at(at))
        if token.lastgroup == "end":
            break
        if token.lastgroup != "space":
            tokens.append(token)
        elif tokens:
            yield _word(filled, tokens, page)
            tokens = []
        at = token.end()
    if tokens:
        yield _word(filled, tokens, page)


def _word(filled: ExpandedText, tokens: list[re.Match[str]], page: SourceFile) -> Word:
    inside = yaml_values.made(filled.passage, (piece for token in tokens for piece in _undone(token)))
    start, end = tokens[0].start(), tokens[-1].end()
    where = page.place(filled.passage.at(start))
    is_quoted = any(token.lastgroup in ("single", "double") for token in tokens)
    return Word(inside.text, *where, start, end, filled.span(start, end), inside, is_quoted)


def _undone(token: re.Match[str]) -> Iterator[tuple[str, int]]:
    """Quotes and backslashes away: what is left, and where it stands."""
    text, (start, end) = token.string, token.span()
    if token.lastgroup in ("single", "double"):
        start, end = start + 1, end - 1
    for escape in _ESCAPED.finditer(text, start, end) if token.lastgroup in ("double", "escape") else ():
        yield text[start : escape.start()], start
        yield _LETTERS.get(escape[1], escape[1]), escape.start(1)
        start = escape.end()
    yield text[start:end], start


def _unclosed(page: SourceFile, offset: int) -> UsageError:
    line, column = page.place(offset)
    mark = page.text[offset : offset + 1]
    return UsageError(
        f"{page.path}:{line}:{column}: the {mark} here is never closed, and compose refuses the command",
        next=f"close it in {page.path}",
    )
