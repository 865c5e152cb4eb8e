"""Earlier starts of a model: what each stage took, so that the next one can say how long it will be.

`starts/NAME.json` under FIRESTEEL_HOME, the last few. Only a guess hangs on it: what cannot be read is none.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from firesteel.edge.home import Home, write_text
from firesteel.launch import EngineName
from firesteel.run.eta import Seconds

_KEPT = 5


@dataclass(frozen=True, slots=True)
class Start:
    engine: EngineName
    version: str | None
    seconds: Seconds


def remember(home: Home, name: str, start: Start) -> None:
    known = [*_read(home, name), start][-_KEPT:]
    write_text(home.root / "starts" / f"{name}.json", json.dumps([asdict(each) for each in known], indent=1))


def earlier(home: Home, name: str, engine: EngineName, version: str | None) -> tuple[Seconds, ...]:
    """Of the same engine and release, the newest last."""
    return tuple(
        start.seconds
        for start in _read(home, name)
        if start.engine == engine and start.version == version and start.seconds
    )


def _read(home: Home, name: str) -> list[Start]:
    try:
        found = json.loads((home.root / "starts" / f"{name}.json").read_text("utf-8"))
        return [
            Start(each["engine"], each["version"], {key: float(s) for key, s in each["seconds"].items()})
            for each in found
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
