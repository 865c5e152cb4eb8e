"""Where the gateway of this home answers, for the commands beside it.

    write_address(home, Address("http://127.0.0.1:8080", ("coder", "small"), has_keys=False, pid=os.getpid()))
    read_address(home)

`serve` writes it when it listens. A file outlives a `kill -9`, and the lock that a gateway holds does not: an
address is believed only while that lock is held, by the process that wrote it as far as one can tell: the
next gateway holds the lock before it listens. Light: `ps` and `client` look at it each time.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from firesteel.edge.files.home import Home, is_locked, write_text

_MAX_FILE_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Address:
    url: str
    """Without `/v1`."""
    models: tuple[str, ...]
    has_keys: bool
    """It answers only to whoever has one."""
    pid: int


def lock_path(home: Home) -> Path:
    """Held by a gateway for as long as it lives."""
    return home.root / "gateway" / "serve.lock"


def write_address(home: Home, address: Address) -> None:
    write_text(_path(home), json.dumps(asdict(address)))


def read_address(home: Home) -> Address | None:
    """None when no gateway serves, and while one has not yet said where."""
    if not is_locked(lock_path(home)):
        return None
    try:
        with _path(home).open("rb") as file:
            found = _address(json.loads(file.read(_MAX_FILE_BYTES)))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if Path(f"/proc/{found.pid}").exists() else None


def _address(said: dict[str, object]) -> Address:
    url, models, pid = said["url"], said["models"], said["pid"]
    if not (isinstance(url, str) and isinstance(models, list) and type(pid) is int):
        raise TypeError("no address")
    return Address(url, tuple(str(each) for each in models), said["has_keys"] is True, pid)


def _path(home: Home) -> Path:
    return home.root / "gateway" / "address.json"
