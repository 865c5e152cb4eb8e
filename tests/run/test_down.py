"""`down` says that memory is free when it is, whatever else the host does meanwhile."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.conftest import unclosed_generators

import firesteel.library.run
from firesteel.edge.home import Home
from firesteel.edge.host import process
from firesteel.errors import FiresteelError
from firesteel.run.down import stop
from firesteel.run.events import PhaseDone, PhaseProgress
from firesteel.run.service import ServiceSpec, ServiceState, load, pick, read_state, write_spec
from firesteel.run.start import start_supervisor

MIB = 2**20
HOLDS = "import sys, time; held = b'x' * int(sys.argv[1]); print('holds', flush=True); time.sleep(600)"


def started(home: Home, held_bytes: int) -> ServiceState:
    """A service whose engine holds that much."""
    folder = home.services / "one"
    write_spec(folder, ServiceSpec("one", "", "one", (sys.executable, "-c", HOLDS, str(held_bytes))))
    start_supervisor(folder)
    deadline = time.monotonic() + 120
    log = folder / "engine.log"
    # The engine may print before its supervisor writes down its number.
    while not ((state := read_state(folder)) and state.engine and "holds" in log.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return state


async def test_memory_that_another_program_takes_at_once_was_free(tmp_path: Path) -> None:
    """The host's counter does not rise; the engine's memory has gone with its process all the same."""
    home = Home(tmp_path)
    state = started(home, 100 * MIB)
    other, seen = None, []
    try:
        async for event in stop(pick(home, "one")):
            if isinstance(event, PhaseProgress) and other is None:
                argv = [sys.executable, "-c", HOLDS, str(400 * MIB)]
                other = subprocess.Popen(argv, stdout=subprocess.PIPE)
                assert other.stdout and other.stdout.readline()
            if isinstance(event, PhaseDone):
                seen.append(event.text)
    finally:
        assert other and other.stdout
        other.kill()
        other.wait()
        other.stdout.close()
    assert not process.is_alive(state.supervisor)
    assert len(seen) == 1 and seen[0].endswith("MiB are free again"), seen


async def test_a_stop_that_is_left_ends_all_that_it_began(tmp_path: Path) -> None:
    home = Home(tmp_path)
    started(home, 1)
    with unclosed_generators() as unclosed:
        stopping = stop(pick(home, "one"))
        assert isinstance(await anext(stopping), PhaseProgress)
        await stopping.aclose()
        plan = firesteel.library.run.DownPlan((pick(home, "one"),), ())
        stopping = firesteel.library.run.stop(plan)
        assert isinstance(await anext(stopping), PhaseProgress)
        await stopping.aclose()
    assert unclosed == []
    async for _ in stop(pick(home, "one")):
        pass


def test_a_program_with_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a driver holds may come back later than its process ends."""
    device = tmp_path / "nvidia0"
    device.touch()
    argv = ["sh", "-c", f"exec 9<{device}; echo open; sleep 600 & wait"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as program:
        assert program.stdout and program.stdout.readline()
        pid = process.find(program.pid)
        assert pid and not process.has_gpu(pid)
        monkeypatch.setattr(process, "GPU_DEVICES", str(tmp_path))
        assert process.has_gpu(pid)
        for number in reversed(process.tree(program.pid)):
            process.send(process.find(number) or pid, signal.SIGKILL)


DOCKERS = {
    "stuck": ("case $1 in ps) echo 0123456789ab;; esac", "the container of one does not stop"),
    "silent": ("echo 'Cannot connect to the Docker daemon' >&2; exit 1", "docker does not answer"),
    "gone": ("case $1 in stop) exit 1;; esac", None),
}
"""A docker of which a container is never gone, one without its daemon, one that had stopped it before."""


@pytest.mark.parametrize("kind", DOCKERS)
async def test_a_container_has_stopped_only_where_docker_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    script, error = DOCKERS[kind]
    (tmp_path / "docker").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    home, stop_command = Home(tmp_path / "home"), ("docker", "stop", "firesteel-one")
    spec = ServiceSpec("one", "", "one", ("docker", "run"), stop=stop_command, stop_grace_s=0.1)
    write_spec(home.services / "one", spec)
    if error is None:
        assert [event async for event in stop(pick(home, "one"))][-1] == PhaseDone("stop", "one has stopped")
        return
    with pytest.raises(FiresteelError, match=error):
        async for _ in stop(pick(home, "one")):
            pass
    assert load(home, "one"), "its files stay, so that `ps` still shows it"
