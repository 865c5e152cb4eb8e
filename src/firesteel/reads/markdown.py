"""Markdown -> its fenced blocks and its prose, each on the lines where it stood."""

from __future__ import annotations

import re
from collections.abc import Iterator

from firesteel.reads.source_text import Anchor, Passage, SourceFile

_FENCE = re.compile(r"(?P<indent>[ \t>]*)(?P<mark>```+|~~~+)[ \t]*(?P<language>[\w+-]*)")
SHELLS = {"", "bash", "sh", "shell", "zsh", "console", "shell-session", "terminal", "text"}
_QUOTE = re.compile(r"[ \t]*>[ \t]?")


def blocks(page: SourceFile) -> tuple[tuple[str, Passage], ...] | None:
    """Every fence: its language and its text; None when there is none, and so no Markdown."""
    found: list[tuple[str, Passage]] = []
    inside: list[tuple[int, str]] = []
    seen = False
    for fence, at, line, _ in _lines(page):
        if fence is None:
            continue
        if line is None:
            if inside:
                found.append((fence["language"].lower(), _block(inside)))
            seen, inside = True, []
        else:
            quote = _QUOTE.match(line) if ">" in fence["indent"] else None
            inside.append((at + (quote.end() if quote else 0), line[quote.end() :] if quote else line))
    return tuple(found) if seen else None


def prose(page: SourceFile) -> Iterator[tuple[int, str]]:
    """The lines outside the fences, each with its number."""
    for fence, _, line, number in _lines(page):
        if fence is None and line is not None:
            yield number, line


def _lines(page: SourceFile) -> Iterator[tuple[re.Match[str] | None, int, str | None, int]]:
    """Every line with the fence that it stands in, its offset and its number; no line where a fence ends."""
    opened: re.Match[str] | None = None
    at = number = 0
    hidden = False
    for number, line in enumerate(page.text.split("\n"), start=1):
        fence = _FENCE.match(line)
        if opened is None and (hidden or "<!--" in line):
            hidden = "-->" not in line[max(line.rfind("<!--"), 0) :]
        elif opened is None and fence:
            opened = fence
        elif opened and fence and fence["mark"].startswith(opened["mark"]) and not fence["language"]:
            yield opened, at, None, number
            opened = None
        else:
            yield opened, at, line, number
        at += len(line) + 1
    if opened:
        yield opened, at, None, number


def _block(lines: list[tuple[int, str]]) -> Passage:
    anchors: list[Anchor] = []
    offset = 0
    for start, line in lines:
        anchors.append((offset, start))
        offset += len(line) + 1
    return Passage("\n".join(line for _, line in lines), tuple(anchors))
