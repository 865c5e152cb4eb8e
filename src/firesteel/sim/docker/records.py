"""Pretend containers as records: `containers/ID.json`, and what its engine printed in `containers/ID.log`.

There is no daemon. A container lives while its process does; whoever looks first after its end notes that,
and removes it if it was run with `--rm`. An engine that ends by itself leaves its code in `ID.code`; one that
left none was killed, which is 137.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from firesteel.edge.host.process import Pid, is_alive

_KILLED = 137
_CODE_S = 60


@dataclass(frozen=True, slots=True)
class ContainerRecord:
    id: str
    name: str
    image: str
    command: tuple[str, ...]
    created: float
    labels: Mapping[str, str] = field(default_factory=dict)
    ports: tuple[tuple[str, int, int], ...] = ()
    """Address, port on the host, port inside."""
    remove: bool = False
    pid: Pid | None = None
    ended: float | None = None
    exit_code: int | None = None

    @property
    def is_running(self) -> bool:
        return self.ended is None and self.pid is not None and is_alive(self.pid)


def log_path(folder: Path, id: str) -> Path:
    return folder / "containers" / f"{id}.log"


def code_path(folder: Path, id: str) -> Path:
    return folder / "containers" / f"{id}.code"


def times_path(folder: Path, id: str) -> Path:
    """When each line of the log came, and where it begins."""
    return folder / "containers" / f"{id}.times"


def printed(folder: Path, id: str, since: float = 0.0) -> str:
    """What it printed, from a time on."""
    with log_path(folder, id).open("rb") as log:
        log.seek(_offset(times_path(folder, id), since) if since else 0)
        return log.read().decode(errors="replace")


def _offset(times: Path, since: float) -> int:
    last = 0
    for line in times.read_text().splitlines():
        at, _, offset = line.partition(" ")
        last = int(offset)
        if float(at) >= since:
            return last
    return 2**62 if last else 0


def write(folder: Path, record: ContainerRecord) -> None:
    path = folder / "containers" / f"{record.id}.json"
    half = path.with_name(f".{path.name}.{os.getpid()}")
    half.touch(mode=0o600)
    half.write_text(json.dumps(asdict(record), indent=1))
    half.replace(path)


def remove(folder: Path, record: ContainerRecord) -> None:
    """Its exit code stays a while: whoever is attached reads it when it has gone."""
    for suffix in ("json", "log", "order", "times"):
        (folder / "containers" / f"{record.id}.{suffix}").unlink(missing_ok=True)
    for path in (folder / "containers").glob("*.code"):
        if not path.with_suffix(".json").exists() and _age_s(path) > _CODE_S:
            path.unlink(missing_ok=True)


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def settle(folder: Path, record: ContainerRecord) -> ContainerRecord | None:
    """As it is now; None when it has gone."""
    if record.ended is None and not record.is_running and record.pid is not None:
        record = replace(record, ended=time.time(), exit_code=exit_code(folder, record.id))
        if record.remove:
            remove(folder, record)
            return None
        write(folder, record)
    return record


def exit_code(folder: Path, id: str) -> int:
    try:
        return int(code_path(folder, id).read_text())
    except (FileNotFoundError, ValueError):
        return _KILLED


def all_records(folder: Path) -> list[ContainerRecord]:
    """Newest first, as `docker ps` lists them."""
    found = (_read(path) for path in (folder / "containers").glob("*.json"))
    settled = (settle(folder, record) for record in found if record)
    return sorted((record for record in settled if record), key=lambda record: -record.created)


def find(folder: Path, word: str) -> ContainerRecord | None:
    """By name, or by the start of its id."""
    every = all_records(folder)
    named = [record for record in every if record.name == word]
    return next(iter(named or [record for record in every if word and record.id.startswith(word)]), None)


def _read(path: Path) -> ContainerRecord | None:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    found["pid"] = Pid(**found["pid"]) if found["pid"] else None
    found["command"] = tuple(found["command"])
    found["ports"] = tuple((row[0], row[1], row[2]) for row in found["ports"])
    return ContainerRecord(**found)
