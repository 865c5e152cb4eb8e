"""Words that others wrote, before they are shown: a model's name may hold what moves a terminal's cursor,
renames its window or turns the line round. Only letters are left of it; a line's end is a blank."""

from __future__ import annotations

from typing import Any

_BLANK = "\t\n\r\v\f"


def printable(text: str) -> str:
    """As long as it was, with `?` for each character that cannot be shown."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c in _BLANK else "?" for c in text)


def printable_json(said: Any) -> Any:
    """A JSON value with all its words printable, names and values alike."""
    if isinstance(said, str):
        return printable(said)
    if isinstance(said, dict):
        return {printable(name): printable_json(value) for name, value in said.items()}
    if isinstance(said, list):
        return [printable_json(value) if isinstance(value, str | dict | list) else value for value in said]
    return said
