"""All that a supervisor writes goes through one thread, so that no disk can end or hold up its watch.

A disk may be full, read-only, out of reach or slower than an engine can wait. The watch only leaves word here
of what there is to write. What the disk does not take is tried again every second, and meanwhile `ps` finds
the state in memory (`service.current_state`).
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue

from firesteel.edge.home import free_bytes
from firesteel.edge.host.process import MemoryFile
from firesteel.errors import HostNotReady
from firesteel.run.service import STATE_IN_MEMORY, ServiceState, write_state
from firesteel.units import show_bytes
from firesteel.values import plain

MAX_LOG_BYTES = 64 * 2**20
_AGAIN_S, _LOOK_S = 1.0, 0.02
_MAX_NOTES = 100
"""Kept while they cannot be written; then the oldest is dropped."""
ROOM_BYTES = 16 * 2**20
"""With less free on the disk, an engine is not started again: it could not write its log and its caches."""


class DiskWriter(threading.Thread):
    """For one service; lives as long as its supervisor.

    A queue and single assignments, and no lock: a handler that raises in the main thread, as for SIGTERM,
    could leave one taken.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.folder = folder
        self._latest: ServiceState | None = None
        self._written: ServiceState | None = None
        self._failure: str | None = None
        """Why the last attempt to write the state failed."""
        self._due: SimpleQueue[str | None] = SimpleQueue()
        """Notes; None: there is a new state."""
        try:
            self._in_memory: MemoryFile | None = MemoryFile(STATE_IN_MEMORY)
        except OSError:
            self._in_memory = None

    def write(self, state: ServiceState) -> None:
        with suppress(OSError):
            if self._in_memory:
                self._in_memory.replace(json.dumps(plain(state)).encode())
        self._latest = state
        self._due.put(None)

    def note(self, text: str) -> None:
        """A line for supervisor.log, which is our stdout."""
        self._due.put(text)

    def wait(self, limit_s: float) -> bool:
        """Until the last state is on the disk; whether it is."""
        deadline = time.monotonic() + limit_s
        while self._written is not self._latest and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        return self._written is self._latest

    def obstacle(self, limit_s: float) -> str | None:
        """Why an engine should not be started now; None: there is room for what it writes."""
        if not self.wait(limit_s):
            return self._failure or f"the disk under {self.folder} does not answer"
        with suppress(OSError):
            free = free_bytes(self.folder)
            if free < ROOM_BYTES:
                return f"the disk under {self.folder} has only {show_bytes(free)} free"
        return None

    def run(self) -> None:
        notes: deque[str] = deque(maxlen=_MAX_NOTES)
        while True:
            with suppress(Empty):
                if note := self._due.get(timeout=_AGAIN_S):
                    notes.append(note)
            failure = self._write_state()
            if failure and failure != self._failure:
                notes.append(failure)
            self._failure = failure
            with suppress(OSError):
                while notes:
                    os.write(1, f"{notes[0]}\n".encode())
                    notes.popleft()
            bound_log(self.folder / "engine.log")
            if failure:
                time.sleep(_AGAIN_S)

    def _write_state(self) -> str | None:
        """Why the latest state could not be written."""
        state = self._latest
        if state is None or state is self._written:
            return None
        try:
            write_state(self.folder, state)
        except HostNotReady as error:
            return error.what
        except OSError as error:
            return f"{self.folder / 'state.json'} cannot be written ({error.strerror})"
        self._written = state
        return None


def bound_log(log: Path) -> None:
    """Rotate a log that has grown too large, keeping one older part; the engine appends to the same file.

    A removed log or a full disk is not a reason to stop.
    """
    with suppress(OSError):
        if log.stat().st_size > MAX_LOG_BYTES:
            shutil.copyfile(log, log.with_suffix(".log.1"))
            os.truncate(log, 0)
