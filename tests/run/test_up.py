"""The ways in which a start can fail; `test_real_service.py` has one that succeeds."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest
from tests.conftest import Ran, run_firesteel

from firesteel.edge.home import Home
from firesteel.edge.host import process
from firesteel.run.service import all_services

pytestmark = pytest.mark.real


def up(home: Home, port: int, *arguments: str) -> Ran:
    return run_firesteel(home.root, "up", "--port", str(port), *arguments)


def test_a_port_in_use(quick_home: Home) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ran = up(quick_home, port)
    assert ran.code == 5
    assert f"port {port} is in use by" in ran.err and f"pid {os.getpid()}" in ran.err
    assert "next: firesteel up smollm2 --port" in ran.err
    assert all_services(quick_home) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_up_leaves_nothing(quick_home: Home, free_port: int, number: signal.Signals) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "firesteel", "up", "--port", str(free_port)],
        env={**os.environ, "FIRESTEEL_HOME": str(quick_home.root)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stderr is not None
    for line in child.stderr:
        if line.startswith("launch"):
            break
    child.send_signal(number)
    child.communicate(timeout=60)
    assert child.returncode == 130
    assert all_services(quick_home) == []
    assert process.port_is_free(free_port)


def test_up_continues_after_a_killed_up(quick_home: Home, free_port: int) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "firesteel", "up", "--port", str(free_port)],
        env={**os.environ, "FIRESTEEL_HOME": str(quick_home.root)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stderr is not None
    for line in child.stderr:
        if line.startswith("launch") and "loading" in line:
            break
    child.kill()
    child.communicate(timeout=60)
    left = all_services(quick_home)
    assert [service.phase for service in left] == ["starting"]
    again = up(quick_home, free_port)
    assert again.code == 0 and "continuing from there" in again.err
    assert all_services(quick_home)[0].state == left[0].state
    assert run_firesteel(quick_home.root, "down").code == 0
    assert all_services(quick_home) == []


def test_two_ups_at_once(quick_home: Home, free_port: int) -> None:
    arguments = [sys.executable, "-m", "firesteel", "up", "--port", str(free_port), "--json"]
    env = {**os.environ, "FIRESTEEL_HOME": str(quick_home.root)}
    quiet = subprocess.DEVNULL
    with (
        subprocess.Popen(arguments, env=env, stdout=quiet, stderr=quiet) as one,
        subprocess.Popen(arguments, env=env, stdout=quiet, stderr=quiet) as two,
    ):
        codes = {one.wait(timeout=300), two.wait(timeout=300)}
    assert 0 in codes and codes <= {0, 1}
    assert len(all_services(quick_home)) == 1
    assert all_services(quick_home)[0].phase == "ready"
    verified = run_firesteel(quick_home.root, "verify", "--json")  # by its name: it is the only one
    assert verified.code == 0 and verified.json["name"] == "smollm2", verified.err
