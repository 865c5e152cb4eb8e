"""Markdown -> its fenced blocks and its prose, with the lines where they stand."""

from __future__ import annotations

import re
from collections.abc import Iterator

from firesteel.reads.source_text import SourceFile, SourceText

_FENCE = re.compile(r"(?P<indent>[ \t>]*)(?P<mark>```+|~~~+)[ \t]*(?P<language>[\w+-]*)")
SHELLS = {"", "bash", "sh", "shell", "zsh", "console", "shell-session", "terminal", "text"}
_QUOTE = re.compile(r"[ \t]*>[ \t]?")


def blocks(file: SourceFile) -> tuple[tuple[str, SourceText], ...] | None:
    """The language and the text of every fenced block; None when there is none, so it is not Markdown."""
    found: list[tuple[str, SourceText]] = []
    lines: list[tuple[str, int]] = []
    has_fence = False
    for fence, offset, line, _ in _lines(file):
        if fence is None:
            continue
        if line is None:
            if lines:
                lines[-1] = (lines[-1][0].removesuffix("\n"), lines[-1][1])
                found.append((fence["language"].lower(), file.whole.assemble(lines, lines[0][1])))
            has_fence, lines = True, []
        else:
            quote = _QUOTE.match(line) if ">" in fence["indent"] else None
            start = quote.end() if quote else 0
            lines.append((f"{line[start:]}\n", offset + start))
    return tuple(found) if has_fence else None


def prose(file: SourceFile) -> Iterator[tuple[int, str]]:
    """The number and the text of the lines outside fenced blocks."""
    for fence, _, line, number in _lines(file):
        if fence is None and line is not None:
            yield number, line


def is_fence(line: str) -> bool:
    """Whether the line opens or closes a fenced block."""
    return _FENCE.match(line) is not None


def _lines(file: SourceFile) -> Iterator[tuple[re.Match[str] | None, int, str | None, int]]:
    """Every line with the fence around it, its offset and its number; None in place of a closing fence."""
    opened: re.Match[str] | None = None
    offset = number = 0
    is_comment = False
    for number, line in enumerate(file.text.split("\n"), start=1):
        fence = _FENCE.match(line)
        if opened is None and (is_comment or "<!--" in line):
            is_comment = "-->" not in line[max(line.rfind("<!--"), 0) :]
        elif opened is None and fence:
            opened = fence
        elif opened and fence and fence["mark"].startswith(opened["mark"]) and not fence["language"]:
            yield opened, offset, None, number
            opened = None
        else:
            yield opened, offset, line, number
        offset += len(line) + 1
    if opened:
        yield opened, offset, None, number
