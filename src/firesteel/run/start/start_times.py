"""Earlier starts of a model: what each stage took, so that the next one can say how long it will be.

`starts/NAME.json` under FIRESTEEL_HOME, the last few. Only a guess hangs on it: what cannot be read is none.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from firesteel.edge.files.home import Home, write_text
from firesteel.launch import EngineName
from firesteel.run.start.eta import Seconds

_KEPT = 5


@dataclass(frozen=True, slots=True)
class StartTimes:
    engine: EngineName
    version: str | None
    seconds: Seconds
    proof_s: float | None = None
    """From its first answer until it was warmed and proved; None: nobody looked at a clock."""
    whole_s: float | None = None
    """From the plan until it was proved, without what was fetched meanwhile."""


def record_start(home: Home, name: str, start: StartTimes) -> None:
    _write(home, name, [*_read(home, name), start][-_KEPT:])


def _write(home: Home, name: str, known: list[StartTimes]) -> None:
    write_text(home.root / "starts" / f"{name}.json", json.dumps([asdict(each) for each in known], indent=1))


def earlier_starts(home: Home, name: str, engine: EngineName, version: str | None) -> tuple[Seconds, ...]:
    """Of the same engine and release, the newest last."""
    return tuple(
        start.seconds
        for start in _read(home, name)
        if start.engine == engine and start.version == version and start.seconds
    )


def record_verified(home: Home, name: str, proof_s: float, whole_s: float) -> None:
    """The last start came to its end."""
    if known := _read(home, name):
        _write(home, name, [*known[:-1], replace(known[-1], proof_s=proof_s, whole_s=whole_s)])


def last_verified(home: Home, name: str, engine: EngineName, version: str | None) -> StartTimes | None:
    """Of the same engine and release, the newest of which the whole is known."""
    like = (each for each in _read(home, name) if (each.engine, each.version) == (engine, version))
    return next((each for each in reversed([*like]) if each.whole_s is not None), None)


def _read(home: Home, name: str) -> list[StartTimes]:
    try:
        found = json.loads((home.root / "starts" / f"{name}.json").read_text("utf-8"))
        return [_start(each) for each in found]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def _start(each: dict[str, Any]) -> StartTimes:
    seconds = {key: float(took) for key, took in each["seconds"].items()}
    ends = (each.get("proof_s"), each.get("whole_s"))
    return StartTimes(
        each["engine"], each["version"], seconds, *(None if s is None else float(s) for s in ends)
    )
