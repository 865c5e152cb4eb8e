"""State files under FIRESTEEL_HOME: one value each, as JSON, written whole and read with care.

Whatever a state file has become (missing, empty, cut short, a folder, a pipe, somebody else's), reading it
ends at once and in bounded memory. The caller gets the value or None, and decides what None means.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, TypeVar

from firesteel.edge.files.home import write_text
from firesteel.values import InvalidValue, from_json, plain

MAX_BYTES = 4 * 2**20

T = TypeVar("T")


def write_state(path: Path, value: Any) -> None:
    """A dataclass or a list of them, replaced in one step: a reader sees the old file or the new one."""
    write_text(path, json.dumps(plain(value), indent=1))


def read_state(path: Path, kind: type[T]) -> T | None:
    """The `kind` that the file holds; None when it holds none."""
    try:
        return from_json(kind, read_json(path))
    except InvalidValue:
        return None


def read_json(path: Path, max_bytes: int = MAX_BYTES) -> Any:
    """What the file holds, as plain values; None when it cannot be read or is no JSON."""
    try:
        with open(path, "rb", opener=open_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            content = file.read(max_bytes + 1)
        return json.loads(content) if len(content) <= max_bytes else None
    except (OSError, ValueError, RecursionError):
        return None


def open_without_waiting(path: str, flags: int) -> int:
    """A named pipe in place of the file would otherwise hold up its reader for ever."""
    return os.open(path, flags | os.O_NONBLOCK)
