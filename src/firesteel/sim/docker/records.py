"""Simulated containers as records: `containers/ID.json`, and the output of its engine in `containers/ID.log`.

There is no daemon. A container lives while its process does; the first reader after its end records that, and
removes it if it was run with `--rm`. An engine that ends by itself leaves its exit code in `ID.code`;
without one it was killed, which is 137.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from firesteel.edge.files.home import write_text
from firesteel.edge.host.process import Pid, is_alive
from firesteel.values import Value, from_json, plain, replace

_KILLED = 137
_KEEP_CODE_S = 60


class ContainerRecord(Value):
    id: str
    name: str
    image: str
    command: tuple[str, ...]
    created: float
    labels: Mapping[str, str] = {}
    ports: tuple[tuple[str, int, int], ...] = ()
    """Address, port on the host, port inside."""
    remove: bool = False
    pid: Pid | None = None
    ended: float | None = None
    exit_code: int | None = None

    @property
    def is_running(self) -> bool:
        return self.ended is None and self.pid is not None and is_alive(self.pid)


def file_path(folder: Path, id: str, suffix: str) -> Path:
    """Of a container: `json` its record, `config` that of its engine, `log` its output, `code` its exit code,
    `times` when each line of the log was printed and where it starts."""
    return folder / "containers" / f"{id}.{suffix}"


def printed(folder: Path, id: str, since: float = 0.0) -> str:
    """Its output, from a time on."""
    with file_path(folder, id, "log").open("rb") as log:
        log.seek(_offset(file_path(folder, id, "times"), since) if since else 0)
        return log.read().decode(errors="replace")


def _offset(times: Path, since: float) -> int:
    last = 0
    for line in times.read_text().splitlines():
        time_text, _, offset = line.partition(" ")
        last = int(offset)
        if float(time_text) >= since:
            return last
    return 2**62 if last else 0


def write(folder: Path, record: ContainerRecord) -> None:
    write_text(file_path(folder, record.id, "json"), json.dumps(plain(record), indent=1))


def remove(folder: Path, record: ContainerRecord) -> None:
    """Its exit code stays a while: an attached client reads it after the container is gone."""
    for suffix in ("json", "log", "config", "times"):
        file_path(folder, record.id, suffix).unlink(missing_ok=True)
    for path in (folder / "containers").glob("*.code"):
        with suppress(FileNotFoundError):
            age_s = time.time() - path.stat().st_mtime
            if age_s > _KEEP_CODE_S and not path.with_suffix(".json").exists():
                path.unlink()


def refresh(folder: Path, record: ContainerRecord) -> ContainerRecord | None:
    """The record as it is now; None when the container has been removed."""
    if record.ended is None and not record.is_running and record.pid is not None:
        record = replace(record, ended=time.time(), exit_code=exit_code(folder, record.id))
        if record.remove:
            remove(folder, record)
            return None
        write(folder, record)
    return record


def exit_code(folder: Path, id: str) -> int:
    try:
        return int(file_path(folder, id, "code").read_text())
    except (FileNotFoundError, ValueError):
        return _KILLED


def all_records(folder: Path) -> list[ContainerRecord]:
    """Newest first, as `docker ps` lists them."""
    saved = (_read(path) for path in (folder / "containers").glob("*.json"))
    current = (refresh(folder, record) for record in saved if record)
    return sorted((record for record in current if record), key=lambda record: -record.created)


def find(folder: Path, name: str) -> ContainerRecord | None:
    """By name, or by the start of its id."""
    every = all_records(folder)
    named = [record for record in every if record.name == name]
    return next(iter(named or [record for record in every if name and record.id.startswith(name)]), None)


def _read(path: Path) -> ContainerRecord | None:
    try:
        return from_json(ContainerRecord, json.loads(path.read_text()))
    except FileNotFoundError:
        return None
