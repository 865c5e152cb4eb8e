"""Markdown -> its shell blocks, each on the lines where it stood."""

from __future__ import annotations

import re

from firesteel.reads.passage import Anchor, Page, Passage

_FENCE = re.compile(r"(?P<indent>[ \t>]*)(?P<mark>```+|~~~+)[ \t]*(?P<language>[\w+-]*)")
_SHELLS = {"", "bash", "sh", "shell", "zsh", "console", "shell-session", "terminal", "text"}
_QUOTE = re.compile(r"[ \t]*>[ \t]?")


def blocks(page: Page) -> tuple[Passage, ...] | None:
    """The fenced shell blocks; None when the text has no fence, and so is not Markdown."""
    found: list[Passage] = []
    inside: list[tuple[int, str]] = []
    opened: re.Match[str] | None = None
    seen, at = False, 0
    for line in page.text.split("\n"):
        fence = _FENCE.match(line)
        if opened is None and fence:
            opened, seen, inside = fence, True, []
        elif opened and fence and fence["mark"].startswith(opened["mark"]) and not fence["language"]:
            found += _shell(inside, opened)
            opened = None
        elif opened:
            quote = _QUOTE.match(line) if ">" in opened["indent"] else None
            inside.append((at + (quote.end() if quote else 0), line[quote.end() :] if quote else line))
        at += len(line) + 1
    if opened:
        found += _shell(inside, opened)
    return tuple(found) if seen else None


def _shell(lines: list[tuple[int, str]], fence: re.Match[str]) -> list[Passage]:
    if fence["language"].lower() not in _SHELLS or not lines:
        return []
    anchors: list[Anchor] = []
    offset = 0
    for start, line in lines:
        anchors.append((offset, start))
        offset += len(line) + 1
    return [Passage("\n".join(line for _, line in lines), tuple(anchors))]
