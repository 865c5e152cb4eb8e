"""How much memory earlier starts took here, in `measured_memory.json`: read by plans and by the gateway.

A plan of the same launch trusts it more than any estimate, so each row is checked before it is used: one with
an impossible figure or date is skipped, and a file that cannot be read counts as empty.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import get_args

from msgspec.structs import fields

from firesteel.edge.home import Home, exclusive, read_json, write_state
from firesteel.facts.host.memory import MeasuredMemory
from firesteel.launch import EngineName

_MAX_MEASURED = 100
_MAX_MEASURED_BYTES = 2**20
"""A hundred rows are 50 KB."""
_MAX_FIGURE = 2**50
_FIGURES = frozenset(field.name for field in fields(MeasuredMemory)) - {"key", "engine", "version", "seen"}
_REQUIRED = frozenset({"key", "engine", "version", "process_bytes", "seen"})


def _path(home: Home) -> Path:
    return home.root / "measured_memory.json"


def save_measured_memory(home: Home, measured: MeasuredMemory) -> None:
    """Appends the newest; the oldest rows are dropped."""
    with exclusive(_path(home)):
        others = [row for key, row in read_measured_memory(home).items() if key != measured.key]
        rows = [*others, measured][-_MAX_MEASURED:]
        write_state(_path(home), rows)


def read_measured_memory(home: Home) -> Mapping[str, MeasuredMemory]:
    """By `launch_key`, the oldest first."""
    rows = read_json(_path(home), _MAX_MEASURED_BYTES)
    parsed = (_row(row) for row in rows) if isinstance(rows, list) else ()
    return {row.key: row for row in parsed if row}


def _row(row: object) -> MeasuredMemory | None:
    """None for a row that firesteel cannot have written."""
    if not isinstance(row, dict) or not _REQUIRED <= row.keys() <= _REQUIRED | _FIGURES:
        return None
    is_sound = (
        _is_text(row["key"], "[0-9a-f]{32}")
        and row["engine"] in get_args(EngineName)
        and (row["version"] is None or _is_text(row["version"], r"[\w.+-]{1,80}"))
        and _is_date(row["seen"])
        and all(_is_size(row[name], name) for name in _FIGURES & row.keys())
    )
    return MeasuredMemory(**row) if is_sound else None


def _is_text(value: object, pattern: str) -> bool:
    return isinstance(value, str) and re.fullmatch(pattern, value, re.ASCII) is not None


def _is_date(value: object) -> bool:
    if not _is_text(value, "[0-9]{4}-[0-9]{2}-[0-9]{2}"):
        return False
    try:
        date.fromisoformat(str(value))
    except ValueError:
        return False
    return True


def _is_size(value: object, name: str) -> bool:
    """`True` is not a size, though Python counts it among the integers."""
    if value is None:
        return name not in _REQUIRED
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MAX_FIGURE
