"""Durations of a model's earlier starts, by stage, for the estimate of the next one.

`starts/NAME.json` under FIRESTEEL_HOME holds the last few. Only an estimate depends on it, so a damaged file
counts as empty.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from firesteel.edge.files.home import Home, write_text
from firesteel.launch import EngineName
from firesteel.run.start.eta import Seconds

_MAX_STARTS = 5


@dataclass(frozen=True, slots=True)
class StartTimes:
    engine: EngineName
    version: str | None
    seconds: Seconds
    proof_s: float | None = None
    """From the first answer until it was warm and verified; None: not measured."""
    whole_s: float | None = None
    """From the plan until it was verified, downloads not counted."""


def record_start(home: Home, name: str, start: StartTimes) -> None:
    _write(home, name, [*_read(home, name), start][-_MAX_STARTS:])


def _write(home: Home, name: str, starts: list[StartTimes]) -> None:
    write_text(home.root / "starts" / f"{name}.json", json.dumps([asdict(s) for s in starts], indent=1))


def earlier_starts(home: Home, name: str, engine: EngineName, version: str | None) -> tuple[Seconds, ...]:
    """Of the same engine and version, the newest last."""
    return tuple(
        start.seconds
        for start in _read(home, name)
        if start.engine == engine and start.version == version and start.seconds
    )


def record_verified(home: Home, name: str, proof_s: float, whole_s: float) -> None:
    """Complete the entry of the last start."""
    if starts := _read(home, name):
        _write(home, name, [*starts[:-1], replace(starts[-1], proof_s=proof_s, whole_s=whole_s)])


def last_verified(home: Home, name: str, engine: EngineName, version: str | None) -> StartTimes | None:
    """The newest completed start of the same engine and version."""
    for start in reversed(_read(home, name)):
        if (start.engine, start.version) == (engine, version) and start.whole_s is not None:
            return start
    return None


def _read(home: Home, name: str) -> list[StartTimes]:
    try:
        entries = json.loads((home.root / "starts" / f"{name}.json").read_text("utf-8"))
        return [_parse(entry) for entry in entries]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def _parse(entry: dict[str, Any]) -> StartTimes:
    seconds = {stage: float(took) for stage, took in entry["seconds"].items()}
    totals = (None if (s := entry.get(key)) is None else float(s) for key in ("proof_s", "whole_s"))
    return StartTimes(entry["engine"], entry["version"], seconds, *totals)
