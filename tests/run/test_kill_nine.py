"""`kill -9` of the keeper, of the engine and of `up` itself, in every phase of a real start.

Whatever dies: `up` says so in a sentence, nothing is left that `ps`, `up` or `down` cannot see, and the next
`up` serves.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from tests.conftest import run_firesteel

from firesteel.edge.files.home import Home
from firesteel.edge.host import process
from firesteel.run.service import ServiceState, all_services

pytestmark = pytest.mark.real
PHASES = {"load": "loading weights", "warm": "warm ", "verify": "verify "}


@pytest.mark.parametrize("victim", ["keeper", "engine"])
@pytest.mark.parametrize("phase", PHASES)
def test_before_it_was_proved(engine_home: Home, free_port: int, phase: str, victim: str) -> None:
    words = [sys.executable, "-m", "firesteel", "up", "--port", str(free_port)]
    env = {**os.environ, "FIRESTEEL_HOME": str(engine_home.root)}
    with subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as up:
        assert up.stderr is not None
        for line in up.stderr:
            if PHASES[phase] in line:
                break
        state = known_state(engine_home)
        assert state.engine is not None
        process.send(state.keeper if victim == "keeper" else state.engine, signal.SIGKILL)
        said = up.stderr.read()
        assert up.wait(timeout=120) == 1, said
    assert "killed" in said and "next:" in said, said
    assert not process.is_alive(state.engine) and not process.is_alive(state.keeper)
    assert run_firesteel(engine_home.root, "ps", "--json").json["services"] == []
    assert process.port_is_free(free_port)


@pytest.mark.parametrize("victim", ["keeper", "engine"])
def test_after(engine_home: Home, free_port: int, victim: str) -> None:
    """A keeper takes its engine along; an engine is started again by its keeper, and proved."""
    assert run_firesteel(engine_home.root, "up", "--port", str(free_port)).code == 0
    state = known_state(engine_home)
    assert state.engine is not None
    process.send(state.keeper if victim == "keeper" else state.engine, signal.SIGKILL)
    until_phase(engine_home, "dead" if victim == "keeper" else "starting")
    assert not process.is_alive(state.engine)
    ps = run_firesteel(engine_home.root, "ps")
    assert "killed" in ps.out and "next:" in ps.out
    again = run_firesteel(engine_home.root, "up", "--port", str(free_port))
    assert again.code == 0, again.err
    until_phase(engine_home, "ready")
    assert run_firesteel(engine_home.root, "down").code == 0
    assert all_services(engine_home) == [] and process.port_is_free(free_port)


def known_state(home: Home) -> ServiceState:
    for _ in range(200):
        services = all_services(home)
        if services and services[0].state and services[0].state.engine:
            return services[0].state
        time.sleep(0.02)
    raise AssertionError("nobody says who keeps it")


def until_phase(home: Home, phase: str) -> None:
    for _ in range(600):
        if all_services(home)[0].phase == phase:
            return
        time.sleep(0.05)
    raise AssertionError(f"{all_services(home)[0].phase}, not {phase}")
