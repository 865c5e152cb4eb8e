"""The supervisor: one process per service, parent of the engine, owner of its log and of its memory guard.

    python -m firesteel.run.supervise.supervisor FOLDER

It holds `supervisor.lock` for life, so a held lock proves that it is alive. An engine that is a child process
is killed by the kernel when the supervisor dies; a container that outlives its supervisor is adopted by the
next one. An engine that was verified and then dies or hangs is restarted, a limited number of times and with
growing pauses, and verified again. SIGTERM stops the engine, then the supervisor.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from firesteel.edge.docker.containers import container_runs, said_since
from firesteel.edge.files.home import Home, Locked, is_locked, lock
from firesteel.edge.files.secrets import read_secrets
from firesteel.edge.host.kernel_log import KernelLog
from firesteel.edge.host.memory import sample
from firesteel.edge.host.process import die_with_parent, find, now, this_process, uptime
from firesteel.edge.http.poll import Poll
from firesteel.engines.metrics import activity
from firesteel.errors import FiresteelError, HostNotReady
from firesteel.run.service import (
    KEEPER_LOCK,
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
_LOOK_S = 1.0
_URGENT_S = 1.0
"""What is left of the grace when the guard says that the host has no time."""
_ASK_S = 5.0
_PROOF_S = 1800
"""How long the proof after a restart may take."""
_END_TRIES = 5
MAX_LOG_BYTES = 64 * 2**20
TOLD = "it was told to stop"


class _Told(Exception):
    """SIGTERM or SIGINT came."""


def _on_signal(number: int, frame: object) -> None:
    raise _Told


def supervise(folder: Path) -> int:
    spec = read_spec(folder)
    if spec is None:
        return 2
    try:
        with lock(folder / SUPERVISOR_LOCK):
            if is_locked(folder / KEEPER_LOCK):
                return 0
            return _keep(folder, spec)
    except Locked:
        return 0  # another supervisor has this service


@dataclass(frozen=True, slots=True)
class _Why:
    """Why the supervisor ends an engine that would go on."""

    kind: restart.ExitKind
    words: str
    is_urgent: bool = False
    is_fatal: bool = False


def _keep(folder: Path, spec: ServiceSpec) -> int:
    state = _first_state(folder, spec)
    ends: tuple[restart.EngineExit, ...] = ()
    try:
        while True:  # bounded: `restart.after` gives up
            _heed(_on_signal)
            state, end = _live(folder, spec, state)
            ends = (*ends, end)
            if not (end.was_ready or state.restarts):
                return 0  # it never got ready: `up` tells why
            choice = restart.decide(ends)
            if isinstance(choice, restart.GiveUp):
                return _give_up(folder, state, end, choice)
            state = _pause(folder, spec, state, choice)
    except _Told:  # before an engine, between two, or while one was being started
        _heed(signal.SIG_IGN)
        _stop_container(spec, spec.stop_grace_s)
        _note_end(folder, replace(state, ended_at=now(), why=TOLD))
        return 0


def _heed(handler: Any) -> None:
    signal.signal(signal.SIGTERM, handler)
    signal.signal(signal.SIGINT, handler)


def _note(folder: Path, state: ServiceState) -> bool:
    """A disk that is full is no reason to leave an engine alone."""
    try:
        write_state(folder, state)
    except (HostNotReady, OSError) as error:
        print(f"its state is not written: {error}", flush=True)
        return False
    return True


def _note_end(folder: Path, state: ServiceState) -> None:
    for _ in range(_END_TRIES):
        if _note(folder, state):
            return
        time.sleep(_LOOK_S)


def _give_up(folder: Path, state: ServiceState, end: restart.EngineExit, choice: restart.GiveUp) -> int:
    if end.kind in ("died", "stuck"):
        _note_end(folder, replace(state, why=f"{death(state)}; not started again: {choice.reason}"))
    return 0


def _pause(folder: Path, spec: ServiceSpec, state: ServiceState, wait: restart.RestartAfter) -> ServiceState:
    seconds = wait.seconds * spec.time_share
    why = f"{death(state)}; start {wait.number} of {wait.of} follows {seconds:.0f} s later"
    again = replace(state, engine=None, ended_at=None, exit_code=None, why=why, is_stopping=False)
    again = replace(again, restarts=state.restarts + 1, is_proved=False)
    _note(folder, again)
    _heed(_on_signal)
    time.sleep(seconds)
    return again


def _live(folder: Path, spec: ServiceSpec, state: ServiceState) -> tuple[ServiceState, restart.EngineExit]:
    """One life of the engine, from its start to its end, with what it was like."""
    began = uptime()
    with open(folder / "engine.log", "ab", opener=_only_mine) as log:
        try:
            engine = _start(spec, log.fileno())
        except OSError as error:
            unstarted = f"{spec.start[0]} cannot be started: {error.strerror}"
            state = replace(state, ended_at=now(), exit_code=127, why=unstarted)
            _note_end(folder, state)
            return state, restart.EngineExit("died", 0, 127)
        state = replace(state, engine=find(engine.pid))
        watcher = _Watcher(folder, spec, state, engine)
        try:
            why = watcher.until_over()
        except _Told:
            _heed(signal.SIG_IGN)
            why = _Why("told", TOLD)
        finally:
            watcher.close()
        if why:  # said before it is done: whoever sees it go shall know the reason
            _note(folder, replace(watcher.state, why=why.words, is_stopping=True))
        code = _stop(engine, spec, _URGENT_S if why and why.is_urgent else spec.stop_grace_s)
    state = replace(watcher.state, ended_at=now(), exit_code=code, why=why.words if why else None)
    _note_end(folder, state)
    was_ready = state.is_proved and (folder / "report.json").exists()
    kind, is_fatal = (why.kind, why.is_fatal) if why else ("died", False)
    return state, restart.EngineExit(kind, uptime() - began, code, was_ready, is_fatal)


def _first_state(folder: Path, spec: ServiceSpec) -> ServiceState:
    """Of a container that runs already, what was known of it stays known."""
    before = read_state(folder)
    if before and before.ended_at is None and spec.attach and container_runs(spec.name):
        return replace(before, supervisor=this_process(), engine=None)
    return ServiceState(this_process(), None, now())


def _start(spec: ServiceSpec, log: int) -> subprocess.Popen[bytes]:
    words = spec.start
    if spec.attach and container_runs(spec.name):
        words = spec.attach
        os.write(log, said_since(spec.attach[-1], os.fstat(log).st_mtime))
    secrets = read_secrets(Path(spec.secrets)) if spec.secrets else {}
    return subprocess.Popen(
        words,
        env={**os.environ, **spec.env, **secrets},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        preexec_fn=die_with_parent,
    )


class _Watcher:
    """Looks once a second at the host and at the engine; after a restart, has it proved."""

    def __init__(
        self, folder: Path, spec: ServiceSpec, state: ServiceState, engine: subprocess.Popen[bytes]
    ) -> None:
        self.folder, self.spec, self.state, self.engine = folder, spec, state, engine
        limits = guard.GuardLimits(spec.memory_floor_bytes, spec.expected_bytes, spec.available_bytes or None)
        self._guard = guard.MemoryWatch(limits)
        self._kernel = KernelLog()
        self._quiet = hang.IdleTime()
        self._poll = Poll(spec.url, _key(spec), _ASK_S * spec.time_share)
        self._poll.start()
        self._proof: subprocess.Popen[bytes] | None = None
        self._proofs = 0
        self._is_noted = False

    def close(self) -> None:
        self._kernel.close()
        self._poll.end()
        if self._proof and self._proof.poll() is None:
            self._proof.kill()
            self._proof.wait()

    def until_over(self) -> _Why | None:
        """Until the engine ends (None) or must be ended."""
        while True:
            self._is_noted = self._is_noted or _note(self.folder, self.state)
            with suppress(subprocess.TimeoutExpired):
                self.engine.wait(timeout=_LOOK_S)
                return self._last_look()
            bound_log(self.folder / "engine.log")
            if why := self._look():
                return why

    def _last_look(self) -> _Why | None:
        """Of an engine that was killed: by the kernel, for want of memory?"""
        if self.engine.returncode not in (-signal.SIGKILL, 128 + signal.SIGKILL):
            return None
        stop = self._guard.after(sample(self._kernel)).stop
        return _Why("guard", stop.why) if stop and stop.kind == "oom" else None

    def _look(self) -> _Why | None:
        said = len(self._guard.notes)
        self._guard = self._guard.after(sample(self._kernel))
        if self._guard.stop and self._another_loads():
            self._guard = self._guard.spared()
        for note in self._guard.notes[said:]:
            print(f"guard: {note}", flush=True)
        if stop := self._guard.stop:
            return _Why("guard", stop.why, stop.is_urgent)
        if (self.folder / "report.json").exists() and (stuck := self._stuck()):
            return _Why("stuck", stuck)
        return None if self.state.is_proved else self._prove()

    def _another_loads(self) -> bool:
        if not (self.folder / "report.json").exists():
            return False
        services = all_services(Home(self.folder.parent.parent))
        return any(each.phase == "starting" and each.name != self.spec.name for each in services)

    def _stuck(self) -> str | None:
        """Only of an engine that was proved: while it starts it may be silent for long."""
        seen = self._poll.metrics
        share = self.spec.time_share
        if seen is None or seen[0] / share <= self._quiet.now_s:
            return None
        told = activity(self.spec.engine, seen[1]) if seen[1] is not None else None
        self._quiet = self._quiet.after(hang.ActivityReading(seen[0] / share, told))
        return self._quiet.reason(self.spec.prefill_s)

    def _prove(self) -> _Why | None:
        """`firesteel verify` says whether the answers are right again."""
        if self._proof is None:
            if self._poll.is_healthy:
                self._proof = _start_proof(self.folder)
            return None
        code = self._proof.poll()
        if code is None:
            return None
        if code == FiresteelError.exit_code:
            return _Why("died", "its answers were wrong after a restart; see supervisor.log", is_fatal=True)
        if code:  # it could not be carried out: killed, out of time, no answer
            self._proof, self._proofs = None, self._proofs + 1
            return _Why("stuck", "it could not be proved after a restart") if self._proofs > 2 else None
        self.state, self._is_noted = replace(self.state, is_proved=True, why=None), False
        return None


def _start_proof(folder: Path) -> subprocess.Popen[bytes]:
    words = ("timeout", str(_PROOF_S), sys.executable, "-P", "-m", "firesteel", "verify", folder.name)
    with open(folder / "supervisor.log", "ab", opener=_only_mine) as log:
        return subprocess.Popen(
            words,
            env={**os.environ, "FIRESTEEL_HOME": str(folder.parent.parent)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=die_with_parent,
        )


def _key(spec: ServiceSpec) -> str | None:
    """Some engines show their metrics only to whoever has it."""
    found = read_secrets(Path(spec.secrets)) if spec.is_guarded_by_key else {}
    return next((value for name, value in found.items() if name.endswith("_API_KEY")), None)


def bound_log(log: Path) -> None:
    """A log that has grown large starts anew, and one older part is kept; the engine appends.

    One that somebody removed, or a full disk, is no reason to end.
    """
    with suppress(OSError):
        if log.stat().st_size > MAX_LOG_BYTES:
            shutil.copyfile(log, log.with_suffix(".log.1"))
            os.truncate(log, 0)


def _only_mine(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _stop(engine: subprocess.Popen[bytes], spec: ServiceSpec, grace_s: float) -> int:
    """Politely, then for certain. Signals that come meanwhile change nothing any more."""
    _heed(signal.SIG_IGN)
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
    words = (*spec.stop[:2], f"--time={round(grace_s)}", *spec.stop[2:])
    with suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(words, timeout=3 * spec.stop_grace_s, check=False, capture_output=True)


if __name__ == "__main__":
    sys.exit(supervise(Path(sys.argv[1])))
