"""What the client itself costs: how late it reads its clock, and how much of a core it takes.

A thread writes the time into a socket, some fifty times a second, and the loop that serves the streams
reads it as it reads them. The difference is what bytes wait between their arrival and our clock, everything
counted: the kernel, a busy machine, and other streams before them.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time

from firesteel.bench.compare.stats import percentile

_EVERY_S = 0.02
_TIME = struct.Struct("d")
_MOST = 100_000


class Cost:
    """`with cost: ...`, inside a running loop."""

    def __init__(self) -> None:
        self.late_s: list[float] = []
        self._began = self._spent = 0.0
        self._ended = threading.Event()

    def __enter__(self) -> Cost:
        self._began, self._spent = time.perf_counter(), time.process_time()
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._theirs.settimeout(1)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._ours, self._read)
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._loop.remove_reader(self._ours)
        self._thread.join(timeout=2)
        self._ours.close()
        self._theirs.close()

    def _write(self) -> None:
        while not self._ended.wait(_EVERY_S):
            try:
                self._theirs.send(_TIME.pack(time.perf_counter()))
            except OSError:  # nobody reads any more
                return

    def _read(self) -> None:
        now, data = time.perf_counter(), self._ours.recv(4096)
        self.late_s += [now - sent for (sent,) in _TIME.iter_unpack(data[: len(data) // 8 * 8])]
        if len(self.late_s) > _MOST:
            del self.late_s[::2]

    def told(self) -> dict[str, float]:
        took = time.perf_counter() - self._began
        share = (time.process_time() - self._spent) / took if self._began and took > 0 else 0.0
        if not self.late_s:
            return {"cpu_share": share}
        return {"p99_lag_ms": 1000 * percentile(self.late_s, 99), "cpu_share": share}
