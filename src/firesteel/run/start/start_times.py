"""Durations of a model's earlier starts, by stage, for the estimate of the next one.

`starts/NAME.json` under FIRESTEEL_HOME holds the last few. Only an estimate depends on it, so a damaged file
counts as empty.
"""

from __future__ import annotations

from pathlib import Path

from firesteel.edge.home import Home, read_state, write_state
from firesteel.launch import EngineName
from firesteel.run.start.eta import Seconds
from firesteel.values import Value, replace

_MAX_STARTS = 5


class StartTimes(Value):
    engine: EngineName
    version: str | None
    seconds: Seconds
    proof_s: float | None = None
    """From the first answer until it was warm and verified; None: not measured."""
    whole_s: float | None = None
    """From the plan until it was verified, downloads not counted."""
    is_brief: bool = False
    """It was proved briefly (`verify/brief.py`)."""


def record_start(home: Home, name: str, start: StartTimes) -> None:
    write_state(_path(home, name), [*_read(home, name), start][-_MAX_STARTS:])


def _path(home: Home, name: str) -> Path:
    return home.root / "starts" / f"{name}.json"


def earlier_starts(home: Home, name: str, engine: EngineName, version: str | None) -> tuple[Seconds, ...]:
    """Of the same engine and version, the newest last."""
    return tuple(
        start.seconds
        for start in _read(home, name)
        if start.engine == engine and start.version == version and start.seconds
    )


def record_verified(home: Home, name: str, proof_s: float, whole_s: float, *, is_brief: bool = False) -> None:
    """Complete the entry of the last start."""
    if starts := _read(home, name):
        completed = replace(starts[-1], proof_s=proof_s, whole_s=whole_s, is_brief=is_brief)
        write_state(_path(home, name), [*starts[:-1], completed])


def last_verified(
    home: Home, name: str, engine: EngineName, version: str | None, *, is_brief: bool = False
) -> StartTimes | None:
    """The newest completed start of the same engine and version, proved as the next one will be."""
    for start in reversed(_read(home, name)):
        is_same = (start.engine, start.version, start.is_brief) == (engine, version, is_brief)
        if is_same and start.whole_s is not None:
            return start
    return None


def _read(home: Home, name: str) -> list[StartTimes]:
    return read_state(_path(home, name), list[StartTimes]) or []
