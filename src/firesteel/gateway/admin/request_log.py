"""What happened: one row a request in `FIRESTEEL_HOME/requests.db`, an SQLite file that anything can read.

    log = RequestLog(path, say=print)
    log.note(time.time(), "laptop", "coder", "chat", end)     on the loop: an append
    log.close()                                               what was noted is written

A thread of its own writes, half a second's rows or 500 in one transaction. The loop never waits for a disk:
where the disk is slower than the requests, rows are dropped, counted and told of. `kill -9` loses the rows of
the last half second. No prompt is kept unless it is handed in, and then cut to `MAX_PROMPT_BYTES`, in a table
of its own.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from firesteel.edge.files.home import Home
from firesteel.gateway.interfaces import RequestOutcome, Usage

MAX_WAITING = 20_000
"""Rows that wait for the thread; about 10 MB."""
MAX_PROMPT_BYTES = 64 * 2**10
MAX_WAITING_PROMPTS = 100
BATCH_ROWS = 500
BATCH_S = 0.5
_PRUNE_EVERY_S = 600.0
_PRUNE_ROWS = 2000
"""At a time: the file is never locked for long."""
_BUSY_S = 2.0
_RETRY_S = 5.0
_CLOSE_S = 10.0
_MOST_ROWS = 4 * BATCH_ROWS
"""In one transaction."""
_VERSION = 1
_DAY_S = 86400.0
_MOST_TOKENS = 2**62
_NO_USAGE = Usage()
_BAD_CODES = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}

_COLUMNS = (
    "at", "key", "model", "route", "status", "how", "why", "is_stream", "waited_s", "first_s", "total_s",
    "bytes_in", "bytes_out", "prompt_tokens", "completion_tokens", "cached_tokens", "replica",
)  # fmt: skip
_UNKNOWN = -1
_MAY_BE_UNKNOWN = ("first_s", "prompt_tokens", "completion_tokens", "cached_tokens")
_PLACES = ", ".join(f"nullif(?, {_UNKNOWN})" if each in _MAY_BE_UNKNOWN else "?" for each in _COLUMNS)
_INSERT = f"INSERT INTO requests ({', '.join(_COLUMNS)}) VALUES ({_PLACES})"
"""Only numbers and texts are handed over, and -1 for None: `sqlite3` looks for adapters for all else, which
takes a third of a row's time."""
_TABLES = """
CREATE TABLE requests (
  id INTEGER PRIMARY KEY, at REAL NOT NULL, key TEXT NOT NULL, model TEXT NOT NULL, route TEXT NOT NULL,
  status INTEGER NOT NULL, how TEXT NOT NULL, why TEXT NOT NULL, is_stream INTEGER NOT NULL,
  waited_s REAL NOT NULL, first_s REAL, total_s REAL NOT NULL, bytes_in INTEGER NOT NULL,
  bytes_out INTEGER NOT NULL, prompt_tokens INTEGER, completion_tokens INTEGER, cached_tokens INTEGER,
  replica INTEGER NOT NULL
);
CREATE TABLE prompts (
  request INTEGER PRIMARY KEY REFERENCES requests(id) ON DELETE CASCADE, body BLOB NOT NULL
);
"""
"""Seconds since 1970 in `at`, the moment when the request ended."""


Row = tuple[tuple[float | int | str, ...], bytes | None]
"""What stands in its columns, and its prompt."""


def log_path(home: Home) -> Path:
    return home.root / "requests.db"


class RequestLog:
    def __init__(
        self,
        path: Path,
        *,
        keep_days: float = 30,
        keep_rows: int = 1_000_000,
        say: Callable[[str], None] = lambda words: None,
    ) -> None:
        """`say` is called from the thread."""
        self._path = path
        self._keep_s = keep_days * _DAY_S
        self._keep_rows = keep_rows
        self._say = say
        self._rows: deque[Row] = deque()
        self._prompts_in = 0
        self._prompts_out = 0
        """Each number is written by one side only: the loop or the thread."""
        self._is_asleep = False
        self._is_closing = False
        self._wake = threading.Event()
        self._now = threading.Event()
        self._pruned_at = float("-inf")
        self._database: sqlite3.Connection | None = None
        self._database_inode: int | None = None
        self._told: str | None = None
        self._told_dropped = 0
        self.written = 0
        self._not_taken = 0
        self._not_written = 0
        self._thread = threading.Thread(target=self._run, name="request-log", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        return self._not_taken + self._not_written

    def note(
        self,
        at: float,
        key: str,
        model: str,
        route: str,
        end: RequestOutcome,
        replica: int = 0,
        prompt: bytes | None = None,
    ) -> None:
        """Never waits. `end` is not to change any more."""
        rows = self._rows
        if len(rows) >= MAX_WAITING or self._is_closing:
            self._not_taken += 1
            return
        if prompt is not None:
            prompt = self._cut(prompt)
        rows.append((_values(at, key, model, route, end, replica), prompt))
        if self._is_asleep:  # looked at after the append, as the thread looks at the rows after it says so
            self._is_asleep = False
            self._wake.set()
        elif len(rows) == BATCH_ROWS:
            self._now.set()

    def _cut(self, prompt: bytes) -> bytes | None:
        """The row is kept without its prompt when too many of them wait already."""
        if self._prompts_in - self._prompts_out >= MAX_WAITING_PROMPTS:
            return None
        self._prompts_in += 1
        return bytes(prompt[:MAX_PROMPT_BYTES])

    def close(self) -> None:
        """Writes what is left. A disk that hangs does not keep us."""
        self._is_closing = True
        self._now.set()
        self._wake.set()
        self._thread.join(_CLOSE_S)

    # From here on: the thread.

    def _run(self) -> None:
        batch: list[Row] = []
        while True:
            self._sleep(has_batch=bool(batch))
            is_last = self._is_closing
            batch += self._taken(_MOST_ROWS - len(batch))
            batch = self._put(batch)
            self._tell_of_drops()
            if is_last and (batch or not self._rows):
                break
        self._not_written += len(batch) + len(self._rows)
        self._tell_of_drops()
        self._let_go()

    def _put(self, batch: list[Row]) -> list[Row]:
        """What could not be written and is worth another try."""
        for _ in range(2):
            try:
                self._write(self._opened(), batch)
                self._prune_now_and_then(self._opened())
                self._told = None
                return []
            except sqlite3.DatabaseError as error:
                if _is_damage(error):
                    self._set_aside(str(error))
                    continue
                if isinstance(error, sqlite3.OperationalError):
                    self._let_go()
                    self._tell(f"{self._path} takes no rows ({error}); they wait")
                    return batch
                self._give_up(batch, error)
            except OSError as error:
                self._tell(f"{self._path} cannot be written ({error.strerror}); the rows wait")
                return batch
            except Exception as error:  # a row that no table takes must not end the log
                self._give_up(batch, error)
            return []
        return batch

    def _give_up(self, batch: list[Row], error: Exception) -> None:
        self._not_written += len(batch)
        self._tell(f"{self._path} refused {len(batch)} rows ({error})")

    def _sleep(self, has_batch: bool) -> None:
        """Until there is a row, and then until there are many or half a second has gone."""
        if has_batch:
            self._now.wait(_RETRY_S)  # the disk would not take it
        elif not self._rows:
            self._is_asleep = True
            if not self._rows and not self._is_closing:
                self._wake.wait()
            self._is_asleep = False
            self._wake.clear()
        if not self._is_closing and len(self._rows) < BATCH_ROWS:
            self._now.wait(BATCH_S)
        if not self._is_closing:
            self._now.clear()

    def _taken(self, most: int) -> list[Row]:
        taken: list[Row] = []
        with suppress(IndexError):
            while len(taken) < most:
                taken.append(self._rows.popleft())
        self._prompts_out += sum(prompt is not None for _, prompt in taken)
        return taken

    def _opened(self) -> sqlite3.Connection:
        """Opened again when the file is no longer the one at its path: somebody removed or moved it."""
        if self._database is not None and _inode(self._path) != self._database_inode:
            self._let_go()
        if self._database is None:
            self._database = self._open()
            self._database_inode = _inode(self._path)
        return self._database

    def _let_go(self) -> None:
        if self._database is not None:
            with suppress(sqlite3.Error):
                self._database.close()
        self._database = None

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite would let others read it
        database = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None)
        try:
            self._prepare(database)
        except BaseException:
            database.close()
            raise
        return database

    def _prepare(self, database: sqlite3.Connection) -> None:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute("PRAGMA foreign_keys = ON")
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            database.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {_VERSION}; COMMIT;")
        elif version != _VERSION:
            raise _OfAnother(f"it is of version {version}")

    def _write(self, database: sqlite3.Connection, batch: list[Row]) -> None:
        database.execute("BEGIN IMMEDIATE")
        try:
            database.executemany(_INSERT, [values for values, prompt in batch if prompt is None])
            for values, prompt in batch:
                if prompt is not None:
                    at = database.execute(_INSERT, values).lastrowid
                    database.execute("INSERT INTO prompts VALUES (?, ?)", (at, prompt))
            database.execute("COMMIT")
        except BaseException:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise
        self.written += len(batch)

    def _prune_now_and_then(self, database: sqlite3.Connection) -> None:
        now = time.monotonic()
        if now < self._pruned_at + _PRUNE_EVERY_S:
            return
        self._pruned_at = now
        newest = database.execute("SELECT coalesce(max(id), 0) FROM requests").fetchone()[0]
        old = "SELECT coalesce(max(id), 0) FROM requests WHERE at < ?"
        aged = database.execute(old, (time.time() - self._keep_s,)).fetchone()[0]
        last = max(aged, newest - self._keep_rows)
        some = "DELETE FROM requests WHERE id IN (SELECT id FROM requests WHERE id <= ? LIMIT ?)"
        while database.execute(some, (last, _PRUNE_ROWS)).rowcount:
            pass  # ends: each turn takes rows, and none are added at this end

    def _set_aside(self, why: str) -> None:
        self._let_go()
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
        aside = self._path.with_name(f"{self._path.stem}.damaged-{stamp}-{os.getpid()}.db")
        for tail in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                Path(f"{self._path}{tail}").replace(f"{aside}{tail}")
        self._tell(f"{self._path} could not be used ({why}); it is kept as {aside.name} and a new one begun")

    def _tell(self, words: str) -> None:
        """Once, until something went well again."""
        if words != self._told:
            self._told = words
            self._say(words)

    def _tell_of_drops(self) -> None:
        """As their number doubles, and not for each."""
        if (dropped := self.dropped) > 2 * self._told_dropped:
            self._told_dropped = dropped
            self._say(f"{dropped} rows of the request log were dropped so far")


class _OfAnother(sqlite3.DatabaseError):
    """The file of a release that came later."""


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return isinstance(error, _OfAnother) or (code is not None and code & 0xFF in _BAD_CODES)


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _values(
    at: float, key: str, model: str, route: str, end: RequestOutcome, replica: int
) -> tuple[float | int | str, ...]:
    usage = end.usage or _NO_USAGE
    first_s = end.first_s
    return (
        at, key, _text(model, 200), route, end.status, end.how, _text(end.why, 500) if end.why else "",
        1 if end.is_stream else 0, end.waited_s, _UNKNOWN if first_s is None else first_s, end.total_s,
        end.bytes_in, end.bytes_out, _count(usage.prompt_tokens), _count(usage.completion_tokens),
        _count(usage.cached_tokens), replica,
    )  # fmt: skip


def _text(text: str, most: int) -> str:
    """A client's word for a model may hold half a surrogate pair, which is no text to SQLite."""
    text = text[:most]
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _count(tokens: int | None) -> int:
    """An engine may say what it likes; a column has 64 bits."""
    if tokens is None or tokens < 0:
        return _UNKNOWN
    return tokens if tokens < _MOST_TOKENS else _MOST_TOKENS


def recent(path: Path, limit: int, before: int | None = None) -> list[dict[str, Any]]:
    """The last rows, newest first, through a connection that cannot write. No log yet: none."""
    if not path.exists():
        return []
    with closing(
        sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_BUSY_S)
    ) as database:
        database.row_factory = sqlite3.Row
        if (
            database.execute("PRAGMA user_version").fetchone()[0] == 0
        ):  # its thread is about to make the tables
            return []
        wanted = f"SELECT id, {', '.join(_COLUMNS)} FROM requests WHERE id < ? ORDER BY id DESC LIMIT ?"
        rows: Iterator[sqlite3.Row] = database.execute(wanted, (before or 2**62, limit))
        return [{**dict(row), "is_stream": bool(row["is_stream"])} for row in rows]
