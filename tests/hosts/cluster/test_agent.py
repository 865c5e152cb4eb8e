"""The agent by itself, on this machine: lease, stop, and what is left when its holder is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from firesteel.edge.host import reaper
from firesteel.hosts.cluster import agent

AGENT = str(Path(agent.__file__))


def call(*words: str, stdin: str = "") -> Any:
    argv = [sys.executable, "-I", "-S", AGENT, *words]
    return json.loads(subprocess.run(argv, input=stdin, capture_output=True, text=True, check=True).stdout)


def rank(folder: Path, *argv: str, lease_s: float = 30, **more: Any) -> Any:
    document = {"argv": argv, "reaper": str(Path(reaper.__file__)), "lease_s": lease_s, "grace_s": 3, **more}
    return call("start", str(folder), stdin=json.dumps(document))


def watched(folder: Path, lines: int = 1) -> Any:
    argv = [sys.executable, "-I", "-S", AGENT, "watch", str(folder), "0"]
    done = subprocess.run(argv, input="renew\n" * lines, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def is_running(number: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def wait_for(what: str, is_so: Any, limit_s: float = 60) -> None:
    deadline = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.fixture
def folder(tmp_path: Path) -> Any:
    yield tmp_path / "rank"
    call("stop", str(tmp_path / "rank"), "10")


def test_start_watch_stop(folder: Path) -> None:
    started = rank(folder, "/bin/sh", "-c", "echo hello; sleep 1000")
    assert started["exit"] is None
    wait_for("no log", lambda: "hello" in watched(folder)["log"])
    report = watched(folder)
    assert report["is_alive"] and report["resident_bytes"] > 0 and report["available_bytes"] > 0
    assert "error" in rank(folder, "/bin/true"), "one rank at a time"
    stopped = call("stop", str(folder), "10")
    assert stopped["is_stopped"] and stopped["was"]
    assert not watched(folder)["is_alive"] and not is_running(started["engine"])


def test_a_lease_that_nobody_renews_ends_the_rank(folder: Path) -> None:
    started = rank(folder, "/bin/sleep", "1000", lease_s=1)
    wait_for("it stays", lambda: not is_running(started["engine"]))
    wait_for("it does not say why", lambda: "its lease ran out" in (watched(folder)["why"] or ""))


def test_the_lease_needs_no_disk_and_no_wall_clock(folder: Path) -> None:
    rank(folder, "/bin/sleep", "1000")
    (folder / "lease").chmod(0o400)
    before = (folder / "lease").stat().st_mtime
    watched(folder)
    after = (folder / "lease").stat().st_mtime
    assert after > before and abs(after - time.clock_gettime(time.CLOCK_BOOTTIME)) < 60
    assert (folder / "lease").stat().st_size == 0


def test_a_killed_holder_takes_the_whole_tree_with_it(folder: Path) -> None:
    started = rank(folder, "/bin/sh", "-c", "sleep 1000 & sleep 1000")
    wait_for("no children", lambda: len(agent.descendants(started["engine"])) >= 3)
    tree = [started["engine"], *agent.descendants(started["engine"])]
    os.kill(started["holder"], signal.SIGKILL)
    wait_for("something is left", lambda: not any(is_running(number) for number in tree))
    assert watched(folder)["why"] == "its holder was killed"


def test_an_engine_that_ends_by_itself_is_told(folder: Path) -> None:
    rank(folder, "/bin/sh", "-c", "exit 7")
    wait_for("it does not end", lambda: watched(folder)["exit"] is not None)
    assert watched(folder)["exit"] == 7 and not watched(folder)["is_alive"]
    call("stop", str(folder), "60")  # the holder writes the exit code just before it ends itself
    rank(folder, "/no/such/program")
    wait_for("it does not end", lambda: watched(folder)["exit"] == 127)
    assert "/no/such/program is not on this host" in watched(folder)["why"]


def test_a_lost_part_of_the_engine_ends_the_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`vllm serve` may go on for half a minute after its worker was killed."""
    find = agent.engine_parts

    def find_and_kill(first: int) -> dict[int, str]:
        parts = find(first)
        for number in parts:
            os.kill(number, signal.SIGKILL)
        return parts

    monkeypatch.setattr(agent, "engine_parts", find_and_kill)
    (tmp_path / "lease").touch()
    agent.renew(tmp_path)
    script = "bash -c 'exec -a VLLM::Worker_TP1 sleep 1000' & while :; do sleep 1; done"
    engine = subprocess.Popen(["/bin/bash", "-c", script])
    try:
        why = agent.wait_for_end(tmp_path, {"lease_s": 600}, engine, [], 0)
        assert why == "its process VLLM::Worker_TP1 was lost" and engine.poll() is None
    finally:
        engine.kill()
        engine.wait()


def test_the_memory_floor_ends_the_rank(folder: Path) -> None:
    rank(folder, "/bin/sleep", "1000", floor_bytes=2**60)
    wait_for("it stays", lambda: "the memory guard" in (watched(folder)["why"] or ""))


@pytest.mark.parametrize(
    ("state", "timer", "count", "expected"),
    [
        ("01", "01:00000040", 5, "10.77.0.2:50052"),
        ("01", "01:00000040", 1, None),
        ("01", "00:00000000", 5, None),
        ("04", "01:00000040", 5, None),  # what a killed engine left, being closed
    ],
)
def test_a_stuck_connection_is_seen(
    tmp_path: Path, state: str, timer: str, count: int, expected: str | None
) -> None:
    row = f"0: 01004D0A:C350 02004D0A:C384 {state} 00000040:00000000 {timer} 0000000{count} 0 0 1 1 0"
    (tmp_path / "tcp").write_text(f"sl local_address rem_address\n{row}\n")
    assert agent.stuck_connection(["10.77.0.2"], str(tmp_path / "tcp")) == expected
    assert agent.stuck_connection(["10.77.0.3"], str(tmp_path / "tcp")) is None
