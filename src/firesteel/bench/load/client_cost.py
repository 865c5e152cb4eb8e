"""The cost of the client itself: how late it reads its clock under load, and how much of a core it uses.

Another process (`ticker.py`) writes the time into a pipe, and the event loop that serves the streams reads it
in the same way as it reads them. The difference is how long bytes wait between their arrival and our clock.
The other process also says how late the machine woke it up: if that is late too, the machine is busy.

Only the time under load counts. Between loads the client writes prompts and parses answers, which delays
nobody.
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from msgspec import Struct

from firesteel.bench.compare.stats import percentile
from firesteel.bench.load import ticker

MAX_LAG_MS = 1.0
"""Lateness that nobody needs to know about."""
_MAX_VALUES = 100_000


class Lateness(Struct):
    """Of the client and of the machine, in seconds, one value per tick."""

    began: float = 0.0
    """By `time.perf_counter`. Ticks from before waited for something else than the load."""
    client_s: list[float] = []
    machine_s: list[float] = []

    @property
    def p99_s(self) -> float:
        """Of the client; 0 if there was no tick."""
        return percentile(self.client_s, 99) if self.client_s else 0.0


class ClientCost:
    """`with cost: ...`, inside a running loop, and there `with cost.under_load() as lateness: ...`"""

    def __init__(self) -> None:
        self._all = Lateness()
        self._current: Lateness | None = None
        self._began = self._cpu_before_s = 0.0
        self._ticker: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ClientCost:
        self._began, self._cpu_before_s = time.perf_counter(), time.process_time()
        with suppress(OSError):  # without it, the lateness is unknown
            self._ticker = subprocess.Popen(
                (sys.executable, "-I", "-S", ticker.__file__),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        if self._ticker and self._ticker.stdout:
            self._pipe = self._ticker.stdout.fileno()
            os.set_blocking(self._pipe, False)
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._pipe, self._read)
        return self

    def __exit__(self, *_: object) -> None:
        if self._ticker and self._ticker.stdout:
            self._loop.remove_reader(self._pipe)
            self._ticker.kill()
            self._ticker.wait()
            self._ticker.stdout.close()

    @contextmanager
    def under_load(self) -> Iterator[Lateness]:
        """Ticks count, and the garbage collector waits: a full collection can take tens of milliseconds."""
        was_enabled = gc.isenabled()
        gc.disable()
        self._current = lateness = Lateness(time.perf_counter())
        try:
            yield lateness
        finally:
            self._current = None
            if was_enabled:
                gc.enable()
            for every, new in (
                (self._all.client_s, lateness.client_s),
                (self._all.machine_s, lateness.machine_s),
            ):
                every += new
                if len(every) > _MAX_VALUES:
                    del every[::2]

    def _read(self) -> None:
        now = time.perf_counter()
        try:
            data = os.read(self._pipe, 4096)
        except BlockingIOError:
            return
        if not data:  # it was killed
            self._loop.remove_reader(self._pipe)
        elif self._current:
            size = ticker.RECORD.size
            for sent, late in ticker.RECORD.iter_unpack(data[: len(data) // size * size]):
                if sent >= self._current.began:
                    self._current.client_s.append(now - sent)
                    self._current.machine_s.append(late)

    def summary(self) -> dict[str, float]:
        elapsed = time.perf_counter() - self._began
        used = time.process_time() - self._cpu_before_s
        found = {"cpu_share": used / elapsed if self._began and elapsed > 0 else 0.0}
        for name, values in (
            ("p99_lag_ms", self._all.client_s),
            ("machine_p99_lag_ms", self._all.machine_s),
        ):
            if values:
                found[name] = 1000 * percentile(values, 99)
        return found


def late_text(client: Mapping[str, float]) -> str | None:
    """A sentence if the client was late, which says whether the machine was too."""
    lag, machine = client.get("p99_lag_ms", 0.0), client.get("machine_p99_lag_ms", 0.0)
    if lag <= MAX_LAG_MS:
        return None
    if machine > lag / 2:
        reason = f"this machine was busy, and woke up other programs {machine:.1f} ms late"
    else:
        reason = f"the machine itself was not ({machine:.1f} ms)"
    return f"the client was up to {lag:.1f} ms late under load (p99); {reason}"
