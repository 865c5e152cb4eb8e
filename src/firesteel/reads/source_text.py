"""Where text stands: a page is what the user gave, a passage is some of it.

A command may stand in a fence of a guide, in a block of YAML, in quotes inside another command. Every
reader works on plain text, with indents, quotes and escapes already away; a passage remembers where each
character of that text came from, so that a finding has a line and a column, and a fix changes the right
characters or none.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from firesteel.errors import UsageError

MAX_CHARACTERS = 2**20

Anchor = tuple[int, int]
"""An offset in a text, and where that character stands in the page. Those after it follow one by one,
up to the next anchor."""


@dataclass(frozen=True)
class SourceFile:
    """A file, or a line that was typed; `path` is what to call it."""

    path: str
    text: str

    @cached_property
    def _starts(self) -> list[int]:
        starts, at = [0], self.text.find("\n")
        while at >= 0:
            starts.append(at + 1)
            at = self.text.find("\n", at + 1)
        return starts

    def place(self, offset: int) -> tuple[int, int]:
        """Line and column, both from 1."""
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1

    def line(self, number: int) -> str:
        start = self._starts[number - 1]
        end = self._starts[number] - 1 if number < len(self._starts) else len(self.text)
        return self.text[start:end]

    @property
    def whole(self) -> Passage:
        return Passage(self.text, ((0, 0),))


@dataclass(frozen=True, slots=True)
class Passage:
    text: str
    anchors: tuple[Anchor, ...]

    def at(self, offset: int) -> int:
        """Where the character at `offset` stands in the page."""
        index = bisect_right(self.anchors, (offset, _FAR)) - 1
        start, there = self.anchors[max(index, 0)]
        return there + max(offset - start, 0)

    def span(self, start: int, end: int) -> tuple[int, int]:
        """The characters of the page from `start` up to `end`, with all that stands between."""
        return self.at(start), self.at(max(end - 1, start)) + (end > start)

    def part(self, start: int, end: int) -> Passage:
        return self.inner(self.text[start:end], ((0, start),))

    def inner(self, text: str, anchors: Iterable[Anchor]) -> Passage:
        """A text made from this one; its anchors point into this one."""
        return Passage(text, tuple(self._resolved(len(text), tuple(anchors))))

    def _resolved(self, length: int, anchors: tuple[Anchor, ...]) -> Iterable[Anchor]:
        for index, (offset, here) in enumerate(anchors):
            end = anchors[index + 1][0] if index + 1 < len(anchors) else max(length, offset + 1)
            yield offset, self.at(here)
            at = bisect_right(self.anchors, (here, _FAR))
            while at < len(self.anchors) and self.anchors[at][0] - here < end - offset:
                ours, there = self.anchors[at]
                yield offset + ours - here, there
                at += 1


_FAR = 2**62


def joined(pieces: Iterable[Passage]) -> Passage:
    """One passage after the other, each standing where it stood."""
    anchors: list[Anchor] = []
    texts: list[str] = []
    length, first = 0, None
    for piece in pieces:
        first = first or piece.anchors
        anchors += [(length + offset, there) for offset, there in piece.anchors if piece.text]
        texts.append(piece.text)
        length += len(piece.text)
    return Passage("".join(texts), tuple(anchors) or first or ((0, 0),))


def source_file(text: str, path: str) -> SourceFile:
    """Text worth reading: bounded, without zero bytes or a byte order mark, with Unix line ends."""
    if len(text) > MAX_CHARACTERS:
        raise UsageError(
            f"{path} is longer than {MAX_CHARACTERS:,} characters",
            next="give only the lines that start the engine",
        )
    if "\0" in text:
        raise UsageError(f"{path} is not text: it holds zero bytes", next="give a script or a command line")
    return SourceFile(path, text.removeprefix("\ufeff").replace("\r\n", "\n"))
