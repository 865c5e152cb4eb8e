"""Where text stands: a `SourceFile` is what the user gave, a `SourceText` is some of it.

A command may stand in a fenced block of a guide, in a block of YAML, in quotes inside another command. Every
reader works on plain text, without indents, quotes and escapes. A `SourceText` knows where each character of
that text came from, so that a finding has a line and a column, and a fix changes the right characters or
none.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from itertools import accumulate
from sys import maxsize

from firesteel.errors import UsageError
from firesteel.values import Value

MAX_CHARACTERS = 2**20

OpenSibling = Callable[[str], str | None]
"""Reads a file by its name relative to another; None where there is no such file."""
Anchor = tuple[int, int]
"""An offset in a text, and the offset of that character in the file. The characters after it follow one by
one, up to the next anchor."""


class SourceFile(Value, dict=True):
    """A file, or a line that was typed; `path` is what to call it."""

    path: str
    text: str
    open_sibling: OpenSibling | None = None
    """How to read a file that this one names; None: it cannot be read."""

    def sibling(self, name: str) -> SourceFile | None:
        """A file that this one names. One on another machine (`/etc/vllm.env`) is looked for by its name."""
        if name.startswith(("/", "~", "$")):
            name = name.rpartition("/")[2]
        text = self.open_sibling(name) if self.open_sibling and name else None
        is_readable = text is not None and len(text) <= MAX_CHARACTERS and "\0" not in text
        return SourceFile(name, text.replace("\r\n", "\n")) if text is not None and is_readable else None

    @cached_property
    def dotenv(self) -> Mapping[str, str]:
        """The variables of the `.env` in its folder."""
        file = self.sibling(".env")
        return parse_env_file(file.text) if file else {}

    @cached_property
    def _line_starts(self) -> list[int]:
        *lines, _ = self.text.split("\n")
        return [0, *accumulate(len(line) + 1 for line in lines)]

    def place(self, offset: int) -> tuple[int, int]:
        """Line and column, both from 1."""
        line = bisect_right(self._line_starts, offset)
        return line, offset - self._line_starts[line - 1] + 1

    def line(self, number: int) -> str:
        start = self._line_starts[number - 1]
        end = self._line_starts[number] - 1 if number < len(self._line_starts) else len(self.text)
        return self.text[start:end]

    @property
    def whole(self) -> SourceText:
        return SourceText(self.text, ((0, 0),))


class SourceText(Value):
    """Text, and where its characters stand in the file."""

    text: str
    anchors: tuple[Anchor, ...]

    def at(self, offset: int) -> int:
        """The offset in the file of the character at `offset`."""
        if len(self.anchors) == 1:
            start, file_offset = self.anchors[0]
            return file_offset + (offset - start if offset > start else 0)
        index = bisect_right(self.anchors, (offset, maxsize)) - 1
        start, file_offset = self.anchors[max(index, 0)]
        return file_offset + max(offset - start, 0)

    def span(self, start: int, end: int) -> tuple[int, int]:
        """The characters of the file from `start` to `end`, with everything between them."""
        return self.at(start), self.at(max(end - 1, start)) + (end > start)

    def part(self, start: int, end: int) -> SourceText:
        if len(self.anchors) == 1:
            own_start, file_offset = self.anchors[0]
            return SourceText(self.text[start:end], ((0, start + file_offset - own_start),))
        return self.inner(self.text[start:end], ((0, start),))

    def inner(self, text: str, anchors: Iterable[Anchor]) -> SourceText:
        """A text made from this one; its anchors point into this one."""
        if len(self.anchors) == 1:  # the usual case, and most of the work for a large file
            start, file_offset = self.anchors[0]
            shift = file_offset - start
            return SourceText(text, tuple((offset, own + shift) for offset, own in anchors))
        return SourceText(text, tuple(self._resolve(len(text), tuple(anchors))))

    def assemble(self, pieces: Iterable[tuple[str, int]], start: int = 0) -> SourceText:
        """A text made of pieces, each with the offset in this text where it stands. `start` is where a text
        without any pieces stands."""
        texts: list[str] = []
        anchors: list[Anchor] = []
        length, expected = 0, -1
        for text, offset in pieces:
            if text:
                if offset != expected:  # the lines of a block mostly follow each other in the file, too
                    anchors.append((length, offset))
                texts.append(text)
                length += len(text)
                expected = offset + len(text)
        return self.inner("".join(texts), anchors or [(0, start)])

    def substitute(
        self, pattern: re.Pattern[str], value: Callable[[re.Match[str]], SourceText | None], limit: int
    ) -> SourceText:
        """The text with values for the matches that have one; unchanged where it would exceed `limit`."""
        pieces: list[SourceText] = []
        offset = length = 0
        for match in pattern.finditer(self.text):
            if (new := value(match)) is None:
                continue
            pieces += [self.part(offset, match.start()), new]
            offset = match.end()
            length += len(pieces[-2].text) + len(new.text)
            if length > limit:
                return self
        return join_texts([*pieces, self.part(offset, len(self.text))]) if pieces else self

    def _resolve(self, length: int, anchors: tuple[Anchor, ...]) -> Iterable[Anchor]:
        for index, (offset, own_offset) in enumerate(anchors):
            end = anchors[index + 1][0] if index + 1 < len(anchors) else max(length, offset + 1)
            yield offset, self.at(own_offset)
            # This text's own anchors that fall between two of the new ones hold there too.
            inner = bisect_right(self.anchors, (own_offset, maxsize))
            while inner < len(self.anchors) and self.anchors[inner][0] - own_offset < end - offset:
                anchor, file_offset = self.anchors[inner]
                yield offset + anchor - own_offset, file_offset
                inner += 1


def join_texts(pieces: Iterable[SourceText]) -> SourceText:
    """One text after the other, each keeping its place in the file."""
    anchors: list[Anchor] = []
    texts: list[str] = []
    length, first = 0, None
    for piece in pieces:
        first = first or piece.anchors
        anchors += [(length + offset, file_offset) for offset, file_offset in piece.anchors if piece.text]
        texts.append(piece.text)
        length += len(piece.text)
    return SourceText("".join(texts), tuple(anchors) or first or ((0, 0),))


_ENV_LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_]\w*)\s*=[^\S\n]*+((?:\S(?:.*\S)?)?)\s*\Z")
_ENV_VALUE = re.compile(
    r"""'([^']*)'.*|"((?:[^"\\]|\\.)*)".*|(.*?)(?:(?<!\s)\s++\#.*)?\Z""", re.DOTALL | re.VERBOSE
)
MAX_VARIABLES = 1000


def parse_env_file(text: str) -> dict[str, str]:
    """`NAME=value` lines, as docker compose reads them; later ones win."""
    variables: dict[str, str] = {}
    for line in text.split("\n"):
        pair = _ENV_LINE.match(line)
        value = _ENV_VALUE.match(pair[2]) if pair else None
        if pair and value and len(variables) < MAX_VARIABLES:
            single, double, plain = value.groups()
            quoted = double.replace('\\"', '"') if double is not None else plain
            variables[pair[1]] = single if single is not None else quoted
    return variables


def source_file(text: str, path: str, open_sibling: OpenSibling | None = None) -> SourceFile:
    """Accept text of a bounded size without zero bytes; normalize the byte order mark and line ends."""
    if len(text) > MAX_CHARACTERS:
        raise UsageError(
            f"{path} is longer than {MAX_CHARACTERS:,} characters",
            next="give only the lines that start the engine",
        )
    if "\0" in text:
        raise UsageError(f"{path} is not text: it has zero bytes", next="give a script or a command line")
    return SourceFile(path, text.removeprefix("\ufeff").replace("\r\n", "\n"), open_sibling)
