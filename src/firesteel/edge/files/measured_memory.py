"""What launches took on this host, kept from start to start: `realised.json` under FIRESTEEL_HOME.

The next plan of the same launch believes it more than any estimate, so every row is looked at before it is
believed: a figure that no machine has, or a date that is none, is no row. The others stay. Only a figure
hangs on it: what cannot be read is none.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import asdict, fields
from datetime import date
from pathlib import Path
from typing import get_args

from firesteel.edge.files.home import Home, write_text
from firesteel.launch import EngineName
from firesteel.planner import MeasuredMemory

_KEPT = 100
_MAX_FILE_BYTES = 2**20
"""A hundred rows are 50 KB."""
_MAX_FIGURE = 2**50
_WHOLE = frozenset(each.name for each in fields(MeasuredMemory)) - {"key", "engine", "version", "seen"}
_NEEDED = frozenset({"key", "engine", "version", "process_bytes", "seen"})


def save_measured_memory(home: Home, realised: MeasuredMemory) -> None:
    """The newest last; the oldest are forgotten."""
    known = {key: each for key, each in read_measured_memory(home).items() if key != realised.key}
    kept = [*known.values(), realised][-_KEPT:]
    write_text(_path(home), json.dumps([asdict(each) for each in kept], indent=1))


def read_measured_memory(home: Home) -> Mapping[str, MeasuredMemory]:
    try:
        rows = json.loads(_text(_path(home)))
    except (OSError, ValueError, RecursionError):
        return {}
    found = (_row(each) for each in rows) if isinstance(rows, list) else ()
    return {row.key: row for row in found if row}


def _text(path: Path) -> str:
    """Empty for what is no file, or longer than it could be; never held up by a pipe."""
    with open(path, "rb", opener=_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return ""
        held = file.read(_MAX_FILE_BYTES + 1)
    return held.decode() if len(held) <= _MAX_FILE_BYTES else ""


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _row(said: object) -> MeasuredMemory | None:
    """None for what no start has written."""
    if not isinstance(said, dict) or not _NEEDED <= said.keys() <= _NEEDED | _WHOLE:
        return None
    is_sound = (
        _is_text(said["key"], "[0-9a-f]{32}")
        and said["engine"] in get_args(EngineName)
        and (said["version"] is None or _is_text(said["version"], r"[\w.+-]{1,80}"))
        and _is_date(said["seen"])
        and all(_is_size(said[name], name) for name in _WHOLE & said.keys())
    )
    return MeasuredMemory(**said) if is_sound else None


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
    """`True` is no number here, though Python takes it for one."""
    if value is None:
        return name not in _NEEDED
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MAX_FIGURE


def _path(home: Home) -> Path:
    return home.root / "realised.json"
