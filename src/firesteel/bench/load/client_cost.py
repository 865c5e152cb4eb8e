"""The cost of the client itself: how late it reads its clock, and how much of a core it uses.

A thread writes the time into a socket about fifty times per second, and the event loop that serves the
streams reads it in the same way as it reads them. The difference is how long bytes wait between their arrival
and our clock, including the kernel, a busy machine and other streams.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time

from firesteel.bench.compare.stats import percentile

_INTERVAL_S = 0.02
_TIME = struct.Struct("d")
_MAX_VALUES = 100_000


class ClientCost:
    """`with cost: ...`, inside a running loop."""

    def __init__(self) -> None:
        self.lags_s: list[float] = []
        self._began = self._cpu_before_s = 0.0
        self._ended = threading.Event()

    def __enter__(self) -> ClientCost:
        self._began, self._cpu_before_s = time.perf_counter(), time.process_time()
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.settimeout(1)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._reader, self._read)
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._loop.remove_reader(self._reader)
        self._thread.join(timeout=2)
        self._reader.close()
        self._writer.close()

    def _write(self) -> None:
        while not self._ended.wait(_INTERVAL_S):
            try:
                self._writer.send(_TIME.pack(time.perf_counter()))
            except OSError:  # the reader is closed
                return

    def _read(self) -> None:
        now, data = time.perf_counter(), self._reader.recv(4096)
        self.lags_s += [now - sent for (sent,) in _TIME.iter_unpack(data[: len(data) // 8 * 8])]
        if len(self.lags_s) > _MAX_VALUES:
            del self.lags_s[::2]

    def summary(self) -> dict[str, float]:
        elapsed = time.perf_counter() - self._began
        used = time.process_time() - self._cpu_before_s
        share = used / elapsed if self._began and elapsed > 0 else 0.0
        if not self.lags_s:
            return {"cpu_share": share}
        return {"p99_lag_ms": 1000 * percentile(self.lags_s, 99), "cpu_share": share}
