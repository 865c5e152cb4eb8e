"""The supervisor: one process per service, parent of the engine, owner of its log and of its memory guard.

    python -m firesteel.run.supervise.supervisor FOLDER

It holds `supervisor.lock` for life, so a held lock proves that it is alive. An engine that is a child process
is killed by the kernel when the supervisor dies; a container that outlives its supervisor is adopted by the
next one. An engine that was verified and then dies or hangs is restarted, a limited number of times and with
growing pauses, and verified again. SIGTERM stops the engine, then the supervisor.

Nothing else ends a healthy engine: no disk that is full, read-only or slow, no want of file handles. What
cannot be written waits (`disk_writer`), and so does a restart for as long as it would fail for that reason.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from firesteel.edge.docker.containers import is_container_running, logs_since
from firesteel.edge.home import Locked, lock, make_way, read_secrets
from firesteel.edge.host.process import die_with_parent, find, now, this_process, tree, uptime
from firesteel.run.service import (
    SERVICE_VARIABLE,
    STARTED_AGAIN,
    STATUS_FILE,
    STOP_REQUESTED,
    SUPERVISOR_LOCK,
    WAITS_FOR_ROOM,
    ServiceSpec,
    ServiceState,
    api_key,
    death,
    end_leftovers,
    own_reason,
    read_spec,
    read_state,
)
from firesteel.run.supervise.disk_writer import DiskWriter
from firesteel.run.supervise.exits import EngineExit, GiveUp, RestartAfter, decide
from firesteel.run.supervise.monitor import EngineMonitor, StopReason
from firesteel.values import replace

_POLL_S = 0.1
_URGENT_GRACE_S = 1.0
"""Replaces the usual grace when the guard finds that the host has no time left."""
_VERIFY_S = 1800
"""Timeout of the verification after a restart."""
_FINAL_WRITE_S = 5.0
_OBSTACLE_S = 2.0
"""Between two looks at whether a disk has room again."""
_PASSING = frozenset(
    (
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.EAGAIN,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
        errno.EIO,
    )
)
"""Why a program cannot be started now, and may be later."""


class _StopRequested(Exception):
    """SIGTERM or SIGINT came."""


_stop_signalled = False


def _on_signal(number: int, frame: object) -> None:
    global _stop_signalled
    _stop_signalled = True
    raise _StopRequested


def _note_signal(number: int, frame: object) -> None:
    """While an engine runs or ends, a request to stop waits: dropped, it would not prevent the next start."""
    global _stop_signalled
    _stop_signalled = True


def _check_signalled() -> None:
    """Python drops an exception that a handler raises inside a finalizer: then the flag still tells."""
    if _stop_signalled:
        raise _StopRequested


def supervise(folder: Path) -> int:
    spec = read_spec(folder)
    if spec is None:
        return 2
    try:
        with lock(folder / SUPERVISOR_LOCK):
            return _supervise(folder, spec)
    except Locked:
        return 0  # another supervisor runs this service


def _supervise(folder: Path, spec: ServiceSpec) -> int:
    writer = DiskWriter(folder)
    writer.start()
    state = _first_state(folder, spec)
    exits: tuple[EngineExit, ...] = ()
    try:
        while True:  # bounded: `decide` gives up
            _handle_signals(_on_signal)
            state, exit_ = _run_engine(writer, spec, state)
            exits = (*exits, exit_)
            if not (exit_.was_ready or state.restarts):  # it was never ready: `up` reports why
                _wait_until_written(writer)
                return 0
            is_cluster = (folder / STATUS_FILE).exists()
            choice = decide(exits, is_container=bool(spec.stop), is_cluster=is_cluster)
            if isinstance(choice, GiveUp):
                if exit_.kind in ("died", "stuck"):
                    writer.write(replace(state, why=f"{death(state)}; not started again: {choice.reason}"))
                _wait_until_written(writer)
                return 0
            state = _pause(writer, spec, state, choice)
    except _StopRequested:  # before the first engine, during a pause, or while an engine was being started
        _handle_signals(signal.SIG_IGN)
        _stop_container(spec, spec.stop_grace_s)
        writer.write(replace(state, ended_at=now(), why=STOP_REQUESTED))
        writer.wait(_FINAL_WRITE_S)
        return 0


def _wait_until_written(writer: DiskWriter) -> None:
    """As long as its disk takes no state, only this process knows how the engine ended. Or until a stop."""
    with suppress(_StopRequested):
        _handle_signals(_on_signal)
        while not writer.wait(_FINAL_WRITE_S):
            _check_signalled()


def _handle_signals(handler: Any) -> None:
    signal.signal(signal.SIGTERM, handler)
    signal.signal(signal.SIGINT, handler)


def _pause(writer: DiskWriter, spec: ServiceSpec, state: ServiceState, wait: RestartAfter) -> ServiceState:
    """Longer than planned while the disk has no room: the start would fail, and would count."""
    seconds = wait.seconds * spec.time_share
    why = f"{death(state)}; start {wait.number} of {wait.of} follows {seconds:.0f} s later"
    paused = replace(
        state, engine=None, ended_at=None, exit_code=None, why=why, is_stopping=False,
        restarts=state.restarts + 1, is_proved=False, hang=None,
    )  # fmt: skip
    writer.write(paused)
    _handle_signals(_on_signal)
    _sleep(seconds)
    while obstacle := writer.obstacle(_OBSTACLE_S):
        _wait_for(writer, paused, f"{death(state)}; {WAITS_FOR_ROOM}: {obstacle}")
    writer.write(paused)
    return paused


def _wait_for(writer: DiskWriter, paused: ServiceState, why: str) -> None:
    writer.write(replace(paused, why=why))
    _sleep(_OBSTACLE_S)


def _sleep(seconds: float) -> None:
    _check_signalled()
    time.sleep(seconds)
    _check_signalled()


def _run_engine(
    writer: DiskWriter, spec: ServiceSpec, state: ServiceState
) -> tuple[ServiceState, EngineExit]:
    """One run of the engine, from its start to its end."""
    folder, paused = writer.folder, state
    while True:
        began = uptime()
        try:
            engine = _start(folder, spec)
            break
        except OSError as error:
            why = f"{spec.start[0]} cannot be started: {error.strerror}"
            if not (state.restarts and error.errno in _PASSING):
                state = replace(state, ended_at=now(), exit_code=127, why=why)
                writer.write(state)
                return state, EngineExit("died", 0, 127)
            _wait_for(writer, paused, f"{why}; it is tried again until that is over")
    state = replace(state, engine=find(engine.pid))
    # From here on a signal is only noted: an exception out of `Popen.wait` can leave its lock taken, and the
    # supervisor would wait for the engine forever.
    _handle_signals(_note_signal)
    monitor = EngineMonitor(spec, state, engine, writer, _start_verify)
    try:
        reason = monitor.run(_check_signalled)
    except _StopRequested:
        _handle_signals(signal.SIG_IGN)
        reason = StopReason("requested", STOP_REQUESTED)
    finally:
        monitor.close()
    if reason:  # written before the stop, so that a command that sees the engine end can read why
        writer.write(replace(monitor.state, why=reason.text, is_stopping=True))
    grace_s = _URGENT_GRACE_S if reason and reason.is_urgent else spec.stop_grace_s
    code = _stop(engine, spec, grace_s)
    if not spec.stop:
        # If the reaper itself was killed, workers of the engine still hold memory for the next start.
        with suppress(OSError):
            end_leftovers(folder)
    ended_by = reason.text if reason else own_reason(folder)
    state = replace(monitor.state, ended_at=now(), exit_code=code, why=ended_by)
    writer.write(state)
    was_ready = state.is_proved and (folder / "report.json").exists()
    kind, is_fatal = (reason.kind, reason.is_fatal) if reason else ("died", False)
    return state, EngineExit(kind, uptime() - began, code, was_ready, is_fatal)


def _first_state(folder: Path, spec: ServiceSpec) -> ServiceState:
    """The state of an adopted container continues, with its start time and its restarts."""
    before = read_state(folder)
    if before and before.ended_at is None and spec.attach and is_container_running(spec.name):
        return replace(before, supervisor=this_process(), engine=None, hang=None)
    return ServiceState(this_process(), None, now())


def _start(folder: Path, spec: ServiceSpec) -> subprocess.Popen[bytes]:
    if not spec.stop:
        end_leftovers(folder)  # of a supervisor that was killed, or of the last run
    log = _open_log(folder / "engine.log")
    try:
        argv = spec.start
        if spec.attach and is_container_running(spec.name):
            argv = spec.attach
            with suppress(OSError):
                os.write(log, logs_since(spec.attach[-1], os.fstat(log).st_mtime))
        else:
            with suppress(OSError):
                if os.fstat(log).st_size:
                    os.write(log, f"\n{STARTED_AGAIN}\n".encode())
        secrets = read_secrets(Path(spec.secrets)) if spec.secrets else {}
        if spec.is_guarded_by_key and api_key(spec) is None:  # it would serve everyone
            try:
                Path(spec.secrets).read_bytes()
            except OSError as error:
                text = f"there is no key in {spec.secrets} ({error.strerror})"
                raise OSError(error.errno, text) from None
            raise OSError(errno.ENOENT, f"there is no key in {spec.secrets}")
        return _spawn(argv, {SERVICE_VARIABLE: str(folder), **spec.env, **secrets}, log)
    finally:
        os.close(log)


def _open_log(log: Path) -> int:
    """An engine whose log cannot be opened runs without one."""
    try:
        make_way(log)
        return os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def _spawn(argv: tuple[str, ...], env: Mapping[str, str], log: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        preexec_fn=die_with_parent,
    )


def _start_verify(folder: Path, output: int) -> subprocess.Popen[bytes]:
    """As `up` verified it: a gate that the first start did not have must not end the service at the next."""
    firesteel = (sys.executable, "-P", "-m", "firesteel")
    argv = ("timeout", str(_VERIFY_S), *firesteel, "verify", folder.name, "--as-started", "--json")
    return _spawn(argv, {"FIRESTEEL_HOME": str(folder.parent.parent)}, output)


def _stop(engine: subprocess.Popen[bytes], spec: ServiceSpec, grace_s: float) -> int:
    """Gracefully, then by SIGKILL. Signals to the supervisor do not interrupt it."""
    _handle_signals(_note_signal)
    if engine.poll() is None:
        if spec.stop:
            _stop_container(spec, grace_s)
        else:
            engine.terminate()
            engine.send_signal(signal.SIGCONT)  # a stopped process would not handle the SIGTERM
    deadline = time.monotonic() + grace_s
    while engine.poll() is None and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    if engine.poll() is None:
        # With what it started: a reaper that is killed can no longer end the tree below it.
        try:
            below = tree(engine.pid)
        except OSError:  # no file handle to read it with
            below = [engine.pid]
        for number in below:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
    return engine.wait()


def _stop_container(spec: ServiceSpec, grace_s: float) -> None:
    if not spec.stop:
        return
    argv = (*spec.stop[:2], f"--time={round(grace_s)}", *spec.stop[2:])
    with suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(argv, timeout=3 * spec.stop_grace_s, check=False, capture_output=True)


if __name__ == "__main__":
    sys.exit(supervise(Path(sys.argv[1])))
