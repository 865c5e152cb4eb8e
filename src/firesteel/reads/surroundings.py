"""What stands around a command in its text: the comments, the paragraph and the headings above it.

A guide says beside a command, not in it, which machine and which release it is for. `above` gives the lines
that may say so, the nearest first: comments of the same script or block, the text between this block and the
one before it, then the headings that enclose it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from firesteel.reads import markdown
from firesteel.reads.source_text import SourceFile

Line = tuple[int, str]
"""A line's number and its text."""
_HEADING = re.compile(r"\s{0,3}(#{1,6})\s+\S")
_COMMENT = re.compile(r"\s*(?:#|//|<!--)\s?(?!!)")
_TRAILING = re.compile(r"\s#\s.*")
_NEAR = 25
"""Lines of text above a block that belong to it."""


class Surroundings:
    def __init__(self, file: SourceFile) -> None:
        self.lines = file.text.split("\n")
        is_guide = markdown.blocks(file.whole) is not None and not file.path.endswith((".yaml", ".yml"))
        self.prose = dict(markdown.prose(file)) if is_guide else {}
        """The lines outside the blocks of a guide; empty for any other file."""
        self.headings = {
            number: len(match[1]) for number, text in self.prose.items() if (match := _HEADING.match(text))
        }

    def above(self, number: int) -> Iterator[Line]:
        """Lines that may say what the command at this line is for, the nearest first."""
        trailing = _TRAILING.search(self.lines[number - 1])
        if trailing:
            yield number, trailing[0]
        number -= 1
        while number > 0 and number not in self.prose:
            text = self.lines[number - 1]
            if self.prose and markdown.is_fence(text):
                break
            if _COMMENT.match(text):
                yield number, text
            number -= 1
        if self.prose:
            yield from self._guide_above(number)

    def _guide_above(self, number: int) -> Iterator[Line]:
        end = max(number - _NEAR, 0)
        number -= number not in self.prose  # the opening fence itself
        while number > end and number in self.prose and number not in self.headings:
            yield number, self.prose[number]
            number -= 1
        level = 7
        for heading in sorted((line for line in self.headings if line <= number), reverse=True):
            if self.headings[heading] < level:
                level = self.headings[heading]
                yield heading, self.prose[heading]

    @property
    def document(self) -> Iterator[Line]:
        """The text of a guide, or the comments of any other file, from its beginning."""
        if self.prose:
            yield from self.prose.items()
        else:
            yield from ((n, text) for n, text in enumerate(self.lines, 1) if _COMMENT.match(text))
