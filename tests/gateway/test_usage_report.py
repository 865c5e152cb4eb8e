"""Usage by key, model and day: a week in simulated time, whose sums are what was charged; and crashes."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode

import pytest
from aiohttp.test_utils import make_mocked_request
from click.testing import CliRunner

from firesteel.cli.keys import usage as usage_command
from firesteel.edge.home import Home
from firesteel.errors import FiresteelError, UsageError
from firesteel.gateway.admin.api import usage_response
from firesteel.gateway.admin.request_log import ChargeJournal, RequestLog, log_path, recent
from firesteel.gateway.admin.usage import UsageQuery, csv_text, parse_query, read_report, spent_tokens
from firesteel.gateway.dispatcher import Accounting
from firesteel.gateway.interfaces import Caller, Rejection, RequestOutcome, Usage
from firesteel.gateway.key_limits import KeyLimits, TokenBudget, TokenNeed
from firesteel.gateway.keys import KeyRing, add_key, keys_path

NEVER = datetime(2100, 1, 1).timestamp()
CLOCKS_CHANGE = "2026-10-25"
"""25 hours in Berlin."""


@dataclass
class Ended:
    """A request as `Accounting` sees it."""

    model: str
    caller: Caller
    path: bytes = b"/v1/chat/completions"
    prefix: int = 0
    body: bytes = b""
    usage: Usage | None = None
    how: str = "whole"


@dataclass
class Clock:
    now: float
    charged: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    requests: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    def time(self) -> float:
        return self.now


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def _simulate_week(home: Home, clock: Clock, seed: int) -> Accounting:
    """Three keys and two models for a week; requests end whole, cut, broken or refused."""
    dice = random.Random(seed)
    ring = KeyRing.read(keys_path(home))
    log = RequestLog(log_path(home), journal=home.root / "gateway" / "charges.jsonl")
    accounting = Accounting(home, ring, log, lambda model, text: None, logs_prompts=False)
    callers = [key.caller(()) for key in ring.keys.values()]
    end = clock.now + 7 * 86_400
    while clock.now < end:
        clock.now += dice.expovariate(1 / 600)
        request = Ended(dice.choice(("coder", "small")), dice.choice(callers))
        caller = request.caller
        held = accounting.reserve(caller, TokenNeed(1)) if caller.has_reservation else None
        if isinstance(held, Rejection):
            accounting.record(cast(Any, request), RequestOutcome("refused", 429))
            continue
        outcome = RequestOutcome(dice.choice(("whole", "whole", "left", "broke", "refused")), 200)
        if dice.random() < 0.9 and outcome.how != "refused":
            outcome.usage = Usage(dice.randrange(5000), dice.randrange(800), dice.randrange(100))
        accounting.record(cast(Any, request), outcome, held=held)
        if outcome.how == "refused":
            continue
        name = (str(datetime.fromtimestamp(clock.now).date()), caller.name, request.model)
        usage = outcome.usage or Usage(0, 0)
        clock.charged[name] += (usage.prompt_tokens or 0) + (usage.completion_tokens or 0)
        clock.requests[name] += 1
    return accounting


@pytest.mark.usefixtures("berlin")
def test_a_week_of_usage_adds_up_to_what_was_charged(home: Home) -> None:
    path = keys_path(home)
    add_key(path, "free")
    add_key(path, "daily", limits=KeyLimits(budget=TokenBudget(60_000, "day")))
    add_key(path, "monthly", limits=KeyLimits(budget=TokenBudget(700_000, "month")))
    clock = Clock(datetime(2026, 10, 22, 9, 30).timestamp())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(time, "time", clock.time)
        accounting = _simulate_week(home, clock, 7)
        accounting.log.close()

    report = read_report(home, UsageQuery(date(2026, 10, 1), date(2026, 10, 31)), clock.now)
    found = {(row.day, row.key, row.model): row for row in report.rows}
    assert {name: row.prompt_tokens + row.completion_tokens for name, row in found.items()} == clock.charged
    assert {name: row.requests for name, row in found.items()} == clock.requests
    days = {row.day for row in report.rows}
    assert len(days) == 8 and CLOCKS_CHANGE in days, "a week that begins in the morning touches eight days"
    assert report.timezone == "CET, UTC+01:00"

    accounts = accounting.limiter.budgets.accounts
    today = str(datetime.fromtimestamp(clock.now).date())
    assert accounts["daily"].spent == sum(
        tokens for (day, key, _), tokens in clock.charged.items() if (day, key) == (today, "daily")
    )
    monthly = sum(tokens for (_, key, _), tokens in clock.charged.items() if key == "monthly")
    assert accounts["monthly"].spent == monthly
    assert {each.key: each.spent for each in report.budgets} == {
        name: account.spent for name, account in accounts.items()
    }
    daily = Counter[str]()
    for (day, key, _), tokens in clock.charged.items():
        daily[day] += tokens if key == "daily" else 0
    assert max(daily.values()) >= 60_000, "a budget was used up"
    assert max(daily.values()) < 60_000 + 5_800, "by one request at most"

    rows = recent(log_path(home), 10_000)
    assert report.total.requests == sum(row["how"] != "refused" for row in rows)
    assert report.total.prompt_tokens == sum(row["prompt_tokens"] or 0 for row in rows)
    by_key = read_report(home, parse_query({"since": "2026-10-01", "by": "key"}), clock.now)
    assert {row.key: row.requests for row in by_key.rows} == {
        key: sum(count for name, count in clock.requests.items() if name[1] == key)
        for key in ("free", "daily", "monthly")
    }
    assert by_key.total == report.total
    _assert_everybody_says_the_same(home, clock)


def _assert_everybody_says_the_same(home: Home, clock: Clock) -> None:
    """CSV and JSON of the command and of the API, each read as a user would, add up to what was charged."""
    period = {"since": "2026-10-01", "until": "2026-10-31"}
    words = [f"--{name}={value}" for name, value in period.items()]
    runner, told = CliRunner(env={"FIRESTEEL_HOME": str(home.root)}), []
    for option in ("--csv", "--json"):
        ran = runner.invoke(usage_command, [*words, option])
        assert ran.exit_code == 0, ran.output
        told.append(ran.stdout)
    for more in ({"format": "csv"}, {}):
        request = make_mocked_request("GET", f"/api/usage?{urlencode({**period, **more})}")
        response = asyncio.run(usage_response(request, Caller("me", is_admin=True), home))
        told.append(response.text or "")
    rows = [csv.DictReader(io.StringIO(text)) if text.startswith("day,") else _rows(text) for text in told]
    for given in rows:
        tokens, requests = Counter[tuple[str, str, str]](), Counter[tuple[str, str, str]]()
        for row in given:
            name = (row["day"], row["key"], row["model"])
            tokens[name] += int(row["prompt_tokens"]) + int(row["completion_tokens"])
            requests[name] += int(row["requests"])
        assert (tokens, requests) == (clock.charged, clock.requests)
    shown = runner.invoke(usage_command, [*words, "--by", "key"]).stdout
    total = next(line for line in shown.splitlines() if "total" in line)
    assert f"{sum(clock.requests.values()):,}" in total, shown
    request = make_mocked_request("GET", f"/api/usage?{urlencode(period)}")
    own = asyncio.run(usage_response(request, Caller("daily"), home))
    assert {row["key"] for row in _rows(own.text or "")} == {"daily"}, "who is no admin sees its own"


def _rows(document: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(document)["rows"]
    return rows


def test_usage_outlives_the_rows_of_the_log(home: Home) -> None:
    now = time.time()
    log = RequestLog(log_path(home), keep_rows=3)
    for _ in range(10):
        log.add(now, "a", "m", "chat", RequestOutcome("whole", 200, Usage(10, 1)))
    log.close()
    assert len(recent(log_path(home), 100)) == 3
    assert read_report(home, UsageQuery(), now).total.prompt_tokens == 100


def test_an_engine_that_reports_nonsense_overflows_nothing(home: Home) -> None:
    now = time.time()
    log = RequestLog(log_path(home))
    for _ in range(20):
        log.add(now, "a", "m", "chat", RequestOutcome("whole", 200, Usage(2**80, -5, 2**63)))
    log.close()
    assert log.written == 20
    assert read_report(home, UsageQuery(), now).total.prompt_tokens == 20 * 10**12


def test_csv_and_an_empty_home(home: Home) -> None:
    report = read_report(home, parse_query({"by": "day,model"}), time.time())
    assert (
        csv_text(report) == "day,model,requests,prompt_tokens,completion_tokens,cached_tokens,reread_tokens\n"
    )
    assert report.total.requests == 0 and not log_path(home).exists(), "reading creates nothing"
    assert date.fromisoformat(report.until) - date.fromisoformat(report.since) == timedelta(days=29)


@pytest.mark.parametrize(
    "options",
    [
        {"by": "week"}, {"by": "key,key"}, {"by": "key;DROP TABLE usage"}, {"since": "yesterday"},
        {"until": "2026-13-01"}, {"since": "2026-11-02", "until": "2026-11-01"},
    ],
)  # fmt: skip
def test_what_cannot_be_asked(options: dict[str, str | None]) -> None:
    with pytest.raises(UsageError) as refused:
        parse_query(options)
    assert refused.value.next


def test_a_log_that_is_no_database_is_a_clear_error(home: Home) -> None:
    log_path(home).parent.mkdir(parents=True)
    log_path(home).write_bytes(b"no database" * 1000)
    with pytest.raises(FiresteelError, match="cannot be read"):
        read_report(home, UsageQuery(), time.time())


# --- crashes ---

CHARGED = """
import sys, time
from pathlib import Path
from firesteel.gateway.admin import request_log
from firesteel.gateway.interfaces import RequestOutcome, Usage
request_log.BATCH_S = float(sys.argv[3])
log = request_log.RequestLog(Path(sys.argv[1]), journal=Path(sys.argv[2]))
for number in range(1, 10**9):
    log.add(time.time(), "team", "coder", "chat", RequestOutcome("whole", 200, Usage(1, 1)), 0, None, True)
    print(number, flush=True)
"""


@pytest.mark.parametrize("batch_s", ["3600", "0.001"])
def test_kill_nine_loses_no_charge_and_none_counts_twice(home: Home, batch_s: str) -> None:
    """Whether the log had written nothing of it, or nearly everything."""
    path, journal = log_path(home), home.root / "gateway" / "charges.jsonl"
    charged = 0
    for _ in range(2):
        command = [sys.executable, "-c", CHARGED, str(path), str(journal), batch_s]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        for _ in range(300):
            writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        said = [line for line in writer.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
        writer.stdout.close()
        writer.wait()
        charged += int(said[-1]) if said else 300
        RequestLog(path, journal=journal).close()
        spent = spent_tokens(path, "team", 0, NEVER)
        # The one that it had charged and not printed yet.
        assert charged <= spent / 2 <= charged + 1
        charged = spent // 2
    RequestLog(path, journal=journal).close()
    assert spent_tokens(path, "team", 0, NEVER) == 2 * charged, "what was restored is not restored again"


VALUES = (1.0, "team", "m", "chat", 200, "whole", "", 0, 0.0, 0.1, 0.2, 5, 6, 7, 8, 0, 0, 0.0, "", 0, "", "")


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"[",
        b"null\n",
        b"[1]\n",
        b'{"a": 1}\n',
        b"\xff\xfe\n",
        b"[" * 100_000,
        b'["1"' + b', "x"' * 22 + b"]\n",
    ],
)
def test_a_journal_that_was_cut_or_edited_gives_what_is_whole(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "charges.jsonl"
    path.write_bytes(json.dumps([7, *VALUES]).encode() + b"\n" + damage)
    journal = ChargeJournal(path, 0)
    assert journal.unwritten == [(7, VALUES)] and journal.add(VALUES, 0) == 8
    journal.close()
    journal = ChargeJournal(path, 7)
    assert journal.unwritten == [(8, VALUES)]
    journal.close()


def test_a_journal_is_emptied_only_when_the_log_has_it_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("firesteel.gateway.admin.request_log._MAX_BYTES", 400)
    journal = ChargeJournal(tmp_path / "charges.jsonl", 0)
    for _ in range(10):
        journal.add(VALUES, 3)
    assert (tmp_path / "charges.jsonl").read_bytes().count(b"\n") == 10
    assert journal.add(VALUES, 10) == 11
    assert (tmp_path / "charges.jsonl").read_bytes().count(b"\n") == 1
    journal.close()
