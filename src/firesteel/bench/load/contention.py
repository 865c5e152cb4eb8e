"""Benches of one server at the same time: each slows the other, and neither would know.

Each holds a lock of its own under FIRESTEEL_HOME/locks, named by the server's address, looks for the locks of
others, and leaves a mark beside them. Nobody is kept out: whoever measures a crowd on purpose may, and both
runs say so. A lock goes with its process, so what a killed one leaves says nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from urllib.parse import urlsplit

from firesteel.edge.files.home import Home, is_locked, lock

NOTE = "another bench ran on it at the same time, and each slowed the other"
_MOST = 1000


@contextmanager
def watched(home: Home, url: str, name: str) -> Iterator[Callable[[], tuple[str, ...]]]:
    """What it yields tells, at any time, what there is to note."""
    folder, server = home.root / "locks", _server(url)
    own = folder / f"server-{server}-{name}.lock"
    try:
        with lock(own):  # its own first: of two that begin at once, one sees the other at least
            for other in islice(folder.glob(f"server-{server}-*.lock"), _MOST):
                if other != own and is_locked(other):
                    _mark(own).touch()
                    _mark(other).touch()
            yield lambda: (NOTE,) if _mark(own).exists() else ()
    finally:
        for path in (own, _mark(own)):
            path.unlink(missing_ok=True)


def _mark(path: Path) -> Path:
    return path.with_suffix(".shared")


def _server(url: str) -> str:
    parts = urlsplit(url)
    host = {"localhost": "127.0.0.1", "::1": "127.0.0.1"}.get(parts.hostname or "", parts.hostname or "")
    try:
        port = parts.port
    except ValueError:  # the client will say so
        port = None
    port = port or {"https": 443}.get(parts.scheme, 80)
    return hashlib.sha256(f"{host}:{port}".encode()).hexdigest()[:16]
