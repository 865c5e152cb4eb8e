"""YAML text -> plain values, each with its line.

Scalars stay text (`0.20` is not 0.2, `no` is not False); the declaration of a value gives them types. A plain
`null` or an empty value is None. Duplicate keys, aliases (they can expand exponentially), tags and files over
a megabyte are refused. Loaded only to read a file: PyYAML takes as long to import as the whole command line.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from firesteel.errors import InvalidFile

MAX_BYTES = 2**20
MAX_DEPTH = 20
Path = tuple[str | int, ...]
"""The keys and positions that lead to a value."""
_NULLS = {"null", "~", ""}


def read(name: str, text: str) -> tuple[Any, dict[Path, int]]:
    """Plain values (text, lists, dicts, None) and the line of each."""
    if len(text) > MAX_BYTES:
        raise InvalidFile(f"{name}:1: longer than {MAX_BYTES:,} characters", next=f"shorten {name}")
    lines: dict[Path, int] = {(): 1}
    try:
        events = iter(yaml.parse(text, Loader=yaml.CBaseLoader))
        return _document(name, events, lines), lines
    except yaml.MarkedYAMLError as error:
        raise _mistake(name, error.problem_mark or error.context_mark, error.problem or "not YAML") from None
    except yaml.YAMLError as error:
        raise InvalidFile(
            f"{name}:1: not YAML: {str(error).splitlines()[0]}", next=f"correct {name}"
        ) from None


def _document(name: str, events: Iterator[yaml.Event], lines: dict[Path, int]) -> Any:
    """The only document of the text; None for a text without one."""
    next(events)  # StreamStartEvent
    if isinstance(next(events), yaml.StreamEndEvent):
        return None
    value = _build(name, events, next(events), (), lines)
    next(events)  # DocumentEndEvent
    if not isinstance(after := next(events), yaml.StreamEndEvent):
        raise _mistake(name, after.start_mark, "a second document begins here; only one is allowed")
    return value


def _build(
    name: str, events: Iterator[yaml.Event], event: yaml.Event, path: Path, lines: dict[Path, int]
) -> Any:
    """The value that begins with `event`.

    Built from parser events, because aliases and deep nesting must be refused before there is a tree.
    """
    lines[path] = _line_number(event.start_mark)
    if isinstance(event, yaml.ScalarEvent):
        return None if not event.style and event.value in _NULLS else event.value
    if isinstance(event, yaml.AliasEvent):
        raise _mistake(name, event.start_mark, "aliases (`*name`) are not allowed here")
    if len(path) >= MAX_DEPTH:
        raise _mistake(name, event.start_mark, f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(event, yaml.SequenceStartEvent):
        built: list[Any] = []
        while not isinstance(item := next(events), yaml.SequenceEndEvent):
            built.append(_build(name, events, item, (*path, len(built)), lines))
        return built
    return _build_map(name, events, path, lines)


def _build_map(name: str, events: Iterator[yaml.Event], path: Path, lines: dict[Path, int]) -> dict[str, Any]:
    built: dict[str, Any] = {}
    while not isinstance(key := next(events), yaml.MappingEndEvent):
        if not isinstance(key, yaml.ScalarEvent):
            raise _mistake(name, key.start_mark, "a key must be plain text")
        if key.value in built:
            raise _mistake(name, key.start_mark, f"`{key.value}` is given twice")
        child = (*path, key.value)
        built[key.value] = _build(name, events, next(events), child, lines)
        lines[child] = _line_number(key.start_mark)
    return built


def _line_number(mark: Any) -> int:
    """The line of a mark, counted from 1."""
    return mark.line + 1 if mark else 1


def _mistake(name: str, mark: Any, what: str) -> InvalidFile:
    line = _line_number(mark)
    return InvalidFile(f"{name}:{line}: {what}", next=f"correct {name} at line {line}")
