"""The sanitizer for text from outside before it is shown: a model's name may contain characters that move a
terminal's cursor, rename its window or reverse the line."""

from __future__ import annotations

from typing import Any

_WHITE_SPACE = "\t\n\r\v\f"


def printable(text: str) -> str:
    """The text on one line and as long as before: `?` for characters that cannot be shown."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else " " if char in _WHITE_SPACE else "?" for char in text)


def printable_json(value: Any) -> Any:
    """A JSON value with all its texts printable, keys and values alike."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(name): printable_json(item) for name, item in value.items()}
    if isinstance(value, list):
        return [printable_json(item) for item in value]
    return value
