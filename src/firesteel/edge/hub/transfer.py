"""Moving bytes in several threads for one waiting coroutine: progress, rate, and stopping early.

The threads are daemons and check at every piece whether anybody still waits: Ctrl-C ends a fetch at once, and
a process that ends does not wait for 60 GB.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from typing import TypeVar

from firesteel.units import show_bytes, show_seconds
from firesteel.values import Value

_WORKERS = 4
_PROGRESS_INTERVAL_S = 0.5
_RATE_WINDOW_S = 15.0
T = TypeVar("T")


class TransferProgress(Value):
    """How far a fetch or a check has come."""

    done_bytes: int
    total_bytes: int
    bytes_per_s: float | None = None
    """None: not known yet."""

    def __str__(self) -> str:
        text = f"{show_bytes(self.done_bytes)} of {show_bytes(self.total_bytes)}"
        if not self.bytes_per_s:
            return text
        left_s = (self.total_bytes - self.done_bytes) / self.bytes_per_s
        return f"{text}, {show_bytes(round(self.bytes_per_s))}/s, {show_seconds(left_s)} left"


class TransferStopped(Exception):
    """Nobody waits for the transfer any more."""


class TransferCounter:
    """Bytes that several threads have moved."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes, self.stop = total_bytes, threading.Event()
        self._done, self._existing, self._lock = 0, 0, threading.Lock()
        self._history: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])

    def add(self, count: int) -> None:
        if self.stop.is_set():
            raise TransferStopped
        with self._lock:
            self._done += count

    def add_existing(self, count: int) -> None:
        """Bytes that were on disk already: done, but no part of the rate."""
        self.add(count)
        with self._lock:
            self._existing += count

    def progress(self) -> TransferProgress:
        now = time.monotonic()
        with self._lock:
            done, moved = self._done, self._done - self._existing
        self._history.append((now, moved))
        while len(self._history) > 2 and now - self._history[0][0] > _RATE_WINDOW_S:
            self._history.popleft()
        then, moved_then = self._history[0]
        rate = (moved - moved_then) / (now - then) if now > then else 0.0
        return TransferProgress(done, self.total_bytes, rate if rate > 0 else None)


async def run_in_threads(
    jobs: Iterable[T], work: Callable[[T], None], counter: TransferCounter
) -> AsyncIterator[TransferProgress]:
    """Does `work` on every job in threads that stop with this iterator; raises the first failure."""
    todo: queue.SimpleQueue[T] = queue.SimpleQueue()
    for job in jobs:
        todo.put(job)
    failures: list[Exception] = []
    loop, ended, running = asyncio.get_running_loop(), asyncio.Event(), _WORKERS

    def count_down() -> None:
        nonlocal running
        running -= 1
        if not running:
            ended.set()

    def run_worker() -> None:
        try:
            while not counter.stop.is_set():
                work(todo.get_nowait())
        except (queue.Empty, TransferStopped):
            pass
        except Exception as error:
            failures.append(error)
            counter.stop.set()
        finally:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(count_down)

    for _ in range(_WORKERS):
        threading.Thread(target=run_worker, daemon=True).start()
    try:
        while not ended.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(_PROGRESS_INTERVAL_S):
                    await ended.wait()
            yield counter.progress()
    finally:
        counter.stop.set()
    if failures:
        raise failures[0]
