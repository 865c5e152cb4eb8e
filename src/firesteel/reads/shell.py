"""Shell text -> simple commands: lists of words that know their position.

It reads and does not run: quotes and backslashes are resolved, comments and redirections dropped, and
`$NAME`, `${NAME}` and `$(...)` stay text (`variables` fills in what the same text sets). `<MODEL>` is a
placeholder, as guides mean it, and no redirection; so is `{your model}`, which is one word.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping

from firesteel.errors import UsageError
from firesteel.reads.source_text import SourceFile, SourceText
from firesteel.values import Value, replace

_TOKEN = re.compile(
    r"""
    (?P<space>[^\S\n]+)
  | (?P<continuation>\\[^\S\n]*\n)
  | (?P<newline>\n)
  | (?P<placeholder><[A-Za-z_][\w./:|-]*>|<[A-Za-z]\w*(?:\ [\w-]+){1,5}>|\{[A-Za-z]\w*(?:\ [\w-]+){1,5}\})
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
_PLAIN_WORD = re.compile(r"""([^\s'"\\$`;&|()<>{#][^\s'"\\$`;&|()<>]*)(?=\s|\Z)[^\S\n]*""")
"""A word of one plain token, as most are, and the blanks behind it."""
_UNESCAPE = re.compile(r'\\([$`"\\]|\n)')
_ANSI_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ANSI = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "e": "\x1b"}
_BLANK_AFTER_BACKSLASH = re.compile(r"\\[^\S\n]+\n")
_LOGICAL_LINE = re.compile(r"(?:[^\n]*\\[^\S\n]*\n)*[^\n]+\n?")
_STARTS_ENGINE = re.compile(r"\bvllm\s+serve|llama-server|launch_server|\b(?:docker|podman|nerdctl)\s+run")
"""Lines whose errors are worth reporting."""
_BLOCK_COMMENT = re.compile(r"^[^\S\n]*:[^\S\n]*<<-?[^\S\n]*(['\"]?)(\w+)\1[^\n]*\n", re.M)
_LINE_OF_ONE_WORD = re.compile(r"^[^\S\n]*(\w+)[^\S\n]*$", re.M)
_NESTING = re.compile(r"['\"()\\]")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_Piece = tuple[str, int, int]
"""A token of a word: its kind, and its start and end in the source."""
GLUED = re.compile(r"(--?[A-Za-z][\w.-]*)[^\S\n]+(\S.*)\Z")
_PROMPT = re.compile(r"(?:[\w.-]+@\S*)?[$%]\Z")


EMPTY_TEXT = SourceText("", ((0, 0),))
NO_SPAN = (0, 0)
"""The span of a word that is not in the file as such: the value of a variable."""


class Word(Value):
    text: str
    line: int
    column: int = 0
    start: int = 0
    """In the text that was split, with the quotes."""
    end: int = 0
    span: tuple[int, int] = NO_SPAN
    """Start and end in the file."""
    content: SourceText = EMPTY_TEXT
    """Its text without quotes, and where that stands."""
    is_quoted: bool = False
    """Then the value of a variable in it is not split."""
    is_element: bool = False
    """It is a word of an array."""
    is_conditional: bool = False
    """It is the value of a variable, or a part of it, that a script sets under a condition."""

    def after(self, offset: int) -> Word:
        """The same word without its first characters: the value of `NAME=value`."""
        return replace(self, text=self.text[offset:], content=self.content.part(offset, len(self.text)))


class ShellCommand(Value):
    """One simple command, on any number of lines."""

    words: tuple[Word, ...]
    env: Mapping[str, Word] = {}
    """`A=b` before the command."""
    end: str = ""
    """What ends it: a line end, `&&`, `(`."""
    broken: Word | None = None
    """Blanks after a backslash: the shell ends the command there, which its author did not intend."""

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(word.text for word in self.words)


def unglued(word: Word) -> tuple[Word, ...]:
    """`--flag value` as one word is an error where no shell splits it; this is what was meant."""
    glued = GLUED.match(word.text)
    parts = ((glued[1], glued.start(1)), (glued[2], glued.start(2))) if glued else ()
    return tuple(replace(word.after(start), text=text, span=NO_SPAN) for text, start in parts) or (word,)


def split(source: SourceText, file: SourceFile) -> tuple[ShellCommand, ...]:
    return tuple(_commands(source, file))


def split_leniently(
    source: SourceText, file: SourceFile
) -> tuple[tuple[ShellCommand, ...], UsageError | None]:
    """Like `split`, but line by line where the whole cannot be split: guides show output between commands.

    Lines that cannot be split are skipped. The last error of a line that seems to start an engine is
    returned.
    """
    try:
        return split(source, file), None
    except UsageError:
        pass
    commands: list[ShellCommand] = []
    problem = None
    for line in _LOGICAL_LINE.finditer(source.text):
        try:
            commands += split(source.part(*line.span()), file)
        except UsageError as error:
            problem = error if _STARTS_ENGINE.search(line[0]) else problem
    return tuple(commands), problem


def blank_out_comments(source: SourceText) -> SourceText:
    """Scripts comment blocks out with `: <<'END' ... END`; replace them by blanks."""
    text, done = source.text, 0
    pieces: list[str] = []
    ends: dict[str, list[int]] | None = None
    for opening in _BLOCK_COMMENT.finditer(text):
        if ends is None:
            ends = {}
            for line in _LINE_OF_ONE_WORD.finditer(text):
                ends.setdefault(line[1], []).append(line.end())
        places = ends.get(opening[2], [])
        index = bisect_left(places, opening.end())
        if index == len(places) or opening.start() < done:
            continue
        pieces += [text[done : opening.start()], re.sub(r"[^\n]", " ", text[opening.start() : places[index]])]
        done = places[index]
    return source.inner("".join([*pieces, text[done:]]), ((0, 0),)) if pieces else source


def words(source: SourceText, file: SourceFile) -> tuple[Word, ...]:
    """All words of a command that no shell splits: a line end is only white space."""
    return tuple(word for word in _words(source, file) if isinstance(word, Word))


def _commands(source: SourceText, file: SourceFile) -> Iterator[ShellCommand]:
    words: list[Word] = []
    for word in _words(source, file):
        if isinstance(word, Word):
            words.append(word)
        elif words:
            yield _command(words, word, _broken(words, source, file))
            words = []
        elif word in ("(", ")"):
            yield ShellCommand((), end=word)
    if words:
        yield _command(words, "", _broken(words, source, file))


def _broken(words: list[Word], source: SourceText, file: SourceFile) -> Word | None:
    if "@" in words[0].text and _PROMPT.match(words[0].text):
        return None  # a copy of a terminal, which adds blanks
    blanks = _BLANK_AFTER_BACKSLASH.search(source.text, words[0].start, words[-1].end)
    while blanks and any(word.start <= blanks.start() < word.end for word in words):
        blanks = _BLANK_AFTER_BACKSLASH.search(source.text, blanks.end(), words[-1].end)
    if blanks is None:
        return None
    bounds = blanks.start() + 1, blanks.end() - 1
    span = source.span(*bounds)
    return Word(source.text[slice(*bounds)], *file.place(span[0]), *bounds, span)


def _command(words: list[Word], end: str, broken: Word | None) -> ShellCommand:
    first = 1 if _PROMPT.match(words[0].text) else 0
    env: dict[str, Word] = {}
    for word in words[first:]:
        if not _ASSIGNMENT.match(word.text):
            break
        name = word.text.partition("=")[0]
        env[name] = word.after(len(name) + 1)
        first += 1
    return ShellCommand(tuple(words[first:]), env, end, broken)


def _words(source: SourceText, file: SourceFile) -> Iterator[Word | str]:
    """Words, and the text that ends a command."""
    text, offset, start, redirected = source.text, 0, -1, False
    pieces: list[_Piece] = []
    while offset < len(text):
        if start < 0 and text[offset] == "#":
            line_end = text.find("\n", offset)
            offset = len(text) if line_end < 0 else line_end
            continue
        if start < 0 and not redirected and (plain := _PLAIN_WORD.match(text, offset)):
            yield _plain_word(source, plain.span(1), file)
            offset = plain.end()
            continue
        kind, end = _next_token(source, offset, file)
        if kind in ("space", "newline", "operator", "redirect"):
            if start >= 0 and not redirected:
                yield _word(pieces, source, (start, offset), file)
            if kind in ("newline", "operator"):
                yield text[offset:end]
            redirected = kind == "redirect" or (redirected and kind == "space" and start < 0)
            start, pieces = -1, []
        elif kind != "continuation":
            start = offset if start < 0 else start
            pieces.append((kind, offset, end))
        offset = end
    if start >= 0 and not redirected:
        yield _word(pieces, source, (start, offset), file)


def _plain_word(source: SourceText, bounds: tuple[int, int], file: SourceFile) -> Word:
    if len(source.anchors) > 1:
        content, span = source.part(*bounds), source.span(*bounds)
    else:
        (offset, place), (start, end) = source.anchors[0], bounds
        span = start + place - offset, end + place - offset
        content = SourceText(source.text[start:end], ((0, span[0]),))
    line, column = file.place(span[0])
    return Word(content.text, line, column, *bounds, span, content)


def _word(pieces: list[_Piece], source: SourceText, bounds: tuple[int, int], file: SourceFile) -> Word:
    unquoted = (
        (text, start + offset)
        for kind, start, end in pieces
        for text, offset in _unquote(kind, source.text[start:end])
    )
    is_quoted = any(kind in ("single", "double", "ansi") for kind, *_ in pieces)
    return make_word(unquoted, source, bounds, file, is_quoted)


def make_word(
    pieces: Iterable[tuple[str, int]],
    source: SourceText,
    bounds: tuple[int, int],
    file: SourceFile,
    is_quoted: bool,
) -> Word:
    """The word between `bounds`, from pieces of its unquoted text with their offsets in the source."""
    content = source.assemble(pieces, bounds[0])
    span = source.span(*bounds)
    return Word(content.text, *file.place(span[0]), *bounds, span, content, is_quoted)


def _next_token(source: SourceText, offset: int, file: SourceFile) -> tuple[str, int]:
    """The kind and the end of the token at `offset`."""
    match = _TOKEN.match(source.text, offset)
    if match is None:
        raise _unclosed(source.text[offset], source.at(offset), file)
    kind, end = str(match.lastgroup), match.end()
    if kind == "nested":
        end = _closing(source.text, match)
        if end < 0:
            raise _unclosed(match[0], source.at(offset), file)
    return kind, end


def _unquote(kind: str, token: str) -> Iterator[tuple[str, int]]:
    """The token without quotes and backslashes, in pieces with their offset in the token."""
    if kind == "single":
        yield token[1:-1], 1
    elif kind == "double":
        yield from _unescape(token, 1, _UNESCAPE, lambda match: match[1].strip("\n"))
    elif kind == "ansi":
        yield from _unescape(token, 2, _ANSI_ESCAPE, lambda match: _ANSI.get(match[1], match[1]))
    elif kind == "escape":
        yield token[1:], 1
    elif kind == "placeholder":
        yield token.replace(" ", "_"), 0  # a variable with this value must not be split
    else:
        yield token, 0


def _unescape(
    token: str, start: int, escape: re.Pattern[str], meaning: Callable[[re.Match[str]], str]
) -> Iterator[tuple[str, int]]:
    end = len(token) - 1
    for match in escape.finditer(token, start, end):
        yield token[start : match.start()], start
        yield meaning(match), match.start(1)
        start = match.end()
    yield token[start:end], start


def _closing(text: str, opening: re.Match[str]) -> int:
    """The end of `$(...)` or of a backquoted command; -1 when it has none."""
    if opening[0] == "`":
        return text.find("`", opening.end()) + 1 or -1
    depth, offset = 1, opening.end()
    while depth:
        match = _NESTING.search(text, offset)
        if match is None:
            return -1
        offset = match.end()
        if match[0] in "()":
            depth += 1 if match[0] == "(" else -1
        elif match[0] == "\\":
            offset += 1
        else:
            offset = text.find(match[0], offset) + 1
            if offset == 0:
                return -1
    return offset


def _unclosed(mark: str, offset: int, file: SourceFile) -> UsageError:
    line, column = file.place(offset)
    return UsageError(
        f"{file.path}:{line}:{column}: this {mark} is never closed", next=f"close it in {file.path}"
    )
