"""Where the gateway of this home answers, for other commands.

    write_address(home, Address("http://127.0.0.1:8080", ("coder", "small"), has_keys=False, pid=os.getpid()))
    read_address(home)

`serve` writes the file when it listens. The file survives a `kill -9`, but the gateway's lock does not: an
address is valid only while that lock is held and its process exists. Imports little: `ps` and `client` read
it each time.
"""

from __future__ import annotations

import json
from pathlib import Path

from firesteel.edge.home import Home, is_locked, read_state, write_text
from firesteel.values import Value, plain


class Address(Value):
    url: str
    """Without `/v1`."""
    models: tuple[str, ...]
    has_keys: bool
    """It requires a key."""
    pid: int
    certificate: str = ""
    """The file of the certificate that it shows; empty: it has none."""


def lock_path(home: Home) -> Path:
    """A gateway holds this lock for as long as it lives."""
    return home.root / "gateway" / "serve.lock"


def write_address(home: Home, address: Address) -> None:
    write_text(_path(home), json.dumps(plain(address)))


def read_address(home: Home) -> Address | None:
    """None if no gateway runs, or if it does not listen yet."""
    if not is_locked(lock_path(home)):
        return None
    address = read_state(_path(home), Address)
    return address if address and Path(f"/proc/{address.pid}").exists() else None


def _path(home: Home) -> Path:
    return home.root / "gateway" / "address.json"
