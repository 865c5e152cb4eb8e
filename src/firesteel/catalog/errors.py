"""Mistakes that a schema cannot detect, reported with file and line like those that it can."""

from __future__ import annotations

from firesteel import yaml_schema


def mistake(path: str, text: str, where: yaml_schema.Path, what: str) -> yaml_schema.InvalidFile:
    """The error for the value at `where` in the file `path`, which is parsed again to find the line."""
    _, lines = yaml_schema.read(path, text)
    line = lines.get(where, 1)
    return yaml_schema.InvalidFile(f"{path}:{line}: {what}", next=f"correct {path} at line {line}")
