"""Detect other benchmarks of the same server: each slows the others down, and neither would notice by itself.

Each benchmark holds its own lock file under FIRESTEEL_HOME/locks, named after the server's address. It
looks for locks of other benchmarks and marks both sides. No benchmark is locked out, since contention may be
what you want to measure; both runs get a note. A lock ends with its process, so files that a killed
process leaves behind do no harm.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from urllib.parse import urlsplit

from firesteel.edge.home import Home, is_locked, lock

NOTE = "another benchmark used this server at the same time, and each slowed the other down"
_MAX_LOCKS = 1000


@contextmanager
def watch_contention(home: Home, url: str, name: str) -> Iterator[Callable[[], tuple[str, ...]]]:
    """Yield a function that returns the notes so far; it may be called at any time."""
    folder, server = home.root / "locks", _server(url)
    own = folder / f"server-{server}-{name}.lock"
    try:
        # The own lock comes first: if two benchmarks begin at once, at least one of them sees the other.
        with lock(own):
            for other in islice(folder.glob(f"server-{server}-*.lock"), _MAX_LOCKS):
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
    except ValueError:  # the client reports an invalid port
        port = None
    port = port or {"https": 443}.get(parts.scheme, 80)
    return hashlib.sha256(f"{host}:{port}".encode()).hexdigest()[:16]
