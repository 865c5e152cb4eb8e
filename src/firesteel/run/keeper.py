"""The keeper: one process a service, parent of the engine, owner of its log, its guard and its end.

    python -m firesteel.run.keeper FOLDER

It holds `keeper.lock` for life, so whoever cannot take that lock knows that it lives. The engine is
started so that the kernel kills it when the keeper goes: no orphan. SIGTERM stops the engine, then
the keeper.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from firesteel.edge.home import Locked, lock
from firesteel.edge.memory import meminfo
from firesteel.edge.process import die_with_parent, find, now, this_process
from firesteel.run.guard import SAMPLES_TO_STOP, reason_to_stop
from firesteel.run.service import Spec, State, read_spec, write_state

_POLL_S = 0.1
MAX_LOG_BYTES = 64 * 2**20


class _Told(Exception):
    """SIGTERM or SIGINT came."""


def _on_signal(number: int, frame: object) -> None:
    raise _Told


def keep(folder: Path) -> int:
    spec = read_spec(folder)
    if spec is None:
        return 2
    try:
        with lock(folder / "keeper.lock"):
            return _keep(folder, spec)
    except Locked:
        return 0  # another keeper has this service


def _keep(folder: Path, spec: Spec) -> int:
    signal.signal(signal.SIGTERM, _on_signal)
    signal.signal(signal.SIGINT, _on_signal)
    keeper, started = this_process(), now()
    with open(folder / "engine.log", "ab", opener=_only_mine) as log:
        try:
            engine = subprocess.Popen(
                spec.start,
                env={**os.environ, **spec.env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent,
            )
        except OSError as error:
            unstarted = f"{spec.start[0]} cannot be started: {error.strerror}"
            write_state(folder, State(keeper, None, started, now(), 127, unstarted))
            return 1
        pid = find(engine.pid)
        why = None
        try:
            write_state(folder, State(keeper, pid, started))
            why = _watch(engine, spec, folder / "engine.log")
        except _Told:
            why = "it was told to stop"
        code = _stop(engine, spec)
    write_state(folder, State(keeper, pid, started, now(), code, why))
    return 0


def _watch(engine: subprocess.Popen[bytes], spec: Spec, log: Path) -> str | None:
    """Until the engine ends (None) or must be ended (why)."""
    samples: tuple[int, ...] = ()
    while True:
        try:
            engine.wait(timeout=1)
            return None
        except subprocess.TimeoutExpired:
            bound_log(log)
            samples = (*samples, meminfo().available_bytes)[-SAMPLES_TO_STOP:]
            if why := reason_to_stop(samples, spec.memory_floor_bytes):
                return why


def bound_log(log: Path) -> None:
    """A log that has grown large starts anew, and one older part is kept; the engine appends."""
    if log.stat().st_size > MAX_LOG_BYTES:
        shutil.copyfile(log, log.with_suffix(".log.1"))
        os.truncate(log, 0)


def _only_mine(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _stop(engine: subprocess.Popen[bytes], spec: Spec) -> int:
    """Politely, then for certain. Signals that come meanwhile change nothing any more."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if engine.poll() is None:
        if spec.stop:
            with suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(spec.stop, timeout=3 * spec.stop_grace_s, check=False, capture_output=True)
        else:
            engine.terminate()
    deadline = time.monotonic() + spec.stop_grace_s
    while engine.poll() is None and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    if engine.poll() is None:
        engine.kill()
    return engine.wait()


if __name__ == "__main__":
    sys.exit(keep(Path(sys.argv[1])))
