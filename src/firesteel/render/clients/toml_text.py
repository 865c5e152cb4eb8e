"""TOML, edited line by line: a key is changed in its table, everything else stays.

Python's standard library reads TOML and does not write it. tomlkit 0.15 does, but inserts a new top-level key
between the first table and that table's comment. Only what these settings need is written: strings, numbers
and booleans at the top or in a `[table]`. A file with inline or dotted tables instead is detected when
`merge` parses the result.
"""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

from firesteel.errors import UsageError
from firesteel.render.clients.settings import SettingEdit

_HEADER = re.compile(r"\s*\[")
_BARE = re.compile(r"[A-Za-z0-9_-]+\Z", re.ASCII)


def read(text: str, path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(
            f"{path} is not TOML: {error}; it was left alone",
            next="correct it, or leave out --write and paste",
        ) from None


def write(value: dict[str, Any]) -> str:
    return "\n".join(_lines(value, ())).strip("\n") + "\n"


def _lines(value: dict[str, Any], path: tuple[str, ...]) -> list[str]:
    plain = {name: item for name, item in value.items() if not isinstance(item, dict)}
    lines = [
        *([_header(path)] if path and plain else []),
        *(_pair(name, item) for name, item in plain.items()),
        *([""] if plain else []),
    ]
    for name, item in value.items():
        if isinstance(item, dict):
            lines += _lines(item, (*path, name))
    return lines


def edit(text: str, change: SettingEdit, path: str) -> str:
    """The text with one value changed and everything else as it was."""
    lines = text.split("\n")
    *table, name = change.path
    start, end = _table(lines, tuple(table))
    if start is None:
        return "\n".join([text.rstrip("\n"), "", _header(tuple(table)), _pair(name, change.value), ""])
    key = re.compile(rf'\s*"?{re.escape(name)}"?\s*=')
    for index in range(start, end):
        if key.match(lines[index]):
            pair = [] if change.action == "drop" else [_pair(name, change.value)]
            return "\n".join([*lines[:index], *pair, *lines[index + 1 :]])
    while end > start and lines[end - 1].strip()[:1] in ("", "#"):
        end -= 1  # a comment before the next table belongs to that table
    return "\n".join([*lines[:end], _pair(name, change.value), *(lines[end:] or [""])])


def _table(lines: list[str], path: tuple[str, ...]) -> tuple[int | None, int]:
    """Start and end of the lines of a table, without its header; None: there is no such table."""
    start: int | None = None if path else 0
    if path:
        parts = r"\s*\.\s*".join(f"[\"']?{re.escape(name)}[\"']?" for name in path)
        header = re.compile(rf"\s*\[\s*{parts}\s*\]\s*(#.*)?\Z")
        start = next((index + 1 for index, line in enumerate(lines) if header.match(line)), None)
    if start is None:
        return None, len(lines)
    ends = (index for index in range(start, len(lines)) if _HEADER.match(lines[index]))
    return start, next(ends, len(lines))


def _header(path: tuple[str, ...]) -> str:
    return f"[{'.'.join(_key(name) for name in path)}]"


def _pair(name: str, value: object) -> str:
    return f"{_key(name)} = {json.dumps(value, ensure_ascii=False)}"


def _key(name: str) -> str:
    return name if _BARE.match(name) else json.dumps(name, ensure_ascii=False)
