"""The request log: one row per request in `FIRESTEEL_HOME/requests.db`, an SQLite file that any tool can
read.

    log = RequestLog(path, report=print)
    log.add(time.time(), "laptop", "coder", "chat", outcome)     on the loop: an append
    log.close()                                                  writes what is left

A separate thread writes the rows of half a second, or 500, in one transaction. The loop never waits for a
disk: if the disk is slower than the requests, rows are dropped, counted and reported. `kill -9` loses the
rows of the last half second, but none that were charged to a budget (`charge_journal.py`). Prompts are stored
only if passed in, truncated to `MAX_PROMPT_BYTES`, in a separate table.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from firesteel.edge.home import Home
from firesteel.gateway.admin.charge_journal import ChargeJournal
from firesteel.gateway.admin.request_rows import (
    COLUMNS,
    INSERT,
    NewerVersion,
    RowValues,
    add_usage,
    last_charge,
    last_row,
    prepare,
    read_last_charge,
    row_values,
    set_last_charge,
)
from firesteel.gateway.interfaces import RequestOutcome
from firesteel.gateway.sqlite_file import SqliteFile, open_read_only

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
            batch += self._take(_MAX_BATCH_ROWS - len(batch))
            batch = self._write_batch(batch)
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
                if _is_damage(error):
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

    def _take(self, count: int) -> list[Row]:
        rows = [self._rows.popleft() for _ in range(min(count, len(self._rows)))]
        self._prompts_out += sum(row[1] is not None for row in rows)
        return rows

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


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return isinstance(error, NewerVersion) or (code is not None and code & 0xFF in _DAMAGE_CODES)


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
        if version == 0:  # its tables are about to be created
            return []
        columns = ", ".join(COLUMNS if version > 1 else (*COLUMNS[:-1], "0.0 AS loaded_s"))
        filters = filters or {}
        where = "".join(f" AND {LOG_FILTERS[name]}" for name in filters)
        query = f"SELECT id, {columns} FROM requests WHERE id < ? AND id > ?{where}"
        values = (before or 2**62, after, *filters.values(), limit)
        rows: Iterator[sqlite3.Row] = database.execute(f"{query} ORDER BY id DESC LIMIT ?", values)
        return [{**dict(row), "is_stream": bool(row["is_stream"])} for row in rows]
