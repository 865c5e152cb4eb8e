"""The tables of `requests.db`: a row per request, and the usage of each key, model and day.

`usage` is added to in the transaction that adds the rows, so that the two always agree, and stays when old
rows go. Its days are the host's own (`localtime` when the row was written). A refused request is no usage,
unless it was stopped in the middle: its model is whatever a client typed.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

from firesteel.gateway.interfaces import RequestOutcome, Usage
from firesteel.gateway.sqlite_file import open_read_only

COLUMNS = (
    "at", "key", "model", "route", "status", "how", "why", "is_stream", "waited_s", "first_s", "total_s",
    "bytes_in", "bytes_out", "prompt_tokens", "completion_tokens", "cached_tokens", "replica",
    "loaded_s",
)  # fmt: skip
RowValues = tuple[float | int | str, ...]
"""One for each column."""
VERSION = 3
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
  replica INTEGER NOT NULL, loaded_s REAL NOT NULL DEFAULT 0
);
CREATE TABLE prompts (
  request INTEGER PRIMARY KEY REFERENCES requests(id) ON DELETE CASCADE, body BLOB NOT NULL
);
"""
"""`at` is the end of the request, in seconds since 1970."""
_USAGE_TABLES = """
CREATE TABLE IF NOT EXISTS usage (
  day TEXT NOT NULL, key TEXT NOT NULL, model TEXT NOT NULL, requests INTEGER NOT NULL,
  prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL,
  PRIMARY KEY (day, key, model)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS charges (id INTEGER PRIMARY KEY CHECK (id = 1), last INTEGER NOT NULL);
"""
"""`charges`: the number of the last line of the journal (`charge_journal.py`) that is in these tables."""


def _sum(column: str) -> str:
    return f"sum(min(coalesce({column}, 0), {MAX_TOKENS})) AS {column}"


USAGE_OF_ROWS = f"""
SELECT coalesce(date(min(at), 'unixepoch', 'localtime'), '') AS day, key, model, count(*) AS requests,
       {_sum("prompt_tokens")}, {_sum("completion_tokens")}, {_sum("cached_tokens")}
FROM requests
WHERE id > ? AND (how != 'refused' OR prompt_tokens IS NOT NULL OR completion_tokens IS NOT NULL)
GROUP BY CAST(at / 900 AS INTEGER), key, model
"""
"""By quarters of an hour, since a midnight is at the beginning of one in every time zone: a date takes a
microsecond, and so it is computed for each group and not for each row."""
_ADD_USAGE = f"""
INSERT INTO usage {USAGE_OF_ROWS} ON CONFLICT DO UPDATE SET
  requests = requests + excluded.requests, prompt_tokens = prompt_tokens + excluded.prompt_tokens,
  completion_tokens = completion_tokens + excluded.completion_tokens,
  cached_tokens = cached_tokens + excluded.cached_tokens
"""
_FROM_1 = "ALTER TABLE requests ADD COLUMN loaded_s REAL NOT NULL DEFAULT 0;"
_FROM_2 = f"{_USAGE_TABLES} DELETE FROM usage; {_ADD_USAGE.replace('?', '0')};"
"""From one version of this file to the next."""
_CREATE = {0: _TABLES + _USAGE_TABLES, 1: _FROM_1 + _FROM_2, 2: _FROM_2}


class NewerVersion(sqlite3.DatabaseError):
    """The file was written by a newer release."""


def prepare(database: sqlite3.Connection) -> None:
    """Create the tables, or bring those of an earlier release up to date."""
    database.execute("PRAGMA foreign_keys = ON")
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if version in _CREATE:
        database.executescript(
            f"BEGIN IMMEDIATE; {_CREATE[version]} PRAGMA user_version = {VERSION}; COMMIT;"
        )
    elif version != VERSION:
        raise NewerVersion(f"it has version {version}")


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
        _count(usage.cached_tokens), replica, outcome.loaded_s,
    )  # fmt: skip


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
