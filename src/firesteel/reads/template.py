"""Templates of other tools -> the text that the tool makes of them.

Other tools' recipes keep the command apart from its values: `--port {port}` here, `port: 8000` there. A
filled-in value keeps the position where it was written. A word with a filled-in part has no span of its own,
so that no fix cuts through the placeholder; a placeholder without a value stays text.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping

from firesteel.errors import UsageError
from firesteel.reads import shell
from firesteel.reads.shell import NO_SPAN, ShellCommand, Word
from firesteel.reads.source_text import MAX_CHARACTERS, SourceFile, SourceText, join_texts
from firesteel.values import Value, replace

MAX_NESTED = 8
"""How deep values may contain placeholders themselves."""

Lookup = Callable[[re.Match[str]], "SourceText | None"]
"""The value of a placeholder; None leaves it as it is."""


class FilledTemplate(Value):
    content: SourceText
    filled_spans: tuple[tuple[int, int], ...] = ()
    """The parts of the text that were filled in, in order."""

    def words(self, file: SourceFile) -> tuple[Word, ...]:
        """All words; a line end is only white space."""
        return tuple(self._without_span(word) for word in shell.words(self.content, file))

    def commands(self, file: SourceFile) -> tuple[ShellCommand, ...]:
        """The commands of a script."""
        return tuple(
            replace(
                command,
                words=tuple(self._without_span(word) for word in command.words),
                env={name: self._without_span(word) for name, word in command.env.items()},
            )
            for command in shell.split(self.content, file)
        )

    def _without_span(self, word: Word) -> Word:
        index = bisect_right(self.filled_spans, word.start, key=lambda span: span[1])
        is_filled = index < len(self.filled_spans) and self.filled_spans[index][0] < word.end
        return replace(word, span=NO_SPAN) if is_filled else word


class TemplateFiller:
    """Fills the placeholders of one document, and stops where that would make too much text."""

    def __init__(self, file: SourceFile) -> None:
        self.file = file
        self.characters_left = MAX_CHARACTERS

    def fill(self, source: SourceText, placeholder: re.Pattern[str], lookup: Lookup) -> FilledTemplate:
        pieces: list[SourceText] = []
        spans: list[tuple[int, int]] = []
        offset = length = 0
        for match in placeholder.finditer(source.text):
            value = lookup(match)
            if value is None:
                continue
            before = source.part(offset, match.start())
            pieces += [before, value]
            start = length + len(before.text)
            offset, length = match.end(), start + len(value.text)
            spans.append((start, length))
            self.characters_left -= len(before.text) + len(value.text) + len(value.anchors)
            if self.characters_left < 0:
                raise UsageError(
                    f"{self.file.path}: filled in, this is longer than {MAX_CHARACTERS:,} characters",
                    next="give the command itself",
                )
        if not spans:
            return FilledTemplate(source)
        return FilledTemplate(join_texts([*pieces, source.part(offset, len(source.text))]), tuple(spans))


class TemplateValues:
    """Names -> their values, with placeholders in them filled too; a name inside itself stays text."""

    def __init__(
        self, known: Mapping[str, SourceText], placeholder: re.Pattern[str], filler: TemplateFiller
    ) -> None:
        self.known, self.placeholder, self.filler = known, placeholder, filler
        self._filled: dict[str, SourceText] = {}
        self._in_progress: list[str] = []

    def get(self, name: str) -> SourceText | None:
        if name in self._filled:
            return self._filled[name]
        value = self.known.get(name)
        if value is None or name in self._in_progress or len(self._in_progress) >= MAX_NESTED:
            return None
        self._in_progress.append(name)
        filled = self.filler.fill(value, self.placeholder, lambda match: self.get(match[1]))
        self._in_progress.pop()
        self._filled[name] = filled.content
        return filled.content


def implied_word(text: str, near: Word) -> Word:
    """A word that the format implies and the file does not contain, with the position of `near`."""
    content = SourceText(text, near.content.anchors[:1])
    return replace(near, text=text, start=0, end=len(text), span=NO_SPAN, content=content, is_quoted=True)
