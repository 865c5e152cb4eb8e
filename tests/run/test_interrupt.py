"""Ctrl-C, SIGTERM and SIGHUP in every phase of `up`: what its last sentence says is what is there.

Looked at from outside: the processes that have this home in their environment, the port, and `ps`.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import pytest
from tests.conftest import run_firesteel

import firesteel
from firesteel.cli.output.progress import follow
from firesteel.edge.home import Home
from firesteel.edge.host import process
from firesteel.errors import FiresteelError
from firesteel.launch import Ask
from firesteel.run.events import Event, PhaseDone, PhaseProgress
from firesteel.run.service import ServiceSpec, all_services, read_state, write_spec
from firesteel.run.start import start_supervisor
from firesteel.run.up import bring_up

PHASES = {
    "plan": "plan    ",
    "check": "check   ",
    "start": "launch  starting",
    "load": "launch  loading weights",
    "answer": "answers after",
    "warm": "warm    ",
    "verify": "verify  asking",
    "verified": "verify  speaks",
    "report": "url    ",
}
"""What `up` prints when it comes to the phase; the report is on stdout."""
FAULTS = ("Traceback", "never retrieved", "Exception ignored", "internal error", "was destroyed")
LIMIT_S = 240
TIMES = int(os.environ.get("FIRESTEEL_TEST_TIMES", "20"))
"""Of each phase in the slow tests, which take a quarter of a minute each time."""


def interrupt(home: Path, port: int, sign: str, number: signal.Signals, delay_s: float) -> None:
    """One `up`, interrupted a while after `sign` was printed; then everything is compared."""
    with subprocess.Popen(
        [sys.executable, "-m", "firesteel", "up", "--port", str(port)],
        env={**os.environ, "FIRESTEEL_HOME": str(home), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # so that a signal to the group does not end these tests
    ) as up:
        assert up.stdout is not None
        seen = []
        for line in up.stdout:
            seen.append(line)
            if sign in line:
                break
        time.sleep(delay_s)
        os.killpg(up.pid, number)
        text = "".join(seen) + up.stdout.read()
        code = up.wait(timeout=LIMIT_S)
    assert not any(fault in text for fault in FAULTS), text
    # It was quicker than the signal, or the signal came when all was said and Python was ending.
    is_finished = code == 0 or (code == -number and text.rstrip().endswith("when you are done"))
    assert is_finished or (code == 130 and "interrupted" in text), (code, text)
    stated = re.search(r"^interrupted; (.*)", text, re.MULTILINE)
    says_up = is_finished or (stated is not None and "smollm2 is up on" in stated[1])
    says_down = stated is not None and "smollm2 does not run" in stated[1]
    assert says_up != says_down, text
    services = run_firesteel(home, "ps", "--json").json["services"]
    if says_up:
        assert [row["phase"] for row in services] == ["ready"], (text, services)
        assert not process.port_is_free(port)
        down = run_firesteel(home, "down")
        assert down.code == 0, down.err
    else:
        assert services == [], (text, services)
    assert processes_of(home) == [], text
    assert process.port_is_free(port), text


def processes_of(home: Path) -> list[str]:
    """The processes that were started for this home, whoever their parent is now."""
    mark, found = str(home).encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            if folder.name != str(os.getpid()) and mark in command + (folder / "environ").read_bytes():
                found.append(command.replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return found


@pytest.mark.real
@pytest.mark.parametrize("phase", ["plan", "start", "load", "warm", "verified"])
def test_what_is_said_is_what_is_left(quick_home: Home, free_port: int, phase: str) -> None:
    interrupt(quick_home.root, free_port, PHASES[phase], signal.SIGINT, 0)


@pytest.mark.real
@pytest.mark.usefixtures("pulled")  # which skips where the engine cannot run
def test_while_the_engine_is_installed(tmp_path: Path, free_port: int) -> None:
    interrupt(tmp_path, free_port, "pull    engine", signal.SIGINT, 0.5)


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("phase", PHASES)
def test_many_times(engine_home: Home, free_port: int, phase: str) -> None:
    """At once, and at random moments within a second, because phases overlap."""
    chance = random.Random(phase)
    for number in range(TIMES):
        kind = (signal.SIGINT, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)[number % 4]
        delay_s = 0 if number < 5 else chance.uniform(0, 1 if phase in ("warm", "verify") else 0.2)
        interrupt(engine_home.root, free_port, PHASES[phase], kind, delay_s)


@pytest.mark.slow
@pytest.mark.real
def test_many_times_while_the_engine_is_installed(tmp_path: Path, free_port: int) -> None:
    chance = random.Random(1)
    for number in range(TIMES):
        interrupt(tmp_path / str(number), free_port, "pull    engine", signal.SIGINT, chance.uniform(0, 4))


@pytest.mark.real
async def test_left_in_the_moment_before_the_start(quick_home: Home, free_port: int) -> None:
    """Nothing was started, so no file says that something was."""
    proposal = firesteel.propose(Ask("smollm2", port=free_port), firesteel.host())[0]
    events = bring_up(proposal, quick_home)
    assert isinstance(events, AsyncGenerator)
    async for event in events:
        if event == PhaseProgress("launch", "starting"):
            break
    await events.aclose()
    assert all_services(quick_home) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_down_says_what_goes_on(tmp_path: Path, number: signal.Signals) -> None:
    """The supervisor was told to stop, and waits for an engine that takes its time."""
    home, code = Home(tmp_path), "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
    folder = home.services / "one"
    write_spec(folder, ServiceSpec("one", "", "one", (sys.executable, "-c", code), stop_grace_s=10))
    start_supervisor(folder)
    deadline = time.monotonic() + LIMIT_S
    while not ((state := read_state(folder)) and state.engine) and time.monotonic() < deadline:
        time.sleep(0.02)
    argv = [sys.executable, "-m", "firesteel", "down", "one"]
    env = {**os.environ, "FIRESTEEL_HOME": str(tmp_path)}
    with subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True) as down:
        assert down.stderr is not None and "stopping one" in down.stderr.readline()
        while not ((state := read_state(folder)) and state.is_stopping) and time.monotonic() < deadline:
            time.sleep(0.02)
        os.killpg(down.pid, number)
        text = down.stderr.read()
        assert down.wait(timeout=LIMIT_S) == 130
    assert text.strip() in ("interrupted; one is stopping", "interrupted; one does not run"), text
    again = run_firesteel(tmp_path, "down", "one")
    assert again.code == 0 and processes_of(tmp_path) == [], again.err


# --- the stream of events ---


class Operation:
    """Yields and waits in turns; cleaning up takes a while, and ends with an event or an error."""

    def __init__(self, error: Exception | None = None) -> None:
        self.is_clean, self._error = False, error

    async def events(self, count: int) -> AsyncIterator[Event]:
        async for event in self._events(count):
            yield event

    async def _events(self, count: int) -> AsyncIterator[Event]:
        try:
            for number in range(count):
                yield PhaseProgress("launch", "step " + "x" * number)
                await asyncio.sleep(0)
        except BaseException as error:
            yield PhaseProgress("stop", "stopping")
            await asyncio.sleep(0)
            self.is_clean = True
            yield PhaseDone("stop", "stopped")
            raise self._error or error from None


@pytest.mark.parametrize("error", [None, FiresteelError("it failed while it cleaned up")])
@pytest.mark.parametrize("turns", range(30))
async def test_a_cancelled_operation_always_cleans_up(turns: int, error: Exception | None) -> None:
    """Whatever the loop does at the moment of the cancellation; warnings of lost exceptions are errors."""
    operation = Operation(error)
    seen: list[Event] = []

    async def read() -> None:
        async for event in follow(operation.events(1000)):
            seen.append(event)

    reader = asyncio.ensure_future(read())
    for _ in range(turns):
        await asyncio.sleep(0)
    reader.cancel()
    with pytest.raises((asyncio.CancelledError, FiresteelError)):
        await reader
    assert not seen or (operation.is_clean and seen[-1] == PhaseDone("stop", "stopped"))


async def test_an_operation_that_has_ended_raises_nothing() -> None:
    assert len([event async for event in follow(Operation().events(3))]) == 3


async def test_a_reader_that_stops_reading_ends_the_operation() -> None:
    operation = Operation()
    stream = follow(operation.events(1000))
    async for _ in stream:
        break
    await stream.aclose()
    assert operation.is_clean
