"""Markdown -> its shell blocks, each on the lines where it stood."""

from __future__ import annotations

import re

_FENCE = re.compile(r"(?P<indent>[ \t>]*)(?P<mark>```+|~~~+)[ \t]*(?P<language>[\w+-]*)")
_SHELLS = {"", "bash", "sh", "shell", "zsh", "console", "shell-session", "terminal", "text"}
_QUOTE = re.compile(r"[ \t]*>[ \t]?")


Block = tuple[int, str]
"""The number of its first line, and its text."""


def blocks(text: str) -> tuple[Block, ...] | None:
    """The fenced shell blocks; None when the text has no fence, and so is not Markdown."""
    found: list[Block] = []
    inside: list[str] = []
    opened: re.Match[str] | None = None
    seen, first = False, 1
    for number, line in enumerate(text.split("\n"), start=1):
        fence = _FENCE.match(line)
        if opened is None and fence:
            opened, seen, first, inside = fence, True, number + 1, []
        elif opened and fence and fence["mark"].startswith(opened["mark"]) and not fence["language"]:
            found += _shell(first, inside, opened)
            opened = None
        elif opened:
            inside.append(_QUOTE.sub("", line, count=1) if ">" in opened["indent"] else line)
    if opened:
        found += _shell(first, inside, opened)
    return tuple(found) if seen else None


def _shell(first: int, lines: list[str], fence: re.Match[str]) -> list[Block]:
    return [(first, "\n".join(lines))] if fence["language"].lower() in _SHELLS else []
