"""Shell text -> simple commands, each a list of words that remember where they stand.

A reader, not a shell: quotes and backslashes are undone, comments and redirections dropped, and
`$NAME`, `${NAME}` and `$(...)` stay as the text they are, since what they stand for is known only
where the command runs. `<MODEL>` is taken for the placeholder that guides mean by it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from firesteel.errors import UsageError

MAX_CHARACTERS = 2**20

_TOKEN = re.compile(
    r"""
    (?P<space>[^\S\n]+)
  | (?P<continuation>\\\n)
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
_NESTING = re.compile(r"['\"()\\]")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_PROMPT = re.compile(r"(?:[\w.-]+@\S*)?[$%]\Z")


@dataclass(frozen=True, slots=True)
class Word:
    text: str
    line: int
    start: int
    """Where it begins in the source, quotes included."""
    end: int


@dataclass(frozen=True, slots=True)
class Line:
    """One simple command, on however many physical lines."""

    words: tuple[Word, ...]
    env: Mapping[str, Word] = field(default_factory=dict)
    """`A=b` before the command."""

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(word.text for word in self.words)


def split(text: str, path: str, first_line: int = 1) -> tuple[Line, ...]:
    """Every simple command in `text`, which begins at `first_line` of `path`."""
    return tuple(_lines(text, path, first_line))


def normal(text: str, path: str) -> str:
    """Text worth reading: bounded, without zero bytes or a byte order mark, with Unix line ends."""
    if len(text) > MAX_CHARACTERS:
        raise UsageError(
            f"{path} is longer than {MAX_CHARACTERS:,} characters",
            next="give only the lines that start the engine",
        )
    if "\0" in text:
        raise UsageError(f"{path} is not text: it holds zero bytes", next="give a script or a command line")
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


def _lines(text: str, path: str, first_line: int) -> Iterator[Line]:
    words: list[Word] = []
    for word in _words(text, path, first_line):
        if word is not None:
            words.append(word)
        elif words:
            yield _command(words)
            words = []
    if words:
        yield _command(words)


def _command(words: list[Word]) -> Line:
    first = 1 if _PROMPT.match(words[0].text) else 0
    env: dict[str, Word] = {}
    for word in words[first:]:
        if not _ASSIGNMENT.match(word.text):
            break
        name, _, value = word.text.partition("=")
        env[name] = replace(word, text=value)
        first += 1
    return Line(tuple(words[first:]), env)


def _words(text: str, path: str, line: int) -> Iterator[Word | None]:
    """Words; None where a command ends."""
    at, start, first, redirected = 0, -1, line, False
    pieces: list[str] = []
    while at < len(text):
        if start < 0 and text[at] == "#":
            at = _end_of_line(text, at)
            continue
        kind, piece, end = _next(text, at, line, path)
        if kind in ("space", "newline", "operator", "redirect"):
            if start >= 0 and not redirected:
                yield Word("".join(pieces), first, start, at)
            if kind in ("newline", "operator"):
                yield None
            redirected = kind == "redirect" or (redirected and kind == "space" and start < 0)
            start, pieces = -1, []
        elif kind != "continuation":
            if start < 0:
                start, first = at, line
            pieces.append(piece)
        line += text.count("\n", at, end)
        at = end
    if start >= 0 and not redirected:
        yield Word("".join(pieces), first, start, at)


def _end_of_line(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _next(text: str, at: int, line: int, path: str) -> tuple[str, str, int]:
    """The token at `at`: its kind, what it says, and where it ends."""
    match = _TOKEN.match(text, at)
    if match is None:
        raise _unclosed(text[at], line, path)
    kind = str(match.lastgroup)
    if kind == "nested":
        end = _closing(text, match)
        if end < 0:
            raise _unclosed(match[0], line, path)
        return kind, text[at:end], end
    return kind, _undo(kind, match[0]), match.end()


def _undo(kind: str, token: str) -> str:
    """Quotes and backslashes away."""
    if kind == "single":
        return token[1:-1]
    if kind == "double":
        return _UNESCAPE.sub(lambda found: found[1].strip("\n"), token[1:-1])
    if kind == "ansi":
        return _ANSI_ESCAPE.sub(lambda found: _ANSI.get(found[1], found[1]), token[2:-1])
    return token[1:] if kind == "escape" else token


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


def _unclosed(mark: str, line: int, path: str) -> UsageError:
    return UsageError(f"{path}:{line}: the {mark} here is never closed", next=f"close it in {path}")
