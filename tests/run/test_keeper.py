"""The keeper with real processes: whatever is killed, nothing is left and the files tell the truth."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from firesteel.edge import process
from firesteel.edge.home import Home, is_locked
from firesteel.run.service import Service, Spec, death, load, write_spec
from firesteel.run.up import start_keeper

SLEEPS = (sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)")
IGNORES_SIGTERM = (
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print('up', flush=True); time.sleep(600)",
)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture
def start(home: Home) -> Iterator[Callable[..., Service]]:
    started: list[Service] = []

    def run(argv: tuple[str, ...], floor: int = 0, grace_s: float = 20) -> Service:
        spec = Spec("one", "http://127.0.0.1:9", "one", argv, memory_floor_bytes=floor, stop_grace_s=grace_s)
        folder = home.services / "one"
        write_spec(folder, spec)
        start_keeper(folder)
        until(lambda: (found := load(home, "one")) is not None and found.state is not None)
        service = load(home, "one")
        assert service is not None
        started.append(service)
        return service

    yield run
    for service in started:
        assert service.state is not None
        process.send(service.state.keeper, signal.SIGKILL)


def until(holds: Callable[[], bool], limit_s: float = 15) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def now(home: Home) -> Service:
    service = load(home, "one")
    assert service is not None
    return service


def engine_of(service: Service) -> process.Pid:
    assert service.state is not None and service.state.engine is not None
    return service.state.engine


def test_a_running_engine_is_starting_until_it_is_proved(home: Home, start: Callable[..., Service]) -> None:
    service = start(SLEEPS)
    assert service.phase == "starting"
    (service.folder / "report.json").write_text("{}")
    assert now(home).phase == "starting"
    (service.folder / "report.json").write_text('{"name": "one"}')
    assert now(home).phase == "ready"


def test_kill_9_of_the_engine_is_seen(home: Home, start: Callable[..., Service]) -> None:
    service = start(SLEEPS)
    process.send(engine_of(service), signal.SIGKILL)
    until(lambda: now(home).phase == "dead")
    assert death(now(home).state) == "the engine was killed by signal 9 (SIGKILL)"


def test_kill_9_of_the_keeper_takes_the_engine_along(home: Home, start: Callable[..., Service]) -> None:
    service = start(SLEEPS)
    assert service.state is not None
    process.send(service.state.keeper, signal.SIGKILL)
    until(lambda: not process.is_alive(engine_of(service)))
    assert now(home).phase == "dead"
    assert "keeper was killed" in death(now(home).state)


def test_sigterm_to_the_keeper_stops_both(home: Home, start: Callable[..., Service]) -> None:
    service = start(SLEEPS)
    assert service.state is not None
    process.send(service.state.keeper, signal.SIGTERM)
    until(lambda: not is_locked(service.folder / "keeper.lock"))
    assert not process.is_alive(engine_of(service))
    assert death(now(home).state) == "it was told to stop"


def test_an_engine_that_ignores_sigterm_is_killed(home: Home, start: Callable[..., Service]) -> None:
    service = start(IGNORES_SIGTERM, grace_s=0.5)
    until(lambda: service.log.exists() and "up" in service.log.read_text())
    assert service.state is not None
    process.send(service.state.keeper, signal.SIGTERM)
    until(lambda: now(home).phase == "dead")
    ended = now(home).state
    assert ended is not None and ended.exit_code == -signal.SIGKILL


def test_the_guard_stops_an_engine_below_the_floor(home: Home, start: Callable[..., Service]) -> None:
    start(SLEEPS, floor=2**60)
    until(lambda: now(home).phase == "dead")
    assert "the memory guard stopped it" in death(now(home).state)


def test_an_engine_that_is_not_there(home: Home, start: Callable[..., Service]) -> None:
    start(("/nowhere/engine",))
    until(lambda: now(home).phase == "dead")
    assert death(now(home).state) == "/nowhere/engine cannot be started: No such file or directory"


def test_an_engine_that_exits(home: Home, start: Callable[..., Service]) -> None:
    start((sys.executable, "-c", "import sys; print('bad flag'); sys.exit(2)"))
    until(lambda: now(home).phase == "dead")
    assert death(now(home).state) == "the engine exited with code 2"
    assert "bad flag" in now(home).log.read_text()


def test_a_second_keeper_leaves_the_first_alone(home: Home, start: Callable[..., Service]) -> None:
    service = start(SLEEPS)
    second = start_keeper(service.folder)
    assert os.waitstatus_to_exitcode(os.waitpid(second, 0)[1]) == 0
    assert now(home).state == service.state
    assert process.is_alive(engine_of(service))


def test_a_pid_used_again_is_another_process() -> None:
    mine = process.this_process()
    assert process.is_alive(mine)
    assert not process.is_alive(process.Pid(mine.number, mine.started_ticks + 1))
    assert process.find(2**22 + os.getpid()) is None
