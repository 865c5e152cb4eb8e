"""Mistakes that a schema cannot see, named with file and line like the ones that it can."""

from __future__ import annotations

from firesteel import sheets


def mistake(path: str, text: str, where: sheets.Path, what: str) -> sheets.BadSheet:
    """The error to raise for the value at `where` in the file `path`. Read again only to find its line."""
    _, lines = sheets.read(path, text)
    line = lines.get(where, 1)
    return sheets.BadSheet(f"{path}:{line}: {what}", next=f"correct {path} at line {line}")
