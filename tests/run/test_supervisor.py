"""The supervisor with real processes: whatever is killed, nothing is left and the files tell the truth."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import firesteel
from firesteel.edge.home import Home, is_locked, lock, write_text
from firesteel.edge.host import process
from firesteel.edge.host.memory import meminfo
from firesteel.engines.logs import reported_memory
from firesteel.errors import FiresteelError
from firesteel.run.down import stop
from firesteel.run.service import (
    Service,
    ServiceSpec,
    ServiceState,
    all_services,
    death,
    lines_of_last_start,
    load,
    read_state,
    write_spec,
    write_state,
)
from firesteel.run.spec import REAPER
from firesteel.run.start import start_supervisor, wait_until_healthy
from firesteel.run.supervise import disk_writer, monitor, supervisor

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
        spec = ServiceSpec(
            "one", "http://127.0.0.1:9", "one", argv, memory_floor_bytes=floor, stop_grace_s=grace_s
        )
        folder = home.services / "one"
        write_spec(folder, spec)
        start_supervisor(folder)
        until(lambda: (found := load(home, "one")) is not None and found.state is not None)
        service = load(home, "one")
        assert service is not None
        started.append(service)
        return service

    yield run
    for service in started:
        assert service.state is not None
        process.send(service.state.supervisor, signal.SIGKILL)


def until(holds: Callable[[], bool], limit_s: float = 120) -> None:
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


def test_a_running_engine_is_starting_until_it_is_verified(home: Home, start: Callable[..., Service]) -> None:
    service = start(SLEEPS)
    assert service.phase == "starting"
    (service.folder / "report.json").write_text("{}")
    assert now(home).phase == "starting"
    (service.folder / "report.json").write_text('{"name": "one"}')
    assert now(home).phase == "ready"


def test_kill_9_of_the_engine_is_reported(home: Home, start: Callable[..., Service]) -> None:
    service = start(SLEEPS)
    process.send(engine_of(service), signal.SIGKILL)
    until(lambda: now(home).phase == "dead")
    assert death(now(home).state) == "the engine was killed by signal 9 (SIGKILL)"


def test_kill_9_of_the_reaper_leaves_no_worker(home: Home, start: Callable[..., Service]) -> None:
    """As vLLM: its worker, which holds the GPU's memory, is no child of the engine's parent."""
    worker = "import time; time.sleep(600)"
    program = (
        "import subprocess, sys, time; "
        f"child = subprocess.Popen([sys.executable, '-c', {worker!r}], start_new_session=True); "
        "print('worker', child.pid, flush=True); time.sleep(600)"
    )
    service = start((sys.executable, "-I", "-S", REAPER, sys.executable, "-c", program))
    log = service.folder / "engine.log"
    until(lambda: log.exists() and log.read_text().endswith("\n"))
    started = process.find(int(log.read_text().split()[1]))
    assert started is not None
    process.send(engine_of(service), signal.SIGKILL)
    until(lambda: now(home).phase == "dead")
    until(lambda: not process.is_alive(started))


def test_kill_9_of_the_supervisor_kills_the_engine(home: Home, start: Callable[..., Service]) -> None:
    service = start(SLEEPS)
    assert service.state is not None
    until(lambda: read_state(service.folder) is not None)  # what it has in memory alone is gone with it
    process.send(service.state.supervisor, signal.SIGKILL)
    until(lambda: now(home).phase == "dead")  # not before its engine is gone
    assert not process.is_alive(engine_of(service))
    assert "supervisor was killed" in death(now(home).state)


def test_a_service_is_not_dead_while_its_engine_is_alive(home: Home) -> None:
    """The kernel releases the lock of a killed supervisor before it kills the engine."""
    folder = home.services / "one"
    write_spec(folder, ServiceSpec("one", "http://127.0.0.1:9", "one", SLEEPS))
    with subprocess.Popen(SLEEPS, stdout=subprocess.DEVNULL) as engine:
        write_state(folder, ServiceState(process.Pid(2**22 + 1, 1), process.find(engine.pid), 0))
        assert now(home).phase == "stopping"
        engine.kill()
    assert now(home).phase == "dead"


def test_a_process_is_alive_while_one_of_its_threads_is() -> None:
    """A killed engine with many threads: its main thread may end first, and the port is still taken."""
    exit_number = {"x86_64": 60, "aarch64": 93}[os.uname().machine]  # ends the calling thread only
    program = (
        "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(600,)).start(); "
        f"ctypes.CDLL(None).syscall({exit_number}, 0)"
    )
    child = subprocess.Popen((sys.executable, "-c", program))
    pid = process.find(child.pid)
    assert pid is not None
    status = Path(f"/proc/{child.pid}/stat")
    try:
        until(lambda: status.read_text().rpartition(")")[2].split()[0] == "Z")
        assert child.poll() is None and process.is_alive(pid)
    finally:
        child.kill()
        child.wait()
    assert not process.is_alive(pid)


def test_sigterm_to_the_supervisor_stops_both(home: Home, start: Callable[..., Service]) -> None:
    service = start(SLEEPS)
    assert service.state is not None
    process.send(service.state.supervisor, signal.SIGTERM)
    until(lambda: not is_locked(service.folder / "supervisor.lock"))
    assert not process.is_alive(engine_of(service))
    assert death(now(home).state) == "it was told to stop"


def test_a_stopped_engine_ends_by_sigterm(home: Home, start: Callable[..., Service]) -> None:
    service = start(SLEEPS)
    process.send(engine_of(service), signal.SIGSTOP)
    assert service.state is not None
    process.send(service.state.supervisor, signal.SIGTERM)
    until(lambda: now(home).phase == "dead")
    ended = now(home).state
    assert ended is not None and ended.exit_code == -signal.SIGTERM


def test_an_engine_that_ignores_sigterm_is_killed(home: Home, start: Callable[..., Service]) -> None:
    service = start(IGNORES_SIGTERM, grace_s=0.5)
    until(lambda: service.log.exists() and "up" in service.log.read_text())
    assert service.state is not None
    process.send(service.state.supervisor, signal.SIGTERM)
    until(lambda: now(home).phase == "dead")
    ended = now(home).state
    assert ended is not None and ended.exit_code == -signal.SIGKILL


def test_the_guard_stops_an_engine_below_the_floor(home: Home, start: Callable[..., Service]) -> None:
    start(SLEEPS, floor=2**60)
    until(lambda: now(home).phase == "dead")
    assert "the memory guard stopped it" in death(now(home).state)


def test_the_guard_does_not_stop_a_serving_model_while_another_one_loads(
    home: Home, start: Callable[..., Service]
) -> None:
    """The other one is stopped first: it takes the memory, and its own supervisor guards it."""
    left = meminfo().available_bytes
    loads = ServiceSpec("two", "http://127.0.0.1:9", "two", SLEEPS)
    write_spec(home.services / "two", loads)
    start_supervisor(home.services / "two")
    until(lambda: (found := load(home, "two")) is not None and found.phase == "starting")
    write_text(home.services / "one" / "report.json", '{"name": "one"}')
    start(SLEEPS, floor=left + left // 2)  # below the floor, well above half of it
    time.sleep(4)  # four samples; two would be enough
    found = load(home, "one")
    assert found is not None and found.phase == "ready", found
    two = load(home, "two")
    assert two is not None and two.state is not None
    process.send(two.state.supervisor, signal.SIGKILL)
    until(lambda: (found := load(home, "one")) is not None and found.phase == "dead")
    found = load(home, "one")
    assert found is not None and "floor" in death(found.state)


def test_a_missing_engine(home: Home, start: Callable[..., Service]) -> None:
    start(("/nowhere/engine",))
    until(lambda: now(home).phase == "dead")
    assert death(now(home).state) == "/nowhere/engine cannot be started: No such file or directory"


def test_an_engine_that_exits(home: Home, start: Callable[..., Service]) -> None:
    start((sys.executable, "-c", "import sys; print('bad flag'); sys.exit(2)"))
    until(lambda: now(home).phase == "dead")
    assert death(now(home).state) == "the engine exited with code 2"
    assert "bad flag" in now(home).log.read_text()


def test_a_second_supervisor_leaves_the_first_alone(home: Home, start: Callable[..., Service]) -> None:
    service = start(SLEEPS)
    second = start_supervisor(service.folder)
    assert os.waitstatus_to_exitcode(os.waitpid(second, 0)[1]) == 0
    assert now(home).state == service.state
    assert process.is_alive(engine_of(service))


def test_a_pid_used_again_is_another_process() -> None:
    mine = process.this_process()
    assert process.is_alive(mine)
    assert not process.is_alive(process.Pid(mine.number, mine.started_ticks + 1))
    assert process.find(2**22 + os.getpid()) is None


async def test_the_files_of_a_supervisor_without_a_pid_are_kept(home: Home) -> None:
    """`down` must not report a service gone, nor remove its files, while the supervisor's lock is held."""
    folder = home.services / "one"
    write_spec(folder, ServiceSpec("one", "http://127.0.0.1:9", "one", SLEEPS, stop_grace_s=0.1))
    program = (
        "import sys; from pathlib import Path; from firesteel.edge.home import lock; "
        "held = lock(Path(sys.argv[1])); held.__enter__(); print('held', flush=True); sys.stdin.read()"
    )
    argv = [sys.executable, "-c", program, str(folder / "supervisor.lock")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        with pytest.raises(FiresteelError, match="one does not stop"):
            async for _ in stop(now(home)):
                pass
        assert now(home).phase == "starting"
        holder.kill()
    async for _ in stop(now(home)):
        pass
    assert load(home, "one") is None


async def test_up_does_not_wait_for_a_supervisor_that_dies_at_once(home: Home) -> None:
    spec = ServiceSpec("one", "http://127.0.0.1:9", "one", SLEEPS)
    plan = firesteel.plan("smollm2", host_name="gb10")[0].plan
    write_spec(home.services / "one", spec)
    with pytest.raises(FiresteelError, match="one did not start: it never started"):
        async for _ in wait_until_healthy(home, spec, plan, lambda: True):
            pass


async def test_a_supervisor_that_has_just_been_started_is_stopped(home: Home) -> None:
    """It has neither its lock nor a state yet; said to be gone, it would start its engine a moment later."""
    folder = home.services / "one"
    write_spec(folder, ServiceSpec("one", "http://127.0.0.1:9", "one", SLEEPS))
    number = start_supervisor(folder)
    os.kill(number, signal.SIGSTOP)
    pid = process.find(number)
    assert pid is not None
    try:
        assert now(home).phase == "starting"
        async for _ in stop(now(home)):
            pass
        assert process.has_ended(number)
        assert all_services(home) == []
    finally:
        process.send(pid, signal.SIGKILL)


def test_a_process_can_be_found_as_soon_as_it_is_started(tmp_path: Path) -> None:
    """The kernel lets its parent continue before the arguments are there, often on a busy machine."""
    argv = [shutil.which("sleep") or "/bin/sleep", "600"]
    for _ in range(50):
        number = process.start_detached(argv, tmp_path / "log", {})
        found = [arguments for pid, arguments in process.command_lines() if pid.number == number]
        os.kill(number, signal.SIGKILL)
        os.waitpid(number, 0)
        assert found == [tuple(argv)]


def test_is_locked_does_not_take_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            is_locked(path)

    looker = threading.Thread(target=look)
    looker.start()
    try:
        for _ in range(500):
            with lock(path):
                assert is_locked(path)
    finally:
        done.set()
        looker.join()


def test_a_large_log_is_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_writer, "MAX_LOG_BYTES", 10)
    log = tmp_path / "engine.log"
    with log.open("ab") as engine:
        engine.write(b"a first long line\n")
        engine.flush()
        disk_writer.bound_log(log)
        engine.write(b"on\n")
    assert log.read_bytes() == b"on\n"
    assert (tmp_path / "engine.log.1").read_bytes() == b"a first long line\n"


def test_files_are_private(home: Home, start: Callable[..., Service]) -> None:
    service = start(SLEEPS)
    modes = {
        path.name: path.stat().st_mode & 0o077 for path in service.folder.iterdir() if path.suffix != ".lock"
    }
    assert set(modes.values()) == {0}, modes
    assert service.folder.stat().st_mode & 0o077 == 0


SERVES = """
import http.server, sys
class Serve(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"ok")
    def log_message(self, *words): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Serve).serve_forever()
"""


def test_a_verified_engine_is_restarted_and_ready_after_verification(home: Home, free_port: int) -> None:
    """Its `verify` fails: what serves is no engine. So it is ended, and says why, and is not tried again."""
    argv = (sys.executable, "-c", SERVES, str(free_port))
    folder = home.services / "one"
    write_spec(folder, ServiceSpec("one", f"http://127.0.0.1:{free_port}", "one", argv, time_share=0.01))
    start_supervisor(folder)
    until(lambda: (found := load(home, "one")) is not None and found.state is not None)
    (folder / "report.json").write_text('{"name": "one"}')
    assert now(home).phase == "ready"
    first = engine_of(now(home))
    process.send(first, signal.SIGKILL)
    until(lambda: (state := now(home).state) is not None and state.restarts == 1)
    assert now(home).phase == "starting"
    assert now(home).state is not None and "killed by signal 9 (SIGKILL); start 1 of 7" in death(
        now(home).state
    )
    until(lambda: now(home).phase == "dead")
    assert "its answers were wrong after a restart" in death(now(home).state)


def test_a_stop_while_an_engine_ends_is_not_lost(home: Home) -> None:
    """The supervisor writes that the engine has ended before it decides about the next start."""
    folder = home.services / "one"
    for _ in range(5):
        write_spec(folder, ServiceSpec("one", "http://127.0.0.1:9", "one", SLEEPS))
        (folder / "report.json").write_text('{"name": "one"}')
        start_supervisor(folder)
        until(lambda: (found := load(home, "one")) is not None and found.phase == "ready")
        service = now(home)
        assert service.state is not None
        process.send(engine_of(service), signal.SIGKILL)
        until(lambda: now(home).phase != "ready")
        process.send(service.state.supervisor, signal.SIGTERM)
        until(lambda: not is_locked(folder / "supervisor.lock"), 30)
        assert death(now(home).state) == "it was told to stop"


def test_an_engine_that_keeps_dying_is_not_restarted_forever(home: Home) -> None:
    folder = home.services / "one"
    log = folder / "engine.log"
    argv = (sys.executable, "-c", "import time; print('up', flush=True); time.sleep(0.3)")
    write_spec(folder, ServiceSpec("one", "http://127.0.0.1:9", "one", argv, time_share=0.01))
    (folder / "report.json").write_text('{"name": "one"}')
    start_supervisor(folder)
    until(lambda: now(home).phase == "dead")
    state = now(home).state
    assert state is not None and state.restarts == log.read_text().count("up") - 1 == 7
    assert "exited with code 0; not started again: it ended 8 times" in death(state)


def test_memory_is_that_of_the_last_start(home: Home) -> None:
    """Weights of 184 MiB were reported for 92, and saved for the next plan."""
    folder, log = home.services / "one", home.services / "one" / "engine.log"
    line = "load_tensors:   CPU_Mapped model buffer size =    92.12 MiB"
    argv = (sys.executable, "-c", f"import time; print({line!r}, flush=True); time.sleep(0.3)")
    write_spec(folder, ServiceSpec("one", "http://127.0.0.1:9", "one", argv, time_share=0.01))
    (folder / "report.json").write_text('{"name": "one"}')
    start_supervisor(folder)
    until(lambda: now(home).phase == "dead")
    assert log.read_text().count(line) == 8
    text = "\n".join(lines_of_last_start(log, 1000))
    assert reported_memory("llamacpp", text).weights_bytes == round(92.12 * 2**20)
    assert lines_of_last_start(log.with_name("none"), 9) == []


STUCK = """
import http.server, sys
class Serve(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
        self.wfile.write(b"llamacpp:requests_processing 1\\nllamacpp:tokens_predicted_total 7\\n")
    def log_message(self, *words): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Serve).serve_forever()
"""


def test_an_engine_without_progress_is_killed(home: Home, free_port: int) -> None:
    """`/health` says 200 all the time."""
    folder = home.services / "one"
    argv = (sys.executable, "-c", STUCK, str(free_port))
    write_spec(folder, ServiceSpec("one", f"http://127.0.0.1:{free_port}", "one", argv, time_share=0.01))
    start_supervisor(folder)
    until(lambda: (found := load(home, "one")) is not None and found.state is not None)
    (folder / "report.json").write_text('{"name": "one"}')
    until(lambda: (state := now(home).state) is not None and state.restarts == 1)
    assert "the engine is stuck: 1 requests running" in death(now(home).state)
    service = now(home)
    assert service.state is not None
    process.send(service.state.supervisor, signal.SIGTERM)
    until(lambda: now(home).phase == "dead")


@pytest.mark.parametrize("name", ["spec.json", "state.json", "report.json"])
@pytest.mark.parametrize(
    "damage", ["", "{", "[" * 100_000, '{"restarts": "many", "start": 7, "name": []}', "a folder"]
)
def test_a_service_with_damaged_files_is_listed(
    home: Home, start: Callable[..., Service], name: str, damage: str
) -> None:
    """A supervisor that lives is a service; and `down` ends it as long as it is known who keeps it."""
    service = start(SLEEPS)
    place = service.folder / name
    place.unlink(missing_ok=True)
    if damage == "a folder":
        place.mkdir()
    else:
        place.write_text(damage)
    assert [service.name for service in all_services(home)] == ["one"]
    assert now(home).phase in ("starting", "ready")


async def test_down_of_a_service_without_a_spec(home: Home, start: Callable[..., Service]) -> None:
    service = start(SLEEPS)
    (service.folder / "spec.json").write_text("{")
    async for _ in stop(now(home)):
        pass
    assert not process.is_alive(engine_of(service)) and not is_locked(service.folder / "supervisor.lock")


def test_a_removed_log_stops_nothing(home: Home, start: Callable[..., Service]) -> None:
    service = start(SLEEPS)
    service.log.unlink()
    time.sleep(2.5)  # two looks of the supervisor: what must not happen has no event
    assert now(home).phase == "starting" and process.is_alive(engine_of(service))


async def test_down_of_a_supervisor_in_sigstop(home: Home, start: Callable[..., Service]) -> None:
    service = start(SLEEPS)
    assert service.state is not None
    process.send(service.state.supervisor, signal.SIGSTOP)
    async for _ in stop(now(home)):
        pass
    assert load(home, "one") is None and not process.is_alive(service.state.supervisor)


def test_a_signal_that_was_lost_in_a_finalizer_stops_it_all_the_same(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python ignores what a signal handler raises inside `__del__`."""
    folder = home.services / "one"
    spec = ServiceSpec("one", "http://127.0.0.1:9", "one", SLEEPS)
    write_spec(folder, spec)
    monkeypatch.setattr(supervisor, "_stop_signalled", True)
    with subprocess.Popen(SLEEPS, stdout=subprocess.DEVNULL) as engine:
        state = ServiceState(process.this_process(), process.find(engine.pid), 0)
        writer = disk_writer.DiskWriter(folder)
        watch = monitor.EngineMonitor(spec, state, engine, writer, supervisor._start_verify)
        with pytest.raises(supervisor._StopRequested):
            watch.run(supervisor._check_signalled)
        watch.close()
        engine.kill()


def test_a_second_signal_is_ignored(home: Home, start: Callable[..., Service]) -> None:
    service = start(IGNORES_SIGTERM, grace_s=1)
    assert service.state is not None
    for _ in range(3):
        process.send(service.state.supervisor, signal.SIGTERM)
    until(lambda: now(home).phase == "dead")
    assert death(now(home).state) == "it was told to stop"
    assert "Traceback" not in (service.folder / "supervisor.log").read_text()
