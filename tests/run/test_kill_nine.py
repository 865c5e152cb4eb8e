"""`kill -9` of the supervisor, of the engine and of `up` itself, in every phase of a real start.

Whatever dies: `up` reports it in a sentence, nothing is left that `ps`, `up` or `down` cannot see, and the
next `up` serves.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from tests.conftest import run_firesteel

from firesteel.edge.home import Home
from firesteel.edge.host import process
from firesteel.run.service import Phase, ServiceState, all_services

pytestmark = pytest.mark.real
PHASES = {"load": "loading weights", "warm": "warm ", "verify": "verify "}
LIMIT_S = 240
"""Only a wait for what never comes takes so long; a busy machine may take a minute."""


@pytest.mark.parametrize("victim", ["supervisor", "engine"])
@pytest.mark.parametrize("phase", PHASES)
def test_before_it_was_proved(quick_home: Home, free_port: int, phase: str, victim: str) -> None:
    argv = [sys.executable, "-m", "firesteel", "up", "--port", str(free_port)]
    env = {**os.environ, "FIRESTEEL_HOME": str(quick_home.root)}
    with subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as up:
        assert up.stderr is not None
        for line in up.stderr:
            if PHASES[phase] in line:
                break
        state = wait_for_engine(quick_home)
        assert state.engine is not None
        process.send(state.supervisor if victim == "supervisor" else state.engine, signal.SIGKILL)
        output = up.stderr.read()
        assert up.wait(timeout=LIMIT_S) == 1, output
    assert "killed" in output and "next:" in output, output
    assert not process.is_alive(state.engine) and not process.is_alive(state.supervisor)
    assert run_firesteel(quick_home.root, "ps", "--json").json["services"] == []
    assert process.port_is_free(free_port)


@pytest.mark.parametrize("victim", ["supervisor", "engine"])
def test_after(quick_home: Home, free_port: int, victim: str) -> None:
    """An engine dies with its supervisor; a supervisor starts its engine again and verifies it."""
    assert run_firesteel(quick_home.root, "up", "--port", str(free_port)).code == 0
    state = wait_for_engine(quick_home)
    assert state.engine is not None
    process.send(state.supervisor if victim == "supervisor" else state.engine, signal.SIGKILL)
    wait_for_phase(quick_home, "dead" if victim == "supervisor" else "starting")
    assert not process.is_alive(state.engine)
    ps = run_firesteel(quick_home.root, "ps")
    assert "killed" in ps.out and "next:" in ps.out
    again = run_firesteel(quick_home.root, "up", "--port", str(free_port))
    assert again.code == 0, again.err
    wait_for_phase(quick_home, "ready")
    assert run_firesteel(quick_home.root, "down").code == 0
    assert all_services(quick_home) == [] and process.port_is_free(free_port)


def wait_for_engine(home: Home) -> ServiceState:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        services = all_services(home)
        if services and services[0].state and services[0].state.engine:
            return services[0].state
        time.sleep(0.02)
    raise AssertionError("no engine was started")


def wait_for_phase(home: Home, phase: Phase) -> None:
    """Whatever comes in between, a service is never called dead while its engine is alive."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        service = all_services(home)[0]
        if service.phase == "dead":
            engine = service.state.engine if service.state else None
            assert engine is None or not process.is_alive(engine)
        if service.phase == phase:
            return
        time.sleep(0.02)
    raise AssertionError(f"{all_services(home)[0].phase}, not {phase}")
