"""Strings of a compose file as compose reads them: variables expanded, and a command split into words.

Not as a shell does: only `$NAME`, `${NAME}` and their defaults are expanded, and a line end is white space.
Every word keeps its place in the file, unless a variable is in it.
Seen in compose-spec/compose-go (`template/template.go`, `types/command.go`) and mattn/go-shellwords,
2026-11-15.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from firesteel.errors import UsageError
from firesteel.reads.shell import NO_SPAN, Word, make_word
from firesteel.reads.source_text import MAX_CHARACTERS, SourceFile, SourceText
from firesteel.reads.variables import without_secrets
from firesteel.values import replace

MAX_VARIABLES = 10_000
"""A text with more variables is not expanded."""
_MAX_NESTED = 8
_NO_VALUES: Mapping[str, str] = MappingProxyType({})
_USE = re.compile(r"\$\$|\$\{(?P<name>[A-Za-z_]\w*)(?P<mark>:?[-?])?|\$(?P<bare>[A-Za-z_]\w*)")
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
    """A text with its variables expanded, and the parts of it that came from one.

    Variables that neither `.env` nor a default sets stay text: their values are in the author's shell.
    """

    def __init__(self, source: SourceText, values: Mapping[str, str] = _NO_VALUES) -> None:
        """`values` are the variables of `.env`."""
        self.expanded_spans: list[tuple[int, int]] = []
        pieces: list[tuple[str, int]] = []
        length = 0
        text = source.text if source.text.count("$") <= MAX_VARIABLES else ""
        known = without_secrets(values)
        for piece, start, is_expanded in _remaining(text, _closing(text), (0, len(text)), known):
            pieces.append((piece, start))
            if is_expanded:
                self.expanded_spans.append((length, length + len(piece)))
            length += len(piece)
            if length > MAX_CHARACTERS:
                break
        self.content = source.assemble(pieces) if self.expanded_spans else source

    @property
    def text(self) -> str:
        return self.content.text

    def span(self, start: int, end: int) -> tuple[int, int]:
        """The span of a part in the file; none when it has a variable, since no fix may cut through one."""
        index = bisect_right(self.expanded_spans, (end, len(self.text))) - 1
        if index >= 0 and self.expanded_spans[index][1] >= start:
            return NO_SPAN
        return self.content.span(start, end)


def _closing(text: str) -> dict[int, int]:
    """The offset of each opening brace, and of the brace that closes it."""
    closing: dict[int, int] = {}
    opened: list[int] = []
    for brace in _BRACE.finditer(text) if "${" in text else ():
        if brace[0] == "{":
            opened.append(brace.start())
        elif opened:
            closing[opened.pop()] = brace.start()
    return closing


def _remaining(
    text: str, closing: Mapping[int, int], bounds: tuple[int, int], known: Mapping[str, str], depth: int = 0
) -> Iterator[tuple[str, int, bool]]:
    """What remains: of `${A:-b}` the value of A, or else `b`; of `${A:?why}` the `${A}`; of `$$` one dollar.

    As texts with their start, and whether a variable was expanded there.
    """
    start, end = bounds
    while use := _USE.search(text, start, end):
        yield text[start : use.start()], start, depth > 0
        close = closing.get(use.start() + 1, end)
        name = use["name"] or use["bare"]
        is_complete = use["bare"] is not None or (close < end and depth < _MAX_NESTED)
        if name is None:
            yield "$", use.start() + 1, True
            start = use.end()
        elif name in known and is_complete and (known[name] or use["mark"] != ":-"):
            yield known[name], use.start(), True
            start = use.end() if use["bare"] else close + 1
        elif use["mark"] is None or not is_complete:
            yield use[0], use.start(), depth > 0
            start = use.end()
        elif use["mark"].endswith("?"):
            yield text[use.start() : use.end("name")], use.start(), True
            yield "}", close, True
            start = close + 1
        else:
            yield from _remaining(text, closing, (use.end(), close), known, depth + 1)
            start = close + 1
    yield text[start:end], start, depth > 0


def split_command(expanded: ExpandedText, file: SourceFile) -> Iterator[Word]:
    """The words of a command, as compose splits a string: at blanks, after quotes and backslashes.

    There is no shell: a line end is only white space, a `#` is a word like any other, a backslash before a
    line end keeps the line end, and everything after a bare `;`, `&`, `|`, `<` or `>` is dropped. `<MODEL>`
    is a placeholder, as guides mean it.
    """
    offset, text = 0, expanded.text
    tokens: list[re.Match[str]] = []
    while offset < len(text):
        token = _TOKEN.match(text, offset)
        if token is None:
            raise _unclosed(file, expanded.content.at(offset))
        if token.lastgroup == "end":
            break
        if token.lastgroup != "space":
            tokens.append(token)
        elif tokens:
            yield _word_of_tokens(expanded, tokens, file)
            tokens = []
        offset = token.end()
    if tokens:
        yield _word_of_tokens(expanded, tokens, file)


def _word_of_tokens(expanded: ExpandedText, tokens: list[re.Match[str]], file: SourceFile) -> Word:
    bounds = tokens[0].start(), tokens[-1].end()
    pieces = (piece for token in tokens for piece in _unquote(token))
    is_quoted = any(token.lastgroup in ("single", "double") for token in tokens)
    word = make_word(pieces, expanded.content, bounds, file, is_quoted)
    return replace(word, span=expanded.span(*bounds))


def _unquote(token: re.Match[str]) -> Iterator[tuple[str, int]]:
    """The token without quotes and backslashes, in pieces with their offset."""
    text, (start, end) = token.string, token.span()
    if token.lastgroup in ("single", "double"):
        start, end = start + 1, end - 1
    for escape in _ESCAPED.finditer(text, start, end) if token.lastgroup in ("double", "escape") else ():
        yield text[start : escape.start()], start
        yield _LETTERS.get(escape[1], escape[1]), escape.start(1)
        start = escape.end()
    yield text[start:end], start


def _unclosed(file: SourceFile, offset: int) -> UsageError:
    line, column = file.place(offset)
    mark = file.text[offset : offset + 1]
    return UsageError(
        f"{file.path}:{line}:{column}: this {mark} is never closed, and compose rejects the command",
        next=f"close it in {file.path}",
    )
