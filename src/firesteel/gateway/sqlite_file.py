"""An SQLite file of the gateway's own: made for its owner only, opened again when it was replaced, moved
aside when it is damaged.

    file = SqliteFile(path, prepare)
    with file.transaction() as database:
        database.execute(...)
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_BUSY_S = 2.0


def open_read_only(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_BUSY_S)


class SqliteFile:
    """Used by one thread at a time."""

    def __init__(self, path: Path, prepare: Callable[[sqlite3.Connection], None]) -> None:
        """`prepare` creates the tables, or raises for those that it does not know."""
        self.path = path
        self._prepare = prepare
        self._database: sqlite3.Connection | None = None
        self._opened_inode: int | None = None

    def connection(self) -> sqlite3.Connection:
        """Opened again if the file was removed or replaced."""
        if self._database is not None and self._inode() != self._opened_inode:
            self.close()
        if self._database is None:
            self._database = self._open()
            self._opened_inode = self._inode()
        return self._database

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        database = self.connection()
        database.execute("BEGIN IMMEDIATE")
        try:
            yield database
            database.execute("COMMIT")
        except BaseException:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise

    def close(self) -> None:
        if self._database is not None:
            with suppress(sqlite3.Error):
                self._database.close()
        self._database = None

    def move_aside(self, mark: str) -> str:
        """Return its new name."""
        self.close()
        aside = self.path.with_name(f"{self.path.stem}.{mark}.db")
        for suffix in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                Path(f"{self.path}{suffix}").replace(f"{aside}{suffix}")
        return aside.name

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # SQLite would create it readable for others.
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        database = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            self._prepare(database)
        except BaseException:
            database.close()
            raise
        return database

    def _inode(self) -> int | None:
        try:
            return self.path.stat().st_ino
        except OSError:
            return None
