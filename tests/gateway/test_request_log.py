"""The request log: real SQLite, a real thread, and a writer that is killed in the middle of it."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from firesteel.gateway import sqlite_file
from firesteel.gateway.admin import request_log
from firesteel.gateway.admin.request_log import MAX_PROMPT_BYTES, RequestLog, recent
from firesteel.gateway.interfaces import RequestOutcome, Usage

WHOLE = RequestOutcome(
    "whole",
    200,
    Usage(10, 20, None),
    True,
    100,
    900,
    waited_s=0.25,
    first_s=0.5,
    total_s=1.5,
    why="no reason",
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "requests.db"


def rows(path: Path, sql: str = "SELECT * FROM requests ORDER BY id") -> list[dict[str, Any]]:
    with closing(sqlite3.connect(path)) as database:
        database.row_factory = sqlite3.Row
        return [dict(row) for row in database.execute(sql)]


def until(holds: Callable[[], bool], seconds: float = 20) -> None:
    outcome = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < outcome, "it never came"
        time.sleep(0.005)


def test_a_row_says_what_happened(path: Path) -> None:
    log = RequestLog(path)
    now = time.time()
    log.add(now, "laptop", "coder", "chat", WHOLE, replica=2)
    log.add(now + 1, "", "coder", "chat", RequestOutcome("refused", 503, waited_s=3.0))
    log.close()
    first, second = rows(path)
    assert first == {
        "id": 1, "at": now, "key": "laptop", "model": "coder", "route": "chat", "status": 200, "how": "whole",
        "why": "no reason", "is_stream": 1, "waited_s": 0.25, "first_s": 0.5, "total_s": 1.5, "bytes_in": 100,
        "bytes_out": 900, "prompt_tokens": 10, "completion_tokens": 20, "cached_tokens": None, "replica": 2,
        "loaded_s": 0.0, "cache_cause": "", "reread_tokens": 0, "cache": "", "normalized": "",
    }  # fmt: skip
    assert (second["how"], second["first_s"], second["prompt_tokens"]) == ("refused", None, None)
    assert (log.written, log.dropped) == (2, 0)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_rows_come_by_themselves_and_the_thread_sleeps_between(path: Path) -> None:
    log = RequestLog(path)
    for at in range(3):
        log.add(time.time(), "", "coder", "chat", WHOLE)
        until(lambda at=at: log.written == at + 1)  # type: ignore[misc]
        until(lambda: log._is_asleep)
    log.close()
    assert len(rows(path)) == 3


def test_many_rows_in_few_transactions_and_in_order(path: Path) -> None:
    log = RequestLog(path)
    began = time.time()
    for at in range(5000):
        log.add(began, "", "coder", "chat", RequestOutcome("whole", bytes_in=at))
    log.close()
    assert [row["bytes_in"] for row in rows(path)] == list(range(5000))


def test_readers_see_whole_rows_while_it_writes(path: Path) -> None:
    log = RequestLog(path)
    done, seen, failed = threading.Event(), [0], list[BaseException]()

    def look() -> None:
        try:
            while not done.is_set():
                found = recent(path, 1000)
                assert all(row["status"] == 200 for row in found)
                seen[0] = max(seen[0], len(found))
        except BaseException as error:
            failed.append(error)

    readers = [threading.Thread(target=look) for _ in range(3)]
    for reader in readers:
        reader.start()
    for _ in range(3000):
        log.add(time.time(), "", "coder", "chat", WHOLE)
    until(lambda: log.written == 3000)
    until(lambda: seen[0] == 1000 or bool(failed))
    done.set()
    for reader in readers:
        reader.join(10)
    log.close()
    assert not failed


def test_no_prompt_unless_it_is_handed_in_and_then_cut(path: Path) -> None:
    log = RequestLog(path)
    log.add(time.time(), "", "coder", "chat", WHOLE)
    log.add(time.time(), "", "small", "chat", WHOLE, prompt=b"x" * (MAX_PROMPT_BYTES + 1))
    log.add(time.time(), "", "other", "chat", WHOLE, prompt=b"\xff\x00")
    log.close()
    kept = rows(path, "SELECT model, body FROM prompts JOIN requests ON request = id ORDER BY model")
    assert [(row["model"], row["body"]) for row in kept] == [
        ("other", b"\xff\x00"),
        ("small", b"x" * MAX_PROMPT_BYTES),
    ]
    assert len(rows(path)) == 3


def test_a_full_queue_drops_and_tells_and_never_waits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_log, "MAX_WAITING", 100)
    path.parent.mkdir()
    path.mkdir()  # a folder in its place: nothing can be written
    reports: list[str] = []
    log = RequestLog(path, report=reports.append)
    log.add(time.time(), "", "coder", "chat", WHOLE)
    until(lambda: any("cannot be written" in words or "takes no rows" in words for words in reports))
    for _ in range(1000):
        log.add(time.time(), "", "coder", "chat", WHOLE)
    assert log.dropped >= 800
    log.close()
    assert log.dropped == 1001 and log.written == 0
    assert any("were dropped" in words for words in reports)


def test_a_disk_that_comes_back_gets_what_waited(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_log, "_RETRY_S", 0.05)
    path.parent.mkdir()
    path.mkdir()
    reports: list[str] = []
    log = RequestLog(path, report=reports.append)
    log.add(time.time(), "", "coder", "chat", WHOLE)
    until(lambda: bool(reports))
    path.rmdir()
    until(lambda: log.written == 1)
    log.close()
    assert len(rows(path)) == 1 and len(reports) == 1, "said once, not at every try"


def test_one_that_holds_the_file_only_delays(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_file, "_BUSY_S", 0.05)
    monkeypatch.setattr(request_log, "_RETRY_S", 0.05)
    reports: list[str] = []
    log = RequestLog(path, report=reports.append)
    log.add(time.time(), "", "coder", "chat", WHOLE)
    until(lambda: log.written == 1)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        log.add(time.time(), "", "coder", "chat", WHOLE)
        until(lambda: bool(reports))
        other.execute("ROLLBACK")
    until(lambda: log.written == 2)
    log.close()
    assert len(rows(path)) == 2 and log.dropped == 0 and "locked" in reports[0]


@pytest.mark.parametrize(
    "damage",
    [b"not a database at all, but long enough to be looked at" * 100, b"SQLite format 3\0" + b"\xff" * 5000],
    ids=["words", "header"],
)
def test_a_damaged_file_is_set_aside(path: Path, damage: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(damage)
    reports: list[str] = []
    log = RequestLog(path, report=reports.append)
    log.add(time.time(), "", "coder", "chat", WHOLE)
    log.close()
    assert len(rows(path)) == 1 and log.dropped == 0
    aside = list(path.parent.glob("requests.damaged-*.db"))
    assert len(aside) == 1 and aside[0].read_bytes() == damage
    assert len(reports) == 1 and aside[0].name in reports[0]


def test_damage_in_the_middle_of_the_day(path: Path) -> None:
    """The pages of the file are overwritten under a log that has it open."""
    reports: list[str] = []
    log = RequestLog(path, report=reports.append)
    for at in range(2000):
        log.add(time.time(), "", f"model-{at}", "chat", WHOLE)
    log.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(size - 4096))
    log = RequestLog(path, report=reports.append)
    log.add(time.time(), "", "after", "chat", WHOLE)
    log.close()
    assert [row["model"] for row in rows(path)] == ["after"] and "a new one was created" in reports[-1]


@pytest.mark.parametrize("version", [1, 99])
def test_the_file_of_another_release_is_set_aside(path: Path, version: int) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA user_version = {version}")
    assert recent(path, 10) == []
    reports: list[str] = []
    log = RequestLog(path, report=reports.append)
    log.add(time.time(), "", "coder", "chat", WHOLE)
    log.close()
    assert len(rows(path)) == 1 and f"version {version}" in reports[0]


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({}, ["c", "b", "a"]),
        ({"model": "b"}, ["b"]),
        ({"key": "laptop"}, ["c"]),
        ({"how": "refused"}, ["b"]),
        ({"status": "200"}, ["c", "a"]),
        ({"slower": "2.5"}, ["b"]),
        ({"until": "150"}, ["a"]),
        ({"model": "' OR 1=1 --"}, []),
        ({"slower": "words"}, ["c", "b", "a"]),
    ],
)
def test_the_log_is_filtered(path: Path, filters: dict[str, str], found: list[str]) -> None:
    log = RequestLog(path, keep_days=1_000_000)
    log.add(100.0, "", "a", "chat", RequestOutcome("whole", 200, total_s=1.0))
    log.add(200.0, "", "b", "chat", RequestOutcome("refused", 503, total_s=3.0))
    log.add(300.0, "laptop", "c", "chat", RequestOutcome("whole", 200, total_s=2.0))
    log.close()
    assert [row["model"] for row in recent(path, 10, filters=filters)] == found
    assert [row["model"] for row in recent(path, 10, after=1, filters=filters)] == [
        m for m in found if m != "a"
    ]


def test_a_file_that_is_taken_away_is_begun_again(path: Path) -> None:
    log = RequestLog(path)
    log.add(time.time(), "", "lost", "chat", WHOLE)
    until(lambda: log.written == 1)
    for each in path.parent.glob("requests.db*"):
        each.unlink()
    log.add(time.time(), "", "kept", "chat", WHOLE)
    log.close()
    assert [row["model"] for row in rows(path)] == ["kept"]


@pytest.mark.parametrize(
    ("outcome", "is_kept"),
    [
        (RequestOutcome("whole", 200, Usage(2**80, -(2**80), 2**63)), True),
        (RequestOutcome("whole", 200, why="\ud800" * 10_000), True),
        (RequestOutcome("whole", 200, waited_s=float("nan")), False),
        (RequestOutcome("whole", 2**70), False),
    ],
)
def test_a_row_that_no_table_takes_does_not_end_the_log(
    path: Path, outcome: RequestOutcome, is_kept: bool
) -> None:
    log = RequestLog(path)
    log.add(time.time(), "", "half a pair \udfff", "chat", outcome)
    until(lambda: log.written + log.dropped == 1)
    log.add(time.time(), "", "good", "chat", WHOLE)
    log.close()
    assert rows(path)[-1]["model"] == "good" and len(rows(path)) == 1 + is_kept
    assert (log.written, log.dropped) == (1 + is_kept, 1 - is_kept)


def test_old_rows_go(path: Path) -> None:
    log = RequestLog(path, keep_days=2)
    now = time.time()
    for days in (9, 3, 1, 0):
        log.add(now - days * 86400, "", f"{days} days", "chat", WHOLE, prompt=b"p")
    log.close()
    assert [row["model"] for row in rows(path)] == ["1 days", "0 days"]
    assert len(rows(path, "SELECT * FROM prompts")) == 2, "and their prompts"


def test_rows_beyond_their_number_go(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_log, "_PRUNE_EVERY_S", 0)
    monkeypatch.setattr(request_log, "_PRUNE_ROWS", 7)
    log = RequestLog(path, keep_rows=10)
    for at in range(100):
        log.add(time.time(), "", str(at), "chat", WHOLE)
    log.close()
    assert [row["model"] for row in rows(path)] == [str(at) for at in range(90, 100)]


def test_recent(path: Path) -> None:
    assert recent(path, 10) == []
    log = RequestLog(path)
    for at in range(30):
        log.add(time.time(), "", str(at), "chat", WHOLE)
    log.close()
    found = recent(path, 10)
    assert [row["model"] for row in found] == [str(at) for at in range(29, 19, -1)]
    assert [row["model"] for row in recent(path, 2, before=found[-1]["id"])] == ["19", "18"]
    assert found[0]["is_stream"] is True


def test_a_path_with_signs_that_mean_something_in_an_address(tmp_path: Path) -> None:
    path = tmp_path / "a?mode=rwc&x#% b" / "requests.db"
    log = RequestLog(path)
    log.add(time.time(), "", "coder", "chat", WHOLE)
    log.close()
    assert len(recent(path, 5)) == 1


WRITER = """
import sys, time
from pathlib import Path
from firesteel.gateway.admin.request_log import RequestLog
from firesteel.gateway.interfaces import RequestOutcome
log = RequestLog(Path(sys.argv[1]))
print("on", flush=True)
for at in range(10**9):
    log.add(time.time(), "", "coder", "chat", RequestOutcome("whole", 200, bytes_in=at))
    if at % 50 == 0:
        print(at, log.written, flush=True)
        time.sleep(0.002)
"""


def test_kill_nine_loses_the_last_batch_at_most(path: Path) -> None:
    """What the writer had counted as written is there, in order, and the file is sound."""
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None and writer.stdout.readline() == "on\n"
    noted = written = 0
    while written < 1500:
        noted, written = map(int, writer.stdout.readline().split())
    writer.send_signal(signal.SIGKILL)
    reports = [line.split() for line in writer.stdout.read().splitlines()]
    assert writer.wait(20) == -signal.SIGKILL
    writer.stdout.close()
    noted, written = next(
        ((int(a), int(b)) for a, b in reversed([t for t in reports if len(t) == 2])), (noted, written)
    )
    found = [row["bytes_in"] for row in rows(path)]
    assert found == list(range(len(found))), "no hole, no row twice"
    assert len(found) >= written and noted >= written >= 1500
    log = RequestLog(path)
    log.add(time.time(), "", "after", "chat", WHOLE)
    log.close()
    after = rows(path)
    assert len(after) == len(found) + 1 and after[-1]["model"] == "after"
    assert rows(path, "PRAGMA integrity_check") == [{"integrity_check": "ok"}]
