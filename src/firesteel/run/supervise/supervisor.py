"""The supervisor: one process per service, parent of the engine, owner of its log and of its memory guard.

    python -m firesteel.run.supervise.supervisor FOLDER

It holds `supervisor.lock` for life, so a held lock proves that it is alive. An engine that is a child process
is killed by the kernel when the supervisor dies; a container that outlives its supervisor is adopted by the
next one. An engine that was verified and then dies or hangs is restarted, a limited number of times and with
growing pauses, and verified again. SIGTERM stops the engine, then the supervisor.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from firesteel.edge.docker.containers import is_container_running, logs_since
from firesteel.edge.files.home import Home, Locked, is_locked, lock, make_way
from firesteel.edge.files.secrets import read_secrets
from firesteel.edge.host.kernel_log import KernelLog
from firesteel.edge.host.memory import sample
from firesteel.edge.host.process import die_with_parent, find, now, this_process, uptime
from firesteel.edge.http.poll import HealthPoller
from firesteel.engines.metrics import activity
from firesteel.errors import FiresteelError, HostNotReady
from firesteel.run.service import (
    KEEPER_LOCK,
    STOP_REQUESTED,
    SUPERVISOR_LOCK,
    ServiceSpec,
    ServiceState,
    all_services,
    death,
    read_spec,
    read_state,
    write_state,
)
from firesteel.run.supervise import guard, hang, restart

_POLL_S = 0.1
_SAMPLE_S = 1.0
_URGENT_GRACE_S = 1.0
"""Replaces the usual grace when the guard finds that the host has no time left."""
_REQUEST_S = 5.0
_VERIFY_S = 1800
"""Timeout of the verification after a restart."""
_WRITE_TRIES = 5
MAX_LOG_BYTES = 64 * 2**20


class _StopRequested(Exception):
    """SIGTERM or SIGINT came."""


_stop_signalled = False


def _on_signal(number: int, frame: object) -> None:
    global _stop_signalled
    _stop_signalled = True
    raise _StopRequested


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
            # A supervisor of version 0.1.0 may still run this service.
            return 0 if is_locked(folder / KEEPER_LOCK) else _supervise(folder, spec)
    except Locked:
        return 0  # another supervisor runs this service


@dataclass(frozen=True, slots=True)
class _StopReason:
    """Why the supervisor stops an engine that would go on."""

    kind: restart.ExitKind
    text: str
    is_urgent: bool = False
    is_fatal: bool = False


def _supervise(folder: Path, spec: ServiceSpec) -> int:
    state = _first_state(folder, spec)
    exits: tuple[restart.EngineExit, ...] = ()
    try:
        while True:  # bounded: `restart.decide` gives up
            _handle_signals(_on_signal)
            state, exit_ = _run_engine(folder, spec, state)
            exits = (*exits, exit_)
            if not (exit_.was_ready or state.restarts):
                return 0  # it was never ready: `up` reports why
            choice = restart.decide(exits)
            if isinstance(choice, restart.GiveUp):
                if exit_.kind in ("died", "stuck"):
                    why = f"{death(state)}; not started again: {choice.reason}"
                    _write_final_state(folder, replace(state, why=why))
                return 0
            state = _pause(folder, spec, state, choice)
    except _StopRequested:  # before the first engine, during a pause, or while an engine was being started
        _handle_signals(signal.SIG_IGN)
        _stop_container(spec, spec.stop_grace_s)
        _write_final_state(folder, replace(state, ended_at=now(), why=STOP_REQUESTED))
        return 0


def _handle_signals(handler: Any) -> None:
    signal.signal(signal.SIGTERM, handler)
    signal.signal(signal.SIGINT, handler)


def _write_state(folder: Path, state: ServiceState) -> bool:
    """Whether it was written. A full disk is no reason to abandon the engine."""
    try:
        write_state(folder, state)
    except (HostNotReady, OSError) as error:
        print(f"state.json could not be written: {error}", flush=True)
        return False
    return True


def _write_final_state(folder: Path, state: ServiceState) -> None:
    for _ in range(_WRITE_TRIES):
        if _write_state(folder, state):
            return
        time.sleep(_SAMPLE_S)


def _pause(folder: Path, spec: ServiceSpec, state: ServiceState, wait: restart.RestartAfter) -> ServiceState:
    seconds = wait.seconds * spec.time_share
    why = f"{death(state)}; start {wait.number} of {wait.of} follows {seconds:.0f} s later"
    paused = replace(
        state, engine=None, ended_at=None, exit_code=None, why=why, is_stopping=False,
        restarts=state.restarts + 1, is_proved=False,
    )  # fmt: skip
    _write_state(folder, paused)
    _handle_signals(_on_signal)
    time.sleep(seconds)
    _check_signalled()
    return paused


def _run_engine(
    folder: Path, spec: ServiceSpec, state: ServiceState
) -> tuple[ServiceState, restart.EngineExit]:
    """One run of the engine, from its start to its end."""
    began = uptime()
    make_way(folder / "engine.log")
    with open(folder / "engine.log", "ab", opener=_private) as log:
        try:
            engine = _start(spec, log.fileno())
        except OSError as error:
            why = f"{spec.start[0]} cannot be started: {error.strerror}"
            state = replace(state, ended_at=now(), exit_code=127, why=why)
            _write_final_state(folder, state)
            return state, restart.EngineExit("died", 0, 127)
        monitor = _EngineMonitor(folder, spec, replace(state, engine=find(engine.pid)), engine)
        try:
            reason = monitor.run()
        except _StopRequested:
            _handle_signals(signal.SIG_IGN)
            reason = _StopReason("requested", STOP_REQUESTED)
        finally:
            monitor.close()
        if reason:  # written before the stop, so that whoever sees the engine go can read why
            _write_state(folder, replace(monitor.state, why=reason.text, is_stopping=True))
        grace_s = _URGENT_GRACE_S if reason and reason.is_urgent else spec.stop_grace_s
        code = _stop(engine, spec, grace_s)
    state = replace(monitor.state, ended_at=now(), exit_code=code, why=reason.text if reason else None)
    _write_final_state(folder, state)
    was_ready = state.is_proved and (folder / "report.json").exists()
    kind, is_fatal = (reason.kind, reason.is_fatal) if reason else ("died", False)
    return state, restart.EngineExit(kind, uptime() - began, code, was_ready, is_fatal)


def _first_state(folder: Path, spec: ServiceSpec) -> ServiceState:
    """The state of an adopted container continues, with its start time and its restarts."""
    before = read_state(folder)
    if before and before.ended_at is None and spec.attach and is_container_running(spec.name):
        return replace(before, supervisor=this_process(), engine=None)
    return ServiceState(this_process(), None, now())


def _start(spec: ServiceSpec, log: int) -> subprocess.Popen[bytes]:
    argv = spec.start
    if spec.attach and is_container_running(spec.name):
        argv = spec.attach
        os.write(log, logs_since(spec.attach[-1], os.fstat(log).st_mtime))
    secrets = read_secrets(Path(spec.secrets)) if spec.secrets else {}
    if spec.is_guarded_by_key and _api_key(spec) is None:  # without it, the engine would serve everybody
        raise OSError(errno.ENOENT, f"there is no key in {spec.secrets}")
    return _spawn(argv, {**spec.env, **secrets}, log)


def _spawn(argv: tuple[str, ...], env: Mapping[str, str], log: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        preexec_fn=die_with_parent,
    )


class _EngineMonitor:
    """Samples the host and the engine once a second; after a restart, has the engine verified."""

    def __init__(
        self, folder: Path, spec: ServiceSpec, state: ServiceState, engine: subprocess.Popen[bytes]
    ) -> None:
        self.folder, self.spec, self.state, self.engine = folder, spec, state, engine
        limits = guard.GuardLimits(spec.memory_floor_bytes, spec.expected_bytes, spec.available_bytes or None)
        self._guard = guard.MemoryWatch(limits)
        self._kernel = KernelLog()
        self._idle = hang.IdleTime()
        self._poll = HealthPoller(spec.url, _api_key(spec), _REQUEST_S * spec.time_share)
        self._poll.start()
        self._verify: subprocess.Popen[bytes] | None = None
        self._verify_failures = 0
        self._is_written = False

    def close(self) -> None:
        self._kernel.close()
        self._poll.stop()
        if self._verify and self._verify.poll() is None:
            self._verify.kill()
            self._verify.wait()

    def run(self) -> _StopReason | None:
        """Until the engine ends (None) or has to be stopped."""
        while True:
            self._is_written = self._is_written or _write_state(self.folder, self.state)
            with suppress(subprocess.TimeoutExpired):
                self.engine.wait(timeout=_SAMPLE_S)
                return self._kernel_kill()
            _check_signalled()
            bound_log(self.folder / "engine.log")
            if reason := self._check():
                return reason

    def _kernel_kill(self) -> _StopReason | None:
        """Whether an engine that ended was killed by the kernel because memory ran out."""
        if self.engine.returncode not in (-signal.SIGKILL, 128 + signal.SIGKILL):
            return None
        stop = self._guard.after(sample(self._kernel)).stop
        return _StopReason("guard", stop.why) if stop and stop.kind == "oom" else None

    def _check(self) -> _StopReason | None:
        printed = len(self._guard.notes)
        self._guard = self._guard.after(sample(self._kernel))
        was_verified = (self.folder / "report.json").exists()
        if self._guard.stop and was_verified and self._another_loads():
            self._guard = self._guard.while_another_loads()
        for note in self._guard.notes[printed:]:
            print(f"guard: {note}", flush=True)
        if stop := self._guard.stop:
            return _StopReason("guard", stop.why, stop.is_urgent)
        # Only a verified engine can hang: while it starts it may be silent for long.
        if was_verified and (why := self._hang()):
            return _StopReason("stuck", why)
        return None if self.state.is_proved else self._check_verification()

    def _another_loads(self) -> bool:
        services = all_services(Home(self.folder.parent.parent))
        return any(other.phase == "starting" and other.name != self.spec.name for other in services)

    def _hang(self) -> str | None:
        metrics, share = self._poll.metrics, self.spec.time_share
        if metrics is None or metrics[0] / share <= self._idle.now_s:
            return None
        at_s, text = metrics
        current = activity(self.spec.engine, text) if text is not None else None
        self._idle = self._idle.after(hang.ActivityReading(at_s / share, current))
        return self._idle.reason(self.spec.prefill_s)

    def _check_verification(self) -> _StopReason | None:
        """Run `firesteel verify` once the engine answers, and act on its result."""
        if self._verify is None:
            if self._poll.is_healthy:
                self._verify = _start_verify(self.folder)
            return None
        code = self._verify.poll()
        if code is None:
            return None
        if code == FiresteelError.exit_code:
            why = "its answers were wrong after a restart; see supervisor.log"
            return _StopReason("died", why, is_fatal=True)
        if code:  # no result: it was killed, ran out of time or got no answer
            self._verify, self._verify_failures = None, self._verify_failures + 1
            why = "it could not be verified after a restart"
            return _StopReason("stuck", why) if self._verify_failures > 2 else None
        self.state, self._is_written = replace(self.state, is_proved=True, why=None), False
        return None


def _start_verify(folder: Path) -> subprocess.Popen[bytes]:
    argv = ("timeout", str(_VERIFY_S), sys.executable, "-P", "-m", "firesteel", "verify", folder.name)
    make_way(folder / "supervisor.log")
    with open(folder / "supervisor.log", "ab", opener=_private) as log:
        return _spawn(argv, {"FIRESTEEL_HOME": str(folder.parent.parent)}, log.fileno())


def _api_key(spec: ServiceSpec) -> str | None:
    """Some engines require it for their metrics."""
    secrets = read_secrets(Path(spec.secrets)) if spec.is_guarded_by_key else {}
    return next((value for name, value in secrets.items() if name.endswith("_API_KEY")), None)


def bound_log(log: Path) -> None:
    """Rotate a log that has grown too large, keeping one older part; the engine appends to the same file.

    A log that somebody removed, or a full disk, is no reason to stop.
    """
    with suppress(OSError):
        if log.stat().st_size > MAX_LOG_BYTES:
            shutil.copyfile(log, log.with_suffix(".log.1"))
            os.truncate(log, 0)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _stop(engine: subprocess.Popen[bytes], spec: ServiceSpec, grace_s: float) -> int:
    """Gracefully, then by SIGKILL. Further signals to the supervisor are ignored."""
    _handle_signals(signal.SIG_IGN)
    if engine.poll() is None:
        if spec.stop:
            _stop_container(spec, grace_s)
        else:
            engine.terminate()
    deadline = time.monotonic() + grace_s
    while engine.poll() is None and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    if engine.poll() is None:
        engine.kill()
    return engine.wait()


def _stop_container(spec: ServiceSpec, grace_s: float) -> None:
    if not spec.stop:
        return
    argv = (*spec.stop[:2], f"--time={round(grace_s)}", *spec.stop[2:])
    with suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(argv, timeout=3 * spec.stop_grace_s, check=False, capture_output=True)


if __name__ == "__main__":
    sys.exit(supervise(Path(sys.argv[1])))
