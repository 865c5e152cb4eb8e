"""The request log: one row per request in `FIRESTEEL_HOME/requests.db`, an SQLite file that any tool can
read.

    log = RequestLog(path, report=print)
    log.add(time.time(), "laptop", "coder", "chat", outcome)     on the loop: an append
    log.close()                                                  writes what is left

A separate thread writes the rows. The loop never waits for a disk. `kill -9` loses the rows of the last half
second, but none that were charged to a budget: these are in the `ChargeJournal`.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from firesteel.edge.home import Home
from firesteel.gateway.interfaces import RequestOutcome, Usage
from firesteel.gateway.sqlite_file import SqliteFile, open_read_only

COLUMNS = (
    "at", "key", "model", "route", "status", "how", "why", "is_stream", "waited_s", "first_s", "total_s",
    "bytes_in", "bytes_out", "prompt_tokens", "completion_tokens", "cached_tokens", "replica",
    "loaded_s", "cache_cause", "reread_tokens", "cache", "normalized",
)  # fmt: skip
RowValues = tuple[float | int | str, ...]
"""One for each column."""
VERSION = 4
_UNKNOWN = -1
_NULLABLE = ("first_s", "prompt_tokens", "completion_tokens", "cached_tokens")
_PLACEHOLDERS = ", ".join(f"nullif(?, {_UNKNOWN})" if column in _NULLABLE else "?" for column in COLUMNS)
INSERT = f"INSERT INTO requests ({', '.join(COLUMNS)}) VALUES ({_PLACEHOLDERS})"
"""Only numbers and strings are passed, and -1 instead of None: `sqlite3` searches an adapter for anything
else, which takes a third of a row's time."""
MAX_TOKENS = 10**12
"""Of one request, whatever its engine reports: sums of millions of rows stay within 64 bits."""
_NO_USAGE = Usage()

_TABLES = """
CREATE TABLE requests (
  id INTEGER PRIMARY KEY, at REAL NOT NULL, key TEXT NOT NULL, model TEXT NOT NULL, route TEXT NOT NULL,
  status INTEGER NOT NULL, how TEXT NOT NULL, why TEXT NOT NULL, is_stream INTEGER NOT NULL,
  waited_s REAL NOT NULL, first_s REAL, total_s REAL NOT NULL, bytes_in INTEGER NOT NULL,
  bytes_out INTEGER NOT NULL, prompt_tokens INTEGER, completion_tokens INTEGER, cached_tokens INTEGER,
  replica INTEGER NOT NULL, loaded_s REAL NOT NULL DEFAULT 0, cache_cause TEXT NOT NULL DEFAULT '',
  reread_tokens INTEGER NOT NULL DEFAULT 0, cache TEXT NOT NULL DEFAULT '',
  normalized TEXT NOT NULL DEFAULT ''
);
CREATE TABLE prompts (
  request INTEGER PRIMARY KEY REFERENCES requests(id) ON DELETE CASCADE, body BLOB NOT NULL
);
"""
"""`at` is the end of the request, in seconds since 1970."""
_USAGE_TABLES = """
CREATE TABLE usage (
  day TEXT NOT NULL, key TEXT NOT NULL, model TEXT NOT NULL, requests INTEGER NOT NULL,
  prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL,
  reread_tokens INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (day, key, model)
) WITHOUT ROWID;
CREATE TABLE charges (id INTEGER PRIMARY KEY CHECK (id = 1), last INTEGER NOT NULL);
"""
"""The usage of each key, model and day. It is added to in the transaction that adds the rows, so that the two
always agree, and stays when old rows go. Its days are the host's own (`localtime` when the row was written).
A rejected request is not usage, unless it was stopped in the middle: its model is whatever a client typed.

`charges`: the number of the last line of the journal (`ChargeJournal`) that is in these tables."""


def _sum(column: str) -> str:
    return f"sum(min(coalesce({column}, 0), {MAX_TOKENS})) AS {column}"


_ADD_USAGE = f"""
INSERT INTO usage
SELECT coalesce(date(min(at), 'unixepoch', 'localtime'), '') AS day, key, model, count(*) AS requests,
       {_sum("prompt_tokens")}, {_sum("completion_tokens")}, {_sum("cached_tokens")}, {_sum("reread_tokens")}
FROM requests
WHERE id > ? AND (how != 'refused' OR prompt_tokens IS NOT NULL OR completion_tokens IS NOT NULL)
GROUP BY CAST(at / 900 AS INTEGER), key, model
ON CONFLICT DO UPDATE SET
  requests = requests + excluded.requests, prompt_tokens = prompt_tokens + excluded.prompt_tokens,
  completion_tokens = completion_tokens + excluded.completion_tokens,
  cached_tokens = cached_tokens + excluded.cached_tokens,
  reread_tokens = reread_tokens + excluded.reread_tokens
"""
"""By quarters of an hour, since a midnight is at the beginning of one in every time zone: a date takes a
microsecond, and so it is computed for each group and not for each row."""


class OtherVersion(sqlite3.DatabaseError):
    """The file was written by another release."""


def prepare(database: sqlite3.Connection) -> None:
    """Create the tables of a new file."""
    database.execute("PRAGMA foreign_keys = ON")
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if version == 0:
        tables = _TABLES + _USAGE_TABLES
        database.executescript(f"BEGIN IMMEDIATE; {tables} PRAGMA user_version = {VERSION}; COMMIT;")
    elif version != VERSION:
        raise OtherVersion(f"it has version {version}")


def last_row(database: sqlite3.Connection) -> int:
    found: int = database.execute("SELECT coalesce(max(id), 0) FROM requests").fetchone()[0]
    return found


def add_usage(database: sqlite3.Connection, after: int) -> None:
    """Of the rows behind that one."""
    database.execute(_ADD_USAGE, (after,))


def read_last_charge(path: Path) -> int:
    """A file that cannot be read has an unknown number; the time in microseconds is past all that were
    given."""
    if not path.exists():
        return 0
    try:
        with closing(open_read_only(path)) as database:
            version = database.execute("PRAGMA user_version").fetchone()[0]
            return last_charge(database) if version == VERSION else 0
    except sqlite3.Error:
        return time.time_ns() // 1000


def last_charge(database: sqlite3.Connection) -> int:
    row = database.execute("SELECT last FROM charges").fetchone()
    return row[0] if row else 0


def set_last_charge(database: sqlite3.Connection, number: int) -> None:
    database.execute("INSERT OR REPLACE INTO charges VALUES (1, ?)", (number,))


def row_values(
    at: float, key: str, model: str, route: str, outcome: RequestOutcome, replica: int
) -> RowValues:
    usage = outcome.usage or _NO_USAGE
    first_s = outcome.first_s
    why = _text(outcome.why, 500) if outcome.why else ""
    return (
        at, key, _text(model, 200), route, outcome.status, outcome.how, why, 1 if outcome.is_stream else 0,
        outcome.waited_s, _UNKNOWN if first_s is None else first_s, outcome.total_s, outcome.bytes_in,
        outcome.bytes_out, _count(usage.prompt_tokens), _count(usage.completion_tokens),
        _count(usage.cached_tokens), replica, outcome.loaded_s, *_cache_values(outcome),
    )  # fmt: skip


def _cache_values(outcome: RequestOutcome) -> tuple[str, int, str, str]:
    cache = outcome.cache
    if cache is None:
        return "", 0, "", outcome.normalized
    return cache.cause, min(cache.reread_tokens, MAX_TOKENS), cache.text, outcome.normalized


def _text(text: str, max_chars: int) -> str:
    """A model name from a client may contain half a surrogate pair, which SQLite rejects."""
    text = text[:max_chars]
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _count(tokens: int | None) -> int:
    """An engine may report any number."""
    if tokens is None or tokens < 0:
        return _UNKNOWN
    return tokens if tokens < MAX_TOKENS else MAX_TOKENS


def charged_tokens(usage: Usage | None) -> int:
    """What a request costs its key: prompt and answer, as the row has them."""
    if usage is None:
        return 0
    return max(0, _count(usage.prompt_tokens)) + max(0, _count(usage.completion_tokens))


_MAX_BYTES = 2**20
"""Then it is emptied, if the log has everything in it."""
_MAX_READ_BYTES = 64 * 2**20


class ChargeJournal:
    """What keys with a budget have used, on the disk before their clients know.

    The request log is written in batches, and `kill -9` loses the last half second of it. A budget must not
    be larger after a crash, so each request of a key that has one is a line here as well, written at once;
    with the next start, lines that the log does not have are added to it. Only a power cut can lose the last
    of them.

    A line is the number of the charge and the values of its row, as JSON. Numbers only grow, and the log
    stores the last one with the rows, in one transaction: no charge is lost and none counts twice.
    """

    def __init__(self, path: Path, logged: int) -> None:
        """`logged`: the number of the last charge that the log has."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.unwritten = sorted(line for line in _lines(self._file) if line[0] > logged)
        """The charges of an earlier process that the log does not have."""
        self.last = max(logged, *(number for number, _ in self.unwritten), 0)
        size = self._bytes = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            self._append(b"\n")  # a line that was cut off

    def add(self, values: RowValues, logged: int) -> int:
        """Return the charge's number. `logged` is the last one that the log has. OSError: the disk is
        full."""
        if self._bytes > _MAX_BYTES and logged >= self.last:
            os.ftruncate(self._file, 0)
            self._bytes = 0
        self.last += 1
        self._append(json.dumps([self.last, *values]).encode() + b"\n")
        return self.last

    def _append(self, line: bytes) -> None:
        self._bytes += os.write(self._file, line)

    def close(self) -> None:
        with suppress(OSError):
            os.close(self._file)


def _lines(file: int) -> Iterator[tuple[int, RowValues]]:
    """Those that are whole; anything else was cut off, or edited by hand."""
    for line in os.pread(file, _MAX_READ_BYTES, 0).splitlines():
        try:
            number, *values = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            continue
        if type(number) is int and 0 < number < 2**62 and len(values) == len(COLUMNS) and all(
            type(value) is kind or (kind is float and type(value) is int)
            for value, kind in zip(values, _KINDS, strict=True)
        ):  # fmt: skip
            yield number, tuple(values)


_KINDS = tuple(
    str if column in ("key", "model", "route", "how", "why", "cache_cause", "cache", "normalized")
    else float if column == "at" or column.endswith("_s")
    else int
    for column in COLUMNS
)  # fmt: skip


MAX_WAITING = 20_000
"""Rows that wait for the thread; about 10 MB."""
MAX_PROMPT_BYTES = 64 * 2**10
MAX_WAITING_PROMPTS = 100
BATCH_ROWS = 500
BATCH_S = 0.5
_PRUNE_EVERY_S = 600.0
_PRUNE_ROWS = 2000
"""Per transaction, so that the file is never locked for long."""
_RETRY_S = 5.0
_CLOSE_S = 10.0
_MAX_BATCH_ROWS = 4 * BATCH_ROWS
_DAY_S = 86400.0
_KEEP_USAGE_DAYS = 400
_DAMAGE_CODES = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}

LOG_FILTERS = {
    "model": "model = ?",
    "key": "key = ?",
    "how": "how = ?",
    "status": "status = CAST(? AS INTEGER)",
    "until": "at <= CAST(? AS REAL)",
    "slower": "total_s >= CAST(? AS REAL)",
}
"""By the name of a query's parameter: the condition, whose value is the parameter's."""
Row = tuple[RowValues, bytes | None, int]
"""The values of the columns, the prompt, and the number of the charge in the journal, or 0."""


def log_path(home: Home) -> Path:
    return home.root / "requests.db"


class RequestLog:
    """A separate thread writes the rows of half a second, or 500, in one transaction. If the disk is slower
    than the requests, rows are dropped, counted and reported. Prompts are stored only if passed in, truncated
    to `MAX_PROMPT_BYTES`, in a separate table.
    """

    def __init__(
        self,
        path: Path,
        *,
        keep_days: float = 30,
        keep_rows: int = 1_000_000,
        report: Callable[[str], None] = lambda text: None,
        journal: Path | None = None,
    ) -> None:
        """`report` is called from the thread. `journal`: the file of the charges."""
        self._path = path
        self._file = SqliteFile(path, prepare)
        self._keep_s = keep_days * _DAY_S
        self._keep_rows = keep_rows
        self._report_callback = report
        self._rows: deque[Row] = deque()
        self._prompts_in = 0
        self._prompts_out = 0
        """Each counter is written by one side only: the loop or the thread."""
        self._is_asleep = False
        self._is_closing = False
        self._wake = threading.Event()
        self._now = threading.Event()
        self._pruned_s = float("-inf")
        self._last_report: str | None = None
        self._reported_dropped = 0
        self.written = 0
        self._charge_logged = 0
        """The last charge of the journal that is in the file."""
        self._not_taken = 0
        self._not_written = 0
        self._journal: ChargeJournal | None = None
        if journal is not None:
            self._journal = ChargeJournal(journal, read_last_charge(path))
            restored: list[Row] = [(values, None, number) for number, values in self._journal.unwritten]
            self._rows.extend(self._write_batch(restored) if restored else ())
        self._thread = threading.Thread(target=self._run, name="request-log", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        return self._not_taken + self._not_written

    def add(
        self,
        at: float,
        key: str,
        model: str,
        route: str,
        outcome: RequestOutcome,
        replica: int = 0,
        prompt: bytes | None = None,
        is_charged: bool = False,
    ) -> None:
        """Never waits. `outcome` must not change afterwards. `is_charged`: to a budget, so that a crash must
        not lose it."""
        rows = self._rows
        if len(rows) >= MAX_WAITING or self._is_closing:
            self._not_taken += 1
            return
        if prompt is not None:
            prompt = self._truncate(prompt)
        values = row_values(at, key, model, route, outcome, replica)
        rows.append((values, prompt, self._charge(values) if is_charged else 0))
        if self._is_asleep:  # checked after the append; the thread sets it, then checks the rows
            self._is_asleep = False
            self._wake.set()
        elif len(rows) == BATCH_ROWS:
            self._now.set()

    def _charge(self, values: RowValues) -> int:
        if self._journal is None:
            return 0
        try:
            return self._journal.add(values, self._charge_logged)
        except OSError as error:
            self._report(f"the journal of charges cannot be written ({error.strerror})")
            return 0

    def _truncate(self, prompt: bytes) -> bytes | None:
        """None, if too many prompts wait already; the row is still written."""
        if self._prompts_in - self._prompts_out >= MAX_WAITING_PROMPTS:
            return None
        self._prompts_in += 1
        return bytes(prompt[:MAX_PROMPT_BYTES])

    def close(self) -> None:
        """Write what is left. A disk that hangs does not block the exit."""
        self._is_closing = True
        self._now.set()
        self._wake.set()
        self._thread.join(_CLOSE_S)
        if self._journal is not None:
            self._journal.close()

    # --- the thread ---

    def _run(self) -> None:
        batch: list[Row] = []
        while True:
            self._sleep(has_batch=bool(batch))
            is_last = self._is_closing
            free = _MAX_BATCH_ROWS - len(batch)
            rows = [self._rows.popleft() for _ in range(min(free, len(self._rows)))]
            self._prompts_out += sum(row[1] is not None for row in rows)
            batch = self._write_batch(batch + rows)
            self._report_drops()
            if is_last and (batch or not self._rows):
                break
        self._not_written += len(batch) + len(self._rows)
        self._report_drops()
        self._file.close()

    def _write_batch(self, batch: list[Row]) -> list[Row]:
        """Return the rows to try again."""
        for _ in range(2):
            try:
                self._write(batch)
                self._prune_if_due(self._file.connection())
                self._last_report = None
                return []
            except sqlite3.DatabaseError as error:
                code = getattr(error, "sqlite_errorcode", None)
                if isinstance(error, OtherVersion) or (code is not None and code & 0xFF in _DAMAGE_CODES):
                    self._move_damaged(str(error))
                    continue
                if isinstance(error, sqlite3.OperationalError):
                    self._file.close()
                    self._report(f"{self._path} cannot be written ({error}); its rows wait")
                    return batch
                self._drop(batch, error)
            except OSError as error:
                self._report(f"{self._path} cannot be written ({error.strerror}); its rows wait")
                return batch
            except Exception as error:  # an invalid row must not end the log
                self._drop(batch, error)
            return []
        return batch

    def _drop(self, batch: list[Row], error: Exception) -> None:
        self._not_written += len(batch)
        self._report(f"{self._path} rejected {len(batch)} rows ({error})")

    def _sleep(self, has_batch: bool) -> None:
        """Wait for a row, then until there are `BATCH_ROWS` or `BATCH_S` has passed."""
        if has_batch:
            self._now.wait(_RETRY_S)  # the last write failed
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

    def _write(self, batch: list[Row]) -> None:
        with self._file.transaction() as database:
            before, new = last_row(database), batch
            if last := max((row[2] for row in batch), default=0):
                logged = last_charge(database)
                new = [row for row in batch if not 0 < row[2] <= logged]
                set_last_charge(database, max(logged, last))
            database.executemany(INSERT, [values for values, prompt, _ in new if prompt is None])
            for values, prompt, _ in new:
                if prompt is not None:
                    row_id = database.execute(INSERT, values).lastrowid
                    database.execute("INSERT INTO prompts VALUES (?, ?)", (row_id, prompt))
            add_usage(database, before)
        self._charge_logged = max(self._charge_logged, last)
        self.written += len(batch)

    def _prune_if_due(self, database: sqlite3.Connection) -> None:
        now = time.monotonic()
        if now < self._pruned_s + _PRUNE_EVERY_S:
            return
        self._pruned_s = now
        newest = database.execute("SELECT coalesce(max(id), 0) FROM requests").fetchone()[0]
        expired = "SELECT coalesce(max(id), 0) FROM requests WHERE at < ?"
        last_expired = database.execute(expired, (time.time() - self._keep_s,)).fetchone()[0]
        last = max(last_expired, newest - self._keep_rows)
        delete = "DELETE FROM requests WHERE id IN (SELECT id FROM requests WHERE id <= ? LIMIT ?)"
        while database.execute(delete, (last, _PRUNE_ROWS)).rowcount:
            pass  # ends: each turn removes rows, and none are added below `last`
        database.execute("DELETE FROM usage WHERE day < date('now', ?)", (f"-{_KEEP_USAGE_DAYS} days",))

    def _move_damaged(self, why: str) -> None:
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
        aside = self._file.move_aside(f"damaged-{stamp}-{os.getpid()}")
        self._report(
            f"{self._path} could not be used ({why}); it was moved to {aside}, and a new one was created"
        )

    def _report(self, text: str) -> None:
        """The same message only once, until a write succeeds."""
        if text != self._last_report:
            self._last_report = text
            self._report_callback(text)

    def _report_drops(self) -> None:
        """Each time that their number doubles."""
        if (dropped := self.dropped) > 2 * self._reported_dropped:
            self._reported_dropped = dropped
            self._report_callback(f"{dropped} rows of the request log were dropped so far")


def recent(
    path: Path,
    limit: int,
    before: int | None = None,
    after: int = 0,
    filters: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """The last rows, newest first, through a read-only connection. `filters`: by a name of `LOG_FILTERS`."""
    if not path.exists():
        return []
    with closing(open_read_only(path)) as database:
        database.row_factory = sqlite3.Row
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version != VERSION:  # its tables are about to be created
            return []
        filters = filters or {}
        where = "".join(f" AND {LOG_FILTERS[name]}" for name in filters)
        query = f"SELECT id, {', '.join(COLUMNS)} FROM requests WHERE id < ? AND id > ?{where}"
        values = (before or 2**62, after, *filters.values(), limit)
        rows: Iterator[sqlite3.Row] = database.execute(f"{query} ORDER BY id DESC LIMIT ?", values)
        return [{**dict(row), "is_stream": bool(row["is_stream"])} for row in rows]
