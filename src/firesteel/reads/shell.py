"""Shell text -> simple commands, each a list of words that remember where they stand.

A reader, not a shell: quotes and backslashes are undone, comments and redirections dropped, and
`$NAME`, `${NAME}` and `$(...)` stay as the text they are (`variables` fills in what the text itself
tells). `<MODEL>` is taken for the placeholder that guides mean by it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from firesteel.errors import UsageError
from firesteel.reads.source_text import Anchor, Passage, SourceFile

_TOKEN = re.compile(
    r"""
    (?P<space>[^\S\n]+)
  | (?P<continuation>\\[^\S\n]*\n)
  | (?P<newline>\n)
  | (?P<placeholder><[A-Za-z_][\w./:-]*>)
  | (?P<redirect>[0-9]*(?:<<<|<<-?|<&|<|>>|>&|>\||>)|&>>?)
  | (?P<operator>&&|\|\||;;|[;|&()])
  | (?P<single>'[^']*')
  | (?P<ansi>\$'[^'\\]*(?:\\.[^'\\]*)*')
  | (?P<double>"[^"\\]*(?:\\.[^"\\]*)*")
  | (?P<variable>\$\{[^{}\n]*(?:\{[^{}\n]*\}[^{}\n]*)*\})
  | (?P<nested>\$\(|`)
  | (?P<escape>\\.)
  | (?P<plain>[^\s'"\\$`;&|()<>]+|[$<>\\])
    """,
    re.VERBOSE | re.DOTALL,
)
_UNESCAPE = re.compile(r'\\([$`"\\]|\n)')
_ANSI_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ANSI = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "e": "\x1b"}
_BLANK_AFTER = re.compile(r"\\[^\S\n]+\n")
_LOGICAL_LINE = re.compile(r"(?:[^\n]*\\[^\S\n]*\n)*[^\n]+\n?")
_SPEAKS = re.compile(r"\bvllm\s+serve|llama-server|launch_server|\b(?:docker|podman|nerdctl)\s+run")
"""Lines worth telling about when they cannot be read."""
_SILENT = re.compile(
    r"^[^\S\n]*:[^\S\n]*<<-?[^\S\n]*(['\"]?)(\w+)\1[^\n]*\n.*?^[^\S\n]*\2[^\S\n]*$", re.M | re.S
)
_NESTING = re.compile(r"['\"()\\]")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_Piece = tuple[str, int, int]
"""A token of a word: its kind, where it begins and where it ends in the passage."""
_PROMPT = re.compile(r"(?:[\w.-]+@\S*)?[$%]\Z")


NOTHING = Passage("", ((0, 0),))
NOWHERE = (0, 0)
"""The span of a word that stands nowhere as such: what a variable was found to stand for."""


@dataclass(frozen=True, slots=True)
class Word:
    text: str
    line: int
    column: int = 0
    start: int = 0
    """Where it begins in the passage that was split, quotes included."""
    end: int = 0
    span: tuple[int, int] = NOWHERE
    """The same in the page."""
    inside: Passage = NOTHING
    """Its text, quotes away, and where that stands."""
    is_quoted: bool = False
    """Whether quotes keep it together: what a variable in it stands for is not split."""

    def after(self, offset: int) -> Word:
        """The same word without its first characters: the value of `NAME=value`."""
        return replace(self, text=self.text[offset:], inside=self.inside.part(offset, len(self.text)))


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """One simple command, on however many physical lines."""

    words: tuple[Word, ...]
    env: Mapping[str, Word] = field(default_factory=dict)
    """`A=b` before the command."""
    end: str = ""
    """What ends it: a line end, `&&`, `(`."""
    broken: Word | None = None
    """Blanks after a backslash: a shell ends the command there, the author did not mean to."""

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(word.text for word in self.words)


def split(passage: Passage, page: SourceFile) -> tuple[ShellCommand, ...]:
    """Every simple command in a passage of a page."""
    return tuple(_lines(passage, page))


def split_leniently(passage: Passage, page: SourceFile) -> tuple[tuple[ShellCommand, ...], UsageError | None]:
    """As `split`, but line by line where the whole cannot be read: output may stand between commands.

    Lines that cannot be read are passed over; of those that seem to start an engine the last mistake comes
    back.
    """
    try:
        return split(passage, page), None
    except UsageError:
        pass
    found: list[ShellCommand] = []
    problem = None
    for line in _LOGICAL_LINE.finditer(passage.text):
        try:
            found += split(passage.part(*line.span()), page)
        except UsageError as error:
            problem = error if _SPEAKS.search(line[0]) else problem
    return tuple(found), problem


def without_silent_text(passage: Passage) -> Passage:
    """`: <<'END' ... END` is how scripts comment a block out; blanks stand in its place."""
    text = _SILENT.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), passage.text)
    return passage if text == passage.text else passage.inner(text, ((0, 0),))


def words(passage: Passage, page: SourceFile) -> tuple[Word, ...]:
    """All words, where no shell stands between: a line end is only a blank."""
    return tuple(word for word in _words(passage, page) if isinstance(word, Word))


def _lines(passage: Passage, page: SourceFile) -> Iterator[ShellCommand]:
    words: list[Word] = []
    for word in _words(passage, page):
        if isinstance(word, Word):
            words.append(word)
        elif words:
            yield replace(_command(words), end=word, broken=_broken(words, passage, page))
            words = []
        elif word in ("(", ")"):
            yield ShellCommand((), end=word)
    if words:
        yield replace(_command(words), broken=_broken(words, passage, page))


def _broken(words: list[Word], passage: Passage, page: SourceFile) -> Word | None:
    found = _BLANK_AFTER.search(passage.text, words[0].start, words[-1].end)
    while found and any(word.start <= found.start() < word.end for word in words):
        found = _BLANK_AFTER.search(passage.text, found.end(), words[-1].end)
    if found is None:
        return None
    bounds = found.start() + 1, found.end() - 1
    span = passage.span(*bounds)
    return Word(passage.text[slice(*bounds)], *page.place(span[0]), *bounds, span)


def _command(words: list[Word]) -> ShellCommand:
    first = 1 if _PROMPT.match(words[0].text) else 0
    env: dict[str, Word] = {}
    for word in words[first:]:
        if not _ASSIGNMENT.match(word.text):
            break
        name = word.text.partition("=")[0]
        env[name] = word.after(len(name) + 1)
        first += 1
    return ShellCommand(tuple(words[first:]), env)


def _words(passage: Passage, page: SourceFile) -> Iterator[Word | str]:
    """Words; where a command ends, what ends it."""
    text, at, start, redirected = passage.text, 0, -1, False
    pieces: list[_Piece] = []
    while at < len(text):
        if start < 0 and text[at] == "#":
            at = _end_of_line(text, at)
            continue
        kind, end = _next(passage, at, page)
        if kind in ("space", "newline", "operator", "redirect"):
            if start >= 0 and not redirected:
                yield _word(pieces, passage, (start, at), page)
            if kind in ("newline", "operator"):
                yield text[at:end]
            redirected = kind == "redirect" or (redirected and kind == "space" and start < 0)
            start, pieces = -1, []
        elif kind != "continuation":
            start = at if start < 0 else start
            pieces.append((kind, at, end))
        at = end
    if start >= 0 and not redirected:
        yield _word(pieces, passage, (start, at), page)


def _word(pieces: list[_Piece], passage: Passage, bounds: tuple[int, int], page: SourceFile) -> Word:
    texts: list[str] = []
    anchors: list[Anchor] = []
    length = 0
    for kind, start, end in pieces:
        for piece, at in _undo(kind, passage.text[start:end]):
            anchors.append((length, start + at))
            texts.append(piece)
            length += len(piece)
    inside = passage.inner("".join(texts), anchors or [(0, bounds[0])])
    span = passage.span(*bounds)
    return Word(
        inside.text, *page.place(span[0]), *bounds, span, inside,
        any(kind in ("single", "double", "ansi") for kind, *_ in pieces),
    )  # fmt: skip


def _end_of_line(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _next(passage: Passage, at: int, page: SourceFile) -> tuple[str, int]:
    """The token at `at`: its kind, and where it ends."""
    match = _TOKEN.match(passage.text, at)
    if match is None:
        raise _unclosed(passage.text[at], passage.at(at), page)
    kind, end = str(match.lastgroup), match.end()
    if kind == "nested":
        end = _closing(passage.text, match)
        if end < 0:
            raise _unclosed(match[0], passage.at(at), page)
    return kind, end


def _undo(kind: str, token: str) -> Iterator[tuple[str, int]]:
    """Quotes and backslashes away: what is left, piece by piece, and where each piece stands in the token."""
    if kind == "single":
        yield token[1:-1], 1
    elif kind == "double":
        yield from _unescaped(token, 1, _UNESCAPE, lambda found: found[1].strip("\n"))
    elif kind == "ansi":
        yield from _unescaped(token, 2, _ANSI_ESCAPE, lambda found: _ANSI.get(found[1], found[1]))
    elif kind == "escape":
        yield token[1:], 1
    else:
        yield token, 0


def _unescaped(
    token: str, first: int, escape: re.Pattern[str], meaning: Callable[[re.Match[str]], str]
) -> Iterator[tuple[str, int]]:
    at, end = first, len(token) - 1
    for found in escape.finditer(token, first, end):
        if found.start() > at:
            yield token[at : found.start()], at
        yield meaning(found), found.start(1)
        at = found.end()
    if at < end or at == first:
        yield token[at:end], at


def _closing(text: str, opening: re.Match[str]) -> int:
    """Where `$(...)` or a backquoted command ends; -1 when it does not."""
    if opening[0] == "`":
        return text.find("`", opening.end()) + 1 or -1
    depth, at = 1, opening.end()
    while depth:
        found = _NESTING.search(text, at)
        if found is None:
            return -1
        at = found.end()
        if found[0] in "()":
            depth += 1 if found[0] == "(" else -1
        elif found[0] == "\\":
            at += 1
        else:
            at = text.find(found[0], at) + 1
            if at == 0:
                return -1
    return at


def _unclosed(mark: str, offset: int, page: SourceFile) -> UsageError:
    line, column = page.place(offset)
    return UsageError(
        f"{page.path}:{line}:{column}: the {mark} here is never closed", next=f"close it in {page.path}"
    )
