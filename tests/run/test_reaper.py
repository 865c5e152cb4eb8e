"""The reaper ends the whole tree of a program: real processes that fork, ignore SIGTERM, outlive parents."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from firesteel.edge.host import process
from firesteel.run.service import SERVICE_VARIABLE, end_leftovers
from firesteel.run.spec import REAPER

# A program like vLLM: a child of its own, in a session of its own, that ignores SIGTERM where it should.
_PROGRAM = """
import os, signal, subprocess, sys, time
worker = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", worker], start_new_session=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print(child.pid, os.getpid(), flush=True)
time.sleep(float(sys.argv[1]))
sys.exit(7)
"""


def _start(seconds: float, env: dict[str, str] | None = None) -> tuple[subprocess.Popen[str], int, int]:
    """The reaper, and the pids of the worker and of the program."""
    reaper = subprocess.Popen(
        [sys.executable, "-I", "-S", REAPER, sys.executable, "-c", _PROGRAM, str(seconds)],
        stdout=subprocess.PIPE, text=True, env={**os.environ, **(env or {})},
    )  # fmt: skip
    assert reaper.stdout
    with reaper.stdout as output:
        worker, program = map(int, output.readline().split())
    return reaper, worker, program


def _gone(number: int) -> bool:
    deadline = time.monotonic() + 120
    while process.find(number) is not None:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_a_program_that_ends_takes_its_workers_with_it() -> None:
    reaper, worker, _ = _start(0.1)
    assert reaper.wait(30) == 7, "the exit code is the program's"
    assert _gone(worker)


@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_program_and_then_the_rest(which: signal.Signals) -> None:
    reaper, worker, program = _start(600)
    reaper.send_signal(which)
    assert reaper.wait(30) == 0
    assert _gone(worker) and _gone(program)


def test_a_killed_program_leaves_no_worker() -> None:
    reaper, worker, program = _start(600)
    os.kill(program, signal.SIGKILL)
    assert reaper.wait(30) == 128 + signal.SIGKILL
    assert _gone(worker)


def test_a_killed_supervisor_leaves_nothing(tmp_path: Path) -> None:
    numbers = tmp_path / "numbers"
    supervisor = (
        "import subprocess, sys\n"
        f"program = [sys.executable, '-c', {_PROGRAM!r}, '600']\n"
        f"reaper = [sys.executable, '-I', '-S', {REAPER!r}]\n"
        f"subprocess.Popen([*reaper, *program], stdout=open({str(numbers)!r}, 'w')).wait()"
    )
    parent = subprocess.Popen([sys.executable, "-c", supervisor])
    deadline = time.monotonic() + 120
    while not (numbers.exists() and numbers.read_text().endswith("\n")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    parent.kill()
    parent.wait()
    worker, program = map(int, numbers.read_text().split())
    assert _gone(worker) and _gone(program)


def test_what_outlives_even_the_reaper_is_found_by_its_variable(tmp_path: Path) -> None:
    reaper, worker, program = _start(600, {SERVICE_VARIABLE: str(tmp_path)})
    reaper.kill()
    reaper.wait()
    assert _gone(program), "the kernel kills it with its parent"
    assert process.find(worker) is not None, "which the kernel does not do for its children"
    assert end_leftovers(tmp_path) == 1
    assert _gone(worker)
    assert end_leftovers(tmp_path) == 0


def test_a_program_that_does_not_exist_is_told() -> None:
    argv = [sys.executable, "-I", "-S", REAPER, "/no/such/llama-server", "--port", "8000"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 127
    assert done.stderr == "/no/such/llama-server cannot be started: No such file or directory\n"
