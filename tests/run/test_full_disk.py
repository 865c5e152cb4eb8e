"""A disk that is full, read-only or stuck ends no engine, and a restart waits until it is over.

A small tmpfs as FIRESTEEL_HOME where the tests may mount one; for everybody, a supervisor whose writes fail.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.conftest import _home_with, quick_engines, run_firesteel

import firesteel
from firesteel.edge.home import Home, write_text
from firesteel.edge.host import process
from firesteel.edge.http import sync_client
from firesteel.errors import FiresteelError, HostNotReady
from firesteel.run.service import Service, ServiceSpec, death, folder_of, hang_of, load, write_spec
from firesteel.run.start import start_failure, wait_until_healthy
from firesteel.run.supervise import supervisor

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")

MIB = 2**20
SIZE_MIB = 264
"""`up` asks for 256 MiB of free space."""
SERVES = """
import http.server, sys
class Serve(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"ok")
    def log_message(self, *words): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Serve).serve_forever()
"""
SUPERVISOR = """
import os, sys, time
from pathlib import Path
from firesteel.run.start import start_failure, wait_until_healthy
from firesteel.run.supervise import supervisor
folder, number = Path(sys.argv[-1]), int(sys.argv[1])
def fsync(file, done=os.fsync):
    while (folder / "FAILS").exists():
        if number:
            raise OSError(number, os.strerror(number))
        time.sleep(0.1)
    done(file)
os.fsync = fsync
sys.exit(supervisor.supervise(folder))
"""
"""A supervisor for which writing a file ends with that error, or not at all, while `FAILS` exists."""


def until(holds: Callable[[], bool], limit_s: float = 120) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def look(home: Home, name: str = "one") -> Service:
    service = load(home, name)
    assert service is not None
    return service


def engine(home: Home, name: str = "one") -> process.Pid:
    state = look(home, name).state
    assert state is not None and state.engine is not None
    return state.engine


def supervisor_of(home: Home, name: str = "one") -> process.Pid:
    state = look(home, name).state
    assert state is not None
    return state.supervisor


def is_restarted(home: Home, name: str = "one") -> bool:
    service = look(home, name)
    return service.phase == "ready" and service.state is not None and service.state.restarts == 1


@pytest.fixture
def start(tmp_path: Path, free_port: int) -> Iterator[Callable[[int], Home]]:
    """A supervisor whose writes can fail, and whose notes never go anywhere."""
    home, started = Home(tmp_path), []

    def run(number: int) -> Home:
        folder, url = folder_of(home, "one"), f"http://127.0.0.1:{free_port}"
        argv = (sys.executable, "-c", SERVES, str(free_port))
        write_spec(folder, ServiceSpec("one", url, "one", argv, is_command=True, time_share=0.01))
        write_text(folder / "report.json", '{"name": "one"}')
        module = "firesteel.run.supervise.supervisor"
        words = [sys.executable, "-c", SUPERVISOR, str(number), module, str(folder)]
        with Path("/dev/full").open("wb") as full:
            started.append(subprocess.Popen(words, stdout=full, stderr=full))
        until(lambda: (found := load(home, "one")) is not None and found.phase == "ready")
        return home

    yield run
    for child in started:
        child.terminate()
        child.wait()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO, errno.EMFILE, 0])
def test_what_cannot_be_written_ends_nothing(start: Callable[[int], Home], number: int) -> None:
    """0: the disk does not answer."""
    home = start(number)
    first, watched_by = engine(home), supervisor_of(home)
    (folder_of(home, "one") / "FAILS").touch()
    process.send(first, signal.SIGSTOP)
    until(lambda: (state := look(home).state) is not None and state.hang is not None)
    assert "stopped, as by SIGSTOP" in (hang_of(look(home).state) or "")
    process.send(first, signal.SIGCONT)
    until(lambda: (state := look(home).state) is not None and state.hang is None)
    assert look(home).phase == "ready" and process.is_alive(first)

    process.send(first, signal.SIGKILL)
    until(lambda: "it is started again when there is room" in death(look(home).state))
    problem = {errno.ENOSPC: "is full", errno.EROFS: "Read-only file system", 0: "does not answer"}
    why = death(look(home).state)
    assert "killed by signal 9 (SIGKILL)" in why
    assert problem.get(number, os.strerror(number)) in why
    assert look(home).phase == "starting" and process.is_alive(watched_by)
    (folder_of(home, "one") / "FAILS").unlink()
    until(lambda: is_restarted(home))
    assert supervisor_of(home) == watched_by


async def test_how_a_start_failed_is_known_although_it_cannot_be_written(tmp_path: Path) -> None:
    home, folder = Home(tmp_path), folder_of(Home(tmp_path), "one")
    argv = (sys.executable, "-c", "import sys; sys.exit(3)")
    spec = ServiceSpec("one", "http://127.0.0.1:1", "one", argv, time_share=0.01)
    write_spec(folder, spec)
    (folder / "FAILS").touch()
    words = [sys.executable, "-c", SUPERVISOR, str(errno.ENOSPC), "firesteel.run.supervise.supervisor"]
    with subprocess.Popen([*words, str(folder)], stdout=subprocess.DEVNULL) as child:
        try:
            plan = firesteel.plan("smollm2", host_name="gb10")[0].plan
            with pytest.raises(FiresteelError, match="one did not start: the engine exited with code 3"):
                async for _ in wait_until_healthy(home, spec, plan, lambda: child.poll() is not None):
                    pass
            assert look(home).phase != "ready" and child.poll() is None
            (folder / "FAILS").unlink()
            assert child.wait(timeout=120) == 0
            assert death(look(home).state) == "the engine exited with code 3"
        finally:
            child.kill()


def test_without_file_handles(start: Callable[[int], Home]) -> None:
    home = start(errno.ENOSPC)
    first, watched_by = engine(home), supervisor_of(home)
    before = resource.prlimit(watched_by.number, resource.RLIMIT_NOFILE)
    resource.prlimit(watched_by.number, resource.RLIMIT_NOFILE, (3, before[1]))
    time.sleep(3)  # some looks: what must not happen has no event
    assert process.is_alive(first) and process.is_alive(watched_by)
    process.send(first, signal.SIGKILL)
    until(lambda: "Too many open files" in death(look(home).state))
    assert process.is_alive(watched_by)
    resource.prlimit(watched_by.number, resource.RLIMIT_NOFILE, before)
    until(lambda: is_restarted(home))


def test_an_engine_that_cannot_be_asked_is_not_silent(free_port: int) -> None:
    """For want of a file handle: the engine could answer."""
    with subprocess.Popen([sys.executable, "-c", SERVES, str(free_port)]) as server:
        asks = sync_client.HealthPoller(f"http://127.0.0.1:{free_port}", None, interval_s=0.05, metrics_s=0)
        asks.start()
        until(lambda: asks.is_healthy and asks.metrics is not None)
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
        try:
            until(lambda: asks.answered_at is None)
            metrics = asks.metrics
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert metrics is not None and metrics[1] is not None
        until(lambda: asks.answered_at is not None)
        asks.stop()
        server.kill()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"not even root may mount here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(disk: Path) -> None:
    with (disk / "filler").open("ab", buffering=0) as filler:
        try:
            while True:
                filler.write(b"x" * 4096)
        except OSError as error:
            assert error.errno == errno.ENOSPC


@needs_root
@pytest.mark.usefixtures("pulled")  # skips where the embedded engine cannot run
def test_up_on_a_full_disk(small_disk: Path) -> None:
    (small_disk / "other").write_bytes(bytes(32 * MIB))
    ran = run_firesteel(small_disk, "up")
    assert ran.code == 5
    assert "needs 256.0 MiB, the disk under" in ran.err and "next: free some space" in ran.err


@needs_root
def test_a_start_that_fails_on_a_full_disk_says_so(small_disk: Path) -> None:
    spec = ServiceSpec("one", "http://127.0.0.1:1", "one", ("x",))
    write_spec(folder_of(Home(small_disk), "one"), spec)
    fill(small_disk)
    error = start_failure(Home(small_disk), spec)
    assert isinstance(error, HostNotReady) and "0 B free" in error.what and "free some space" in error.next


@needs_root
def test_a_disk_that_fills_while_writing(small_disk: Path) -> None:
    fill(small_disk)
    with pytest.raises(HostNotReady, match="is full"):
        write_text(small_disk / "state.json", "x" * MIB)
    assert not (small_disk / "state.json").exists()


@pytest.fixture
def small_home(pulled: Home, tmp_path: Path, small_disk: Path) -> Iterator[Home]:
    """A home on the small disk, with an engine that needs no disk."""
    yield from _home_with(pulled, quick_engines(pulled, tmp_path), small_disk)


@needs_root
def test_a_service_on_a_full_disk(small_home: Home, small_disk: Path, free_port: int) -> None:
    ran = run_firesteel(small_home.root, "up", "smollm2", "--port", str(free_port))
    assert ran.code == 0, ran.err
    first, watched_by = engine(small_home, "smollm2"), supervisor_of(small_home, "smollm2")
    fill(small_disk)
    process.send(first, signal.SIGSTOP)
    time.sleep(4)
    process.send(first, signal.SIGCONT)
    until(lambda: look(small_home, "smollm2").phase == "ready")
    assert process.is_alive(first) and process.is_alive(watched_by)
    process.send(first, signal.SIGKILL)
    until(lambda: "when there is room" in death(look(small_home, "smollm2").state))
    row = run_firesteel(small_home.root, "ps", "--json").json["services"][0]
    assert "killed by signal 9" in row["why"] and "is full" in row["why"]
    again = run_firesteel(small_home.root, "up", "smollm2", "--port", str(free_port))
    assert again.code == 5 and "when there is room" in again.err and "free some space" in again.err
    (small_disk / "filler").unlink()
    until(lambda: is_restarted(small_home, "smollm2"), 300)
    assert supervisor_of(small_home, "smollm2") == watched_by


@needs_root
def test_a_verification_on_a_full_disk_fails_no_engine(
    small_home: Home, small_disk: Path, free_port: int
) -> None:
    """Its output does not decide."""
    assert run_firesteel(small_home.root, "up", "smollm2", "--port", str(free_port)).code == 0
    fill(small_disk)
    output = os.memfd_create("output")
    with supervisor._start_verify(small_home.services / "smollm2", output) as verify:
        assert verify.wait() == 0, os.pread(output, MIB, 0).decode()
    os.close(output)
