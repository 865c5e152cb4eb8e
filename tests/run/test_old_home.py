"""A FIRESTEEL_HOME that version 0.1.0 wrote, where the supervisor was called keeper.

`home_0_1` was recorded with that version: `up smollm2`, then SIGTERM to the keeper. `running_state.json` is
its state.json from before the SIGTERM. The weights, the engine and the paths of the machine were left out.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.conftest import run_firesteel

import firesteel
from firesteel.edge.files.home import Home, is_locked
from firesteel.edge.host import process
from firesteel.launch import Ask
from firesteel.run.down import stop
from firesteel.run.events import ServiceReady
from firesteel.run.report import read_report
from firesteel.run.service import Service, death, is_supervised, load, write_spec
from firesteel.run.start import start_times
from firesteel.run.start.options import RunOptions, make_spec
from firesteel.run.supervise.supervisor import supervise
from firesteel.run.up import bring_up
from firesteel.run.verify.expected import stored_expected

RECORDED = Path(__file__).with_name("home_0_1")
LIMIT_S = 60


@pytest.fixture
def home(tmp_path: Path) -> Home:
    root = tmp_path / "home"
    shutil.copytree(RECORDED, root)
    for path in root.rglob("*.json"):
        path.write_text(path.read_text().replace("FIRESTEEL_HOME", str(root)))
    return Home(root)


@pytest.fixture
def running(home: Home) -> Iterator[Service]:
    """The recorded service with a living keeper and a living engine."""
    folder = home.services / "smollm2"
    keeper = subprocess.Popen((sys.executable, Path(__file__).with_name("old_keeper.py"), folder))
    deadline = time.monotonic() + LIMIT_S
    while (service := smollm2(home)).state is None or service.state.supervisor.number != keeper.pid:
        assert time.monotonic() < deadline and keeper.poll() is None, "the keeper did not start"
        time.sleep(0.02)
    yield service
    keeper.kill()
    keeper.wait()


def smollm2(home: Home) -> Service:
    service = load(home, "smollm2")
    assert service is not None
    return service


def engine_of(service: Service) -> process.Pid:
    assert service.state is not None and service.state.engine is not None
    return service.state.engine


def test_a_stopped_service_is_read(home: Home) -> None:
    service = smollm2(home)
    assert service.phase == "dead" and death(service.state) == "it was told to stop"
    assert service.spec.url == "http://127.0.0.1:18765" and service.spec.start[0].startswith(str(home.root))
    assert service.state is not None and service.state.supervisor == process.Pid(12235, 140492)
    assert service.report is not None and read_report(service.report).is_verified
    stored = stored_expected(service.folder)
    assert stored.context == 4096 and stored.plan.decode_tokens_per_s is not None
    assert stored.plan.decode_tokens_per_s.expected == pytest.approx(19.367, abs=0.001)
    assert start_times.earlier_starts(home, "smollm2", "llamacpp", "11549")


def test_the_command_of_0_1_becomes_an_ask(home: Home) -> None:
    assert smollm2(home).spec.ask == Ask("smollm2", port=18765)
    assert smollm2(home).spec.again == "firesteel up smollm2 --port 18765"


@pytest.mark.parametrize(
    ("command", "ask", "more"),
    [
        (
            "firesteel up gpt-oss-120b --port 8000 --context 8192 --users 2 --engine vllm "
            "--engine-version v0.26 --listen 0.0.0.0 --trust-remote-code --boot",
            Ask("gpt-oss-120b", 8192, 2, 8000, engine="vllm", version="v0.26"),
            ("0.0.0.0", True, ""),
        ),
        ("firesteel up '/my models/a.gguf'", Ask("/my models/a.gguf"), ("127.0.0.1", False, "")),
        ("firesteel up -f /s.yaml small", Ask(name="small"), ("127.0.0.1", False, "/s.yaml")),
        ("firesteel up 'a", Ask(), ("127.0.0.1", False, "")),
        ("firesteel up a --port", Ask(), ("127.0.0.1", False, "")),
        ("firesteel up a --engine tensorrt", Ask(), ("127.0.0.1", False, "")),
        ("", Ask(), ("127.0.0.1", False, "")),
    ],
)
def test_commands_of_0_1(home: Home, command: str, ask: Ask, more: tuple[str, bool, str]) -> None:
    path = home.services / "smollm2" / "spec.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "again": command}))
    spec = smollm2(home).spec
    assert (spec.ask, (spec.listen, spec.trusts_code, spec.service_file)) == (ask, more)


def test_ps_shows_a_stopped_service(home: Home) -> None:
    (shown,) = run_firesteel(home.root, "ps", "--json").json["services"]
    assert (shown["phase"], shown["why"], shown["pid"]) == ("dead", "it was told to stop", None)


def test_a_service_whose_keeper_was_killed_is_dead(home: Home) -> None:
    shutil.copy(RECORDED / "running_state.json", home.services / "smollm2" / "state.json")
    service = smollm2(home)
    assert service.phase == "dead" and "supervisor was killed" in death(service.state)


def test_ps_shows_a_running_service(home: Home, running: Service) -> None:
    (shown,) = run_firesteel(home.root, "ps", "--json").json["services"]
    assert (shown["phase"], shown["pid"]) == ("ready", engine_of(running).number)


def test_a_lost_spec_does_not_hide_a_running_service(home: Home, running: Service) -> None:
    (running.folder / "spec.json").unlink()
    assert smollm2(home).phase == "ready"


async def test_up_does_not_start_it_twice(home: Home, running: Service, free_port: int) -> None:
    proposal = firesteel.propose(Ask("smollm2", port=free_port), firesteel.host("gb10"))[0]
    asked = make_spec(proposal, home, RunOptions())
    write_spec(running.folder, replace(running.spec, launch=asked.launch, url=asked.url))
    (home.root / "health").touch()
    argv = (sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(free_port))
    with subprocess.Popen(argv, cwd=home.root, stderr=subprocess.DEVNULL) as engine:
        while process.port_is_free(free_port):
            assert engine.poll() is None
            time.sleep(0.02)
        last = [event async for event in bring_up(proposal, home)][-1]
        engine.terminate()
    assert isinstance(last, ServiceReady) and last.already
    assert smollm2(home).state == running.state


def test_a_second_supervisor_leaves_it_alone(home: Home, running: Service) -> None:
    assert supervise(running.folder) == 0
    assert smollm2(home).state == running.state and process.is_alive(engine_of(running))
    assert not is_locked(running.folder / "supervisor.lock")


async def test_down_stops_it(home: Home, running: Service) -> None:
    assert [event async for event in stop(running)]
    assert not process.is_alive(engine_of(running)) and not is_supervised(running.folder)
    assert load(home, "smollm2") is None
    assert "keeper" not in json.dumps(run_firesteel(home.root, "ps", "--json").json)
