"""What was used: requests and tokens by day, key and model, and what is left of the budgets.

    report = read_report(home, UsageQuery(by=("key",)), time.time())
    csv_text(report)

From the counts of the request log (`request_log.py`), for `serve usage` and `GET /api/usage`. A day is
the host's own, from midnight to midnight in its time zone.
"""

from __future__ import annotations

import csv
import io
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

from firesteel.edge.home import Home
from firesteel.errors import FiresteelError, UsageError
from firesteel.gateway.admin.request_log import VERSION, log_path
from firesteel.gateway.key_limits import BudgetPeriod, TokenBudget, period_of
from firesteel.gateway.keys import keys_path, read_keys
from firesteel.gateway.sqlite_file import open_read_only
from firesteel.values import Value, plain

USAGE_COLUMNS = ("day", "key", "model")
_COUNTS = ("requests", "prompt_tokens", "completion_tokens", "cached_tokens", "reread_tokens")
_DEFAULT_DAYS = 30
MAX_ROWS = 100_000


class UsageQuery(Value):
    since: date | None = None
    until: date | None = None
    """Both days included; by default the last 30."""
    key: str | None = None
    model: str | None = None
    by: tuple[str, ...] = USAGE_COLUMNS


class UsageRow(Value):
    day: str | None
    """In the timezone of the report. None, as for `key` and `model`: all of them, `by` does not have it."""
    key: str | None
    """Empty: no keys were in use."""
    model: str | None
    requests: int
    """Those that were refused do not count."""
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    """The part of the prompts that the engine had processed before."""
    reread_tokens: int
    """The part that it had processed before, and had to process again."""


class BudgetStatus(Value):
    key: str
    tokens: int
    period: BudgetPeriod
    spent: int
    left: int
    over: int
    """By how much it was exceeded: prompts that were longer than estimated."""
    ends: str
    """When the next period begins."""


class UsageReport(Value, tag_field="document", tag="firesteel.usage/1"):
    """`firesteel serve usage --json`"""

    timezone: str
    """Of the days: `CET, UTC+01:00`."""
    since: str
    until: str
    by: tuple[str, ...]
    rows: tuple[UsageRow, ...]
    total: UsageRow
    budgets: tuple[BudgetStatus, ...]


def parse_query(options: Mapping[str, str | None]) -> UsageQuery:
    """From the options of the command, or the parameters of a URL."""
    by = tuple(name.strip() for name in (options.get("by") or ",".join(USAGE_COLUMNS)).split(","))
    if len(by) > len(USAGE_COLUMNS) or len(set(by)) < len(by) or not set(by) <= set(USAGE_COLUMNS):
        raise UsageError(f"`{','.join(by)[:60]}` is not a choice of day, key, model", next="--by key,model")
    since, until = _day(options.get("since"), "since"), _day(options.get("until"), "until")
    if since and until and until < since:
        raise UsageError(f"{until} is before {since}", next=f"--since {until} --until {since}")
    return UsageQuery(since, until, options.get("key"), options.get("model"), by)


def _day(text: str | None, name: str) -> date | None:
    if text is None:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise UsageError(f"`{text[:40]}` is not a day", next=f"--{name} 2026-11-30") from None


def read_report(home: Home, query: UsageQuery, now: float) -> UsageReport:
    path = log_path(home)
    budgets = {key.name: key.limits.budget for key in read_keys(keys_path(home)).values()}
    until = query.until or datetime.fromtimestamp(now).date()
    since = query.since or max(until, date(1970, 2, 1)) - timedelta(days=_DEFAULT_DAYS - 1)
    try:
        rows = _read_rows(path, query, since, until)
        statuses = tuple(
            _budget_status(path, name, budget, now)
            for name, budget in budgets.items()
            if budget is not None and query.key in (None, name)
        )
    except sqlite3.Error as error:
        raise FiresteelError(f"{path} cannot be read ({error})", next=f"ls -l {path}") from error
    total = UsageRow(None, None, None, *(sum(getattr(row, count) for row in rows) for count in _COUNTS))
    return UsageReport(timezone_of(now), str(since), str(until), query.by, rows, total, statuses)


def timezone_of(now: float) -> str:
    local = datetime.fromtimestamp(now).astimezone()
    return "UTC" if local.tzname() == "UTC" else f"{local.tzname()}, UTC{local.isoformat()[-6:]}"


def _read_rows(path: Path, query: UsageQuery, since: date, until: date) -> tuple[UsageRow, ...]:
    names = [name if name in query.by else "NULL" for name in USAGE_COLUMNS]
    sums = [f"sum({count})" for count in _COUNTS]
    where, values = "day BETWEEN ? AND ?", [str(since), str(until)]
    for name in ("key", "model"):
        if (value := getattr(query, name)) is not None:
            where += f" AND {name} = ?"
            values.append(value)
    by = ", ".join(query.by)
    select = f"SELECT {', '.join((*names, *sums))} FROM usage WHERE {where} GROUP BY {by} ORDER BY {by}"
    rows = _select(path, f"{select} LIMIT {MAX_ROWS + 1}", values)
    if len(rows) > MAX_ROWS:
        raise UsageError(
            f"there are more than {MAX_ROWS:,} rows", next="--by key, or fewer days with --since"
        )
    return tuple(UsageRow(*row) for row in rows)


def _select(path: Path, query: str, values: list[str]) -> list[Any]:
    if not path.exists():
        return []
    with closing(open_read_only(path)) as database:
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version != VERSION:  # its tables are about to be created
            return []
        return database.execute(query, values).fetchall()


def spent_tokens(path: Path, key: str, since: float, until: float) -> int:
    """What a key was charged from one midnight to another; not on days to which the clock had jumped."""
    days = [str(datetime.fromtimestamp(at).date()) for at in (since, until)]
    tokens = "coalesce(sum(prompt_tokens + completion_tokens), 0)"
    where = "key = ? AND day >= ? AND day < ?"
    rows = _select(path, f"SELECT {tokens} FROM usage WHERE {where}", [key, *days])
    return rows[0][0] if rows else 0


def _budget_status(path: Path, key: str, budget: TokenBudget, now: float) -> BudgetStatus:
    began, ends = period_of(now, budget.period)
    spent = spent_tokens(path, key, began, ends)
    left = budget.tokens - spent
    next_period = datetime.fromtimestamp(ends).astimezone().isoformat(timespec="seconds")
    return BudgetStatus(key, budget.tokens, budget.period, spent, max(0, left), max(0, -left), next_period)


def csv_text(report: UsageReport) -> str:
    columns = [*(name for name in USAGE_COLUMNS if name in report.by), *_COUNTS]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(plain(row) for row in report.rows)
    return text.getvalue()
