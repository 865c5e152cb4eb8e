"""Text with holes in it -> the text that a tool makes of it.

Other tools' recipes keep the command apart from its values: `--port {port}` here, `port: 8000` there. What is
filled in remembers where it was written. A word in which something was filled in stands nowhere as such, so
that no fix cuts through the hole it came from; a hole that nothing fills stays text.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from firesteel.errors import UsageError
from firesteel.reads import shell
from firesteel.reads.shell import NOWHERE, ShellCommand, Word
from firesteel.reads.source_text import MAX_CHARACTERS, Passage, SourceFile, joined

MAX_NESTED = 8
"""Values that have holes themselves, so deep."""

Value = Callable[[re.Match[str]], "Passage | None"]
"""What stands in a hole; None leaves it as it is."""


@dataclass(frozen=True, slots=True)
class FilledTemplate:
    passage: Passage
    made: tuple[tuple[int, int], ...] = ()
    """The parts of the text that were filled in, in order."""

    def words(self, page: SourceFile) -> tuple[Word, ...]:
        """All words, where a line end is only a blank."""
        return tuple(self._placed(word) for word in shell.words(self.passage, page))

    def lines(self, page: SourceFile) -> tuple[ShellCommand, ...]:
        """The commands of a script."""
        return tuple(
            replace(
                line,
                words=tuple(self._placed(word) for word in line.words),
                env={name: self._placed(word) for name, word in line.env.items()},
            )
            for line in shell.split(self.passage, page)
        )

    def _placed(self, word: Word) -> Word:
        index = bisect_right(self.made, word.start, key=lambda part: part[1])
        is_made = index < len(self.made) and self.made[index][0] < word.end
        return replace(word, span=NOWHERE) if is_made else word


class Filler:
    """Fills the holes of one document, and stops where that would make too much text."""

    def __init__(self, page: SourceFile) -> None:
        self.page = page
        self.left = MAX_CHARACTERS

    def fill(self, passage: Passage, hole: re.Pattern[str], value: Value) -> FilledTemplate:
        pieces: list[Passage] = []
        made: list[tuple[int, int]] = []
        at = length = 0
        for found in hole.finditer(passage.text):
            filled = value(found)
            if filled is None:
                continue
            before = passage.part(at, found.start())
            pieces += [before, filled]
            made.append((length + len(before.text), length + len(before.text) + len(filled.text)))
            at, length = found.end(), made[-1][1]
            self._spend(len(before.text) + len(filled.text) + len(filled.anchors))
        if not made:
            return FilledTemplate(passage)
        return FilledTemplate(joined([*pieces, passage.part(at, len(passage.text))]), tuple(made))

    def _spend(self, characters: int) -> None:
        self.left -= characters
        if self.left < 0:
            raise UsageError(
                f"{self.page.path}: filled in, this is longer than {MAX_CHARACTERS:,} characters",
                next="give the command itself",
            )


class Values:
    """Names -> what they stand for, with the holes in that filled too; a name inside itself stays text."""

    def __init__(self, known: Mapping[str, Passage], hole: re.Pattern[str], filler: Filler) -> None:
        self.known, self.hole, self.filler = known, hole, filler
        self._done: dict[str, Passage] = {}
        self._open: list[str] = []

    def get(self, name: str) -> Passage | None:
        if name in self._done:
            return self._done[name]
        value = self.known.get(name)
        if value is None or name in self._open or len(self._open) >= MAX_NESTED:
            return None
        self._open.append(name)
        self._done[name] = self.filler.fill(value, self.hole, lambda found: self.get(found[1])).passage
        self._open.pop()
        return self._done[name]


def implied(text: str, near: Word) -> Word:
    """A word that the format stands for and the file does not hold, to be shown where `near` stands."""
    inside = Passage(text, near.inside.anchors[:1])
    return replace(near, text=text, start=0, end=len(text), span=NOWHERE, inside=inside, is_quoted=True)
