"""Whatever a file under FIRESTEEL_HOME has become: `ps` shows what runs, `down` stops it, `up` starts it.

Every file of a service is damaged in every way, in every phase. The supervisor is the real one; its engine is
a small HTTP server, because what an engine answers does not matter here. A few cases type the commands.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.conftest import run_firesteel
from tests.needs import needs_programs

import firesteel
from firesteel.edge.home import Home, lock, write_secrets, write_text
from firesteel.edge.host import process
from firesteel.launch import Ask
from firesteel.library.services import service_status
from firesteel.planner.propose import Proposal
from firesteel.run import service as service_module
from firesteel.run.down import remove_files, stop
from firesteel.run.report import Report
from firesteel.run.service import (
    FILES,
    Service,
    ServiceSpec,
    all_services,
    folder_of,
    load,
    pick,
    read_spec,
    read_state,
    supervisors,
    write_spec,
)
from firesteel.run.spec import RunOptions, make_spec
from firesteel.run.start import start_supervisor
from firesteel.run.up import bring_up
from firesteel.values import plain, replace

NAME = "smollm2"
SERVER = (
    "import http.server, sys\n"
    "class Handler(http.server.BaseHTTPRequestHandler):\n"
    "    def do_GET(self): self.send_response(200); self.end_headers()\n"
    "    def log_message(self, *words): pass\n"
    "http.server.HTTPServer(('127.0.0.1', int(sys.argv[2])), Handler).serve_forever()\n"
)
LIMIT_S = 60


def missing(path: Path) -> None:
    path.unlink(missing_ok=True)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20])


def garbled(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00{garbage" * 20)


def other_json(path: Path) -> None:
    path.write_text('{"name": 3, "supervisor": [], "checks": {}, "url": 7}')


def folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()
    (path / "something").write_text("of somebody's")


def pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def loop(path: Path) -> None:
    """Nobody can open it, not even root."""
    path.unlink(missing_ok=True)
    path.symlink_to(path.name)


DAMAGES = [missing, empty, cut, garbled, other_json, folder, pipe, loop]
OWN_FILES = [*FILES, "supervisor.lock", "work.lock", "engine.log", "supervisor.log"]
HOME_FILES = ["bandwidth.json", "measured_memory.json", f"starts/{NAME}.json", f"secrets/{NAME}.env"]
Damage = Callable[[Path], None]


@pytest.fixture(scope="module")
def proposal() -> Proposal:
    return firesteel.propose(Ask(NAME), firesteel.host("gb10"))[0]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    home = Home(tmp_path / "home")
    monkeypatch.setattr(service_module, "STATE_WRITTEN_S", 0.0)  # `start` waits until it is written
    yield home
    for pid in supervisors(home).values():
        process.send(pid, signal.SIGKILL)


def spec_of(proposal: Proposal, home: Home, port: int) -> ServiceSpec:
    spec = make_spec(proposal, home, RunOptions())
    start = (sys.executable, "-c", SERVER, "--port", str(port))
    return replace(spec, start=start, url=f"http://127.0.0.1:{port}", stop_grace_s=5)


def start(home: Home, spec: ServiceSpec, *, is_ready: bool) -> Service:
    """What `up` leaves: all files of a service that runs, and of its home."""
    path = folder_of(home, NAME)
    with lock(path / "work.lock"):  # as `up` does, while it works
        write_spec(path, spec)
        write_secrets(Path(spec.secrets), {"X_API_KEY": "x"})
        for name in HOME_FILES[:3]:
            write_text(home.root / name, "[]")
        write_text(path / "expect.json", "{}")
        start_supervisor(path)
    if is_ready:
        report = Report(NAME, f"{spec.url}/v1", NAME, "llamacpp", None, (), (), 1.0, 1.0, "")
        write_text(path / "report.json", json.dumps(plain(report)))
    return wait_until(home, lambda found: bool(found.state and found.state.engine and is_written(found)))


def is_written(service: Service) -> bool:
    return read_state(service.folder) == service.state


def wait_until(home: Home, holds: Callable[[Service], bool]) -> Service:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        service = load(home, NAME)
        if service and holds(service):
            return service
        time.sleep(0.02)
    raise AssertionError(load(home, NAME))


def pids(service: Service) -> list[process.Pid]:
    assert service.state and service.state.engine
    return [service.state.supervisor, service.state.engine]


async def stop_all(home: Home) -> None:
    async for _ in stop(pick(home, NAME)):
        pass


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("phase", ["starting", "ready"])
async def test_what_runs_is_seen_and_stopped(
    proposal: Proposal, home: Home, free_port: int, phase: str, damage: Damage
) -> None:
    """All files in turn, for one start: the supervisor does not read them again."""
    spec = spec_of(proposal, home, free_port)
    service = start(home, spec, is_ready=phase == "ready")
    whole = {
        name: (service.folder / name).read_bytes() for name in OWN_FILES if (service.folder / name).exists()
    }
    for name in [*whole, *(f"../../{name}" for name in HOME_FILES)]:
        path = service.folder / name
        before = path.read_bytes()
        path.rename(aside := path.with_name("aside"))  # so that a lock that is held stays on its file
        path.write_bytes(before)
        damage(path)
        [found] = all_services(home)
        assert found.phase in ("starting", "ready"), (name, found)
        assert found.state and [found.state.supervisor, found.state.engine] == pids(service), name
        status = service_status(found)
        assert status.pid == pids(service)[1].number and (
            status.url == f"{spec.url}/v1" or phase == "starting"
        ), name
        await_gone(path)
        aside.rename(path)
    assert load(home, NAME) == service
    damaged = service.folder / "state.json"
    damage(damaged)
    damage(service.folder / "spec.json")
    await stop_all(home)
    assert not any(process.is_alive(pid) for pid in pids(service))
    assert all_services(home) == [] and process.port_is_free(free_port)


def await_gone(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        (path / "something").unlink()
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


NAMED = ("spec.json", "state.json", "supervisor.lock")


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *((NAMED[number % 3], damage) for number, damage in enumerate(DAMAGES)),
        *((name, damage) for name in NAMED[1:] for damage in (missing, folder)),
    ],
)
async def test_down_stops_it(
    proposal: Proposal, home: Home, free_port: int, name: str, damage: Damage
) -> None:
    """One file; the test before this one damages two at once, in every way."""
    service = start(home, spec_of(proposal, home, free_port), is_ready=True)
    damage(service.folder / name)
    await stop_all(home)
    assert not any(process.is_alive(pid) for pid in pids(service))
    assert all_services(home) == [] and process.port_is_free(free_port)


async def test_a_service_whose_folder_is_gone_is_seen_and_stopped(
    proposal: Proposal, home: Home, free_port: int
) -> None:
    service = start(home, spec_of(proposal, home, free_port), is_ready=True)
    home.services.rename(home.root / "elsewhere")
    assert [found.name for found in all_services(home)] == [NAME]
    await stop_all(home)
    assert not any(process.is_alive(pid) for pid in pids(service))
    assert all_services(home) == []


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("is_dead", [True, False], ids=["dead", "stopped"])
async def test_what_has_ended_can_be_started_again(
    proposal: Proposal, home: Home, free_port: int, is_dead: bool, damage: Damage
) -> None:
    """With every file damaged at once: the next start writes them all anew."""
    spec = spec_of(proposal, home, free_port)
    service = start(home, spec, is_ready=True)
    if is_dead:
        process.send(pids(service)[0], signal.SIGKILL)
        wait_until(home, lambda found: found.phase == "dead")
    else:
        await stop_all(home)
    for name in [*OWN_FILES, *(f"../../{name}" for name in HOME_FILES)]:
        if (service.folder / name).exists():
            damage(service.folder / name)
    listed = [found.phase for found in all_services(home)]
    assert listed == (["dead"] if is_dead and damage is not missing else [])
    with lock(service.folder / "work.lock"):
        remove_files(service.folder)
    again = start(home, spec, is_ready=True)
    assert wait_until(home, lambda found: found.phase == "ready").state == again.state
    assert read_spec(service.folder) == spec
    await stop_all(home)
    assert all_services(home) == [] and process.port_is_free(free_port)


async def test_a_guarded_service_is_not_started_without_its_key(
    proposal: Proposal, home: Home, free_port: int
) -> None:
    spec = replace(spec_of(proposal, home, free_port), is_guarded_by_key=True, secrets="/nowhere")
    path = folder_of(home, NAME)
    write_spec(path, spec)
    start_supervisor(path)
    ended = wait_until(home, lambda found: found.state is not None and found.state.ended_at is not None)
    assert ended.state and "there is no key in /nowhere" in (ended.state.why or "")


async def test_up_verifies_again_what_has_lost_its_report(
    proposal: Proposal, home: Home, free_port: int
) -> None:
    """It goes on with what runs; what comes of it is a matter of other tests."""
    launch = replace(proposal.plan.launch, port=free_port)
    proposal = replace(proposal, plan=replace(proposal.plan, launch=launch))
    start(home, replace(spec_of(proposal, home, free_port)), is_ready=True)
    other_json(folder_of(home, NAME) / "report.json")
    seen = []
    with pytest.raises(firesteel.FiresteelError):
        async for event in bring_up(proposal, home):
            seen.append(getattr(event, "text", ""))
    assert any("continuing from there" in text for text in seen), seen


# --- the commands ---


@needs_programs("pgrep")
@pytest.mark.real
def test_up_ps_and_down(quick_home: Home, free_port: int) -> None:
    """state.json first, then spec.json and the lock: `up` tells it, `down` stops it, `up` serves again."""
    damage = folder
    up = ["up", "--port", str(free_port)]
    first = run_firesteel(quick_home.root, *up)
    assert first.code == 0, first.err
    path = folder_of(quick_home, NAME)
    damage(path / "state.json")
    rows = run_firesteel(quick_home.root, "ps", "--json").json["services"]
    assert [(row["phase"], bool(row["pid"])) for row in rows] == [("ready", True)]
    assert "already up" in run_firesteel(quick_home.root, *up).err
    damage(path / "supervisor.lock")
    damage(path / "spec.json")
    listed = run_firesteel(quick_home.root, "ps")
    assert str(free_port) in listed.out and "next: firesteel down smollm2" in listed.out
    refused = run_firesteel(quick_home.root, *up)
    assert refused.code == 1 and "next: firesteel down smollm2, then firesteel up smollm2" in refused.err
    down = run_firesteel(quick_home.root, "down")
    assert down.code == 0 and process.port_is_free(free_port), down.err
    again = run_firesteel(quick_home.root, *up)
    assert again.code == 0, again.err
    assert (
        subprocess.run(["pgrep", "-f", str(path)], capture_output=True, check=False).stdout.count(b"\n") >= 1
    )
