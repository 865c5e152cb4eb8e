"""Frozen engines against busy ones, with real processes: the first are told and ended, the second never."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.conftest import Ran, run_firesteel

from firesteel.edge.home import Home, write_text
from firesteel.edge.host import process
from firesteel.run.service import Service, ServiceSpec, hang_of, load, write_spec
from firesteel.run.start import start_supervisor

ONE_AT_A_TIME = """
import http.server, sys, time
began = time.monotonic() * 0.1 - time.process_time()
class Serve(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        while self.path == "/compute":
            if time.process_time() < time.monotonic() * 0.1 - began: sum(range(10_000))
            else: time.sleep(0.01)
        if self.path == "/sleep":
            time.sleep(3600)
        self.send_response(200); self.end_headers(); self.wfile.write(b"ok")
    def log_message(self, *words): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Serve).serve_forever()
"""
"""Answers nothing else while it computes, a tenth of one core's time, or sleeps."""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    yield home
    for name in ("computes", "sleeps", "stopped"):
        if (service := load(home, name)) and service.state:
            process.send(service.state.supervisor, signal.SIGTERM)


def until(holds: Callable[[], bool], limit_s: float = 300) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def free_ports(count: int) -> list[int]:
    found = (port for port in range(20_000 + os.getpid() % 9_000, 40_000) if process.port_is_free(port))
    return [next(found) for _ in range(count)]


def get(url: str, timeout_s: float = 1) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def service(home: Home, name: str) -> Service:
    found = load(home, name)
    assert found is not None and found.state is not None
    return found


def restarts(home: Home, name: str) -> int:
    state = service(home, name).state
    return state.restarts if state else 0


def engine(home: Home, name: str) -> process.Pid:
    state = service(home, name).state
    assert state is not None and state.engine is not None
    return state.engine


def test_frozen_engines_are_told_and_restarted_and_busy_ones_are_not(home: Home) -> None:
    names = ("computes", "sleeps", "stopped")
    for name, port in zip(names, free_ports(3), strict=True):
        argv, url = (sys.executable, "-c", ONE_AT_A_TIME, str(port)), f"http://127.0.0.1:{port}"
        write_spec(home.services / name, ServiceSpec(name, url, name, argv))
        write_text(home.services / name / "report.json", f'{{"name": "{name}"}}')
        start_supervisor(home.services / name)
    for name in names:
        until(lambda: (found := load(home, name)) is not None and found.phase == "ready")  # noqa: B023  # called before the next name
        until(lambda: get(f"{service(home, name).spec.url}/health"))  # noqa: B023  # called before the next name
    time.sleep(5)  # the supervisors have asked at least once, so that a silence means something
    for name in ("computes", "sleeps"):
        assert not get(f"{service(home, name).spec.url}/{name.removesuffix('s')}")
    process.send(engine(home, "stopped"), signal.SIGSTOP)
    # At once but for the moment that the kernel takes to stop a process that is running.
    until(lambda: service(home, "stopped").phase == "hung")
    until(lambda: service(home, "sleeps").phase == "hung")
    assert hang_of(service(home, "sleeps").state) == "it does not answer and uses no CPU time"
    hung_before = {name: engine(home, name) for name in ("sleeps", "stopped")}
    for name, before in hung_before.items():
        until(lambda: restarts(home, name) == 1)  # noqa: B023  # called before the next name
        assert not process.is_alive(before)
        why = service(home, name).state
        assert why is not None and "the engine is frozen: " in (why.why or "")
    # It was silent for as long, and computed.
    assert restarts(home, "computes") == 0 and service(home, "computes").phase == "ready"
    assert not get(f"{service(home, 'computes').spec.url}/health")


def ask(port: int, words: int, result: list[object]) -> threading.Thread:
    """A prompt of that many words, in a thread."""
    text = " ".join(f"{number} foxes" for number in range(words // 2))
    body = {"model": "smollm2", "messages": [{"role": "user", "content": text}], "max_tokens": 4}

    def send() -> None:
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with suppress(OSError, ValueError), urllib.request.urlopen(request, timeout=3600) as answer:
            result.append(json.load(answer))

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


def ps(home: Home) -> dict[str, object]:
    services: list[dict[str, object]] = run_firesteel(home.root, "ps", "--json").json["services"]
    return services[0]


def up(home: Home, port: int) -> Ran:
    return run_firesteel(home.root, "up", "smollm2", "--port", str(port))


def test_the_embedded_engine_stopped_while_it_reads_a_prompt(quick_home: Home, free_port: int) -> None:
    assert up(quick_home, free_port).code == 0
    answers: list[object] = []
    reading = ask(free_port, 500, answers)
    while reading.is_alive():
        assert ps(quick_home)["phase"] == "ready"
    assert answers, "a busy engine was left alone"
    ask(free_port, 1500, answers)
    # Its supervisor stands still as well, so that nothing is restarted while the commands below look at it.
    state = service(quick_home, "smollm2").state
    assert state is not None
    process.send(state.supervisor, signal.SIGSTOP)
    process.send(engine(quick_home, "smollm2"), signal.SIGSTOP)
    until(lambda: service(quick_home, "smollm2").phase == "hung")
    row = ps(quick_home)
    assert row["phase"] == "hung" and "stopped" in str(row["why"])
    refused = up(quick_home, free_port)
    assert refused.code == 1 and "it hangs" in refused.err and "already up" not in refused.err
    process.send(state.supervisor, signal.SIGCONT)
    until(lambda: restarts(quick_home, "smollm2") == 1)
    until(lambda: service(quick_home, "smollm2").phase == "ready", 600)
    again = up(quick_home, free_port)
    assert again.code == 0 and "already up" in again.err


@pytest.mark.slow
def test_a_prompt_of_minutes_is_never_taken_for_a_hang(engine_home: Home, free_port: int) -> None:
    ran = run_firesteel(engine_home.root, "up", "smollm2", "--port", str(free_port), "--context", "8192")
    assert ran.code == 0, ran.err
    first, began = engine(engine_home, "smollm2"), time.monotonic()
    while time.monotonic() - began < 240:
        answers: list[object] = []
        reading = ask(free_port, 1600, answers)
        while reading.is_alive():
            found = service(engine_home, "smollm2")
            assert found.phase == "ready" and hang_of(found.state) is None
            time.sleep(0.2)
        assert answers
    assert engine(engine_home, "smollm2") == first
