"""Bytes that several threads move for one waiter: how far they are, how fast, and when to stop.

The threads are daemons and look at every piece whether anybody still waits: Ctrl-C ends a fetch at once, and
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
from dataclasses import dataclass
from typing import TypeVar

from firesteel.units import show_bytes, show_seconds

_WORKERS = 4
_TELL_S = 0.5
_RATE_WINDOW_S = 15.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TransferProgress:
    """How far a fetch or a check has come."""

    done_bytes: int
    total_bytes: int
    bytes_per_s: float | None = None
    """None: nothing to tell it by yet."""

    def __str__(self) -> str:
        words = f"{show_bytes(self.done_bytes)} of {show_bytes(self.total_bytes)}"
        if not self.bytes_per_s:
            return words
        left_s = (self.total_bytes - self.done_bytes) / self.bytes_per_s
        return f"{words}, {show_bytes(round(self.bytes_per_s))}/s, {show_seconds(left_s)} left"


class TransferStopped(Exception):
    """Somebody has no more use for it."""


class TransferCounter:
    """Bytes that several threads have moved."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes, self.stop = total_bytes, threading.Event()
        self._done, self._kept, self._lock = 0, 0, threading.Lock()
        self._seen: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])

    def add(self, count: int) -> None:
        if self.stop.is_set():
            raise TransferStopped
        with self._lock:
            self._done += count

    def found(self, count: int) -> None:
        """Was there before: done, but no measure of how fast the rest will come."""
        self.add(count)
        with self._lock:
            self._kept += count

    def now(self) -> TransferProgress:
        at = time.monotonic()
        with self._lock:
            done, moved = self._done, self._done - self._kept
        self._seen.append((at, moved))
        while len(self._seen) > 2 and at - self._seen[0][0] > _RATE_WINDOW_S:
            self._seen.popleft()
        then, before = self._seen[0]
        rate = (moved - before) / (at - then) if at > then else 0.0
        return TransferProgress(done, self.total_bytes, rate if rate > 0 else None)


async def run_in_threads(
    jobs: Iterable[T], one: Callable[[T], None], tally: TransferCounter
) -> AsyncIterator[TransferProgress]:
    """`one` on every job, in threads that end with whoever waits here."""
    todo: queue.SimpleQueue[T] = queue.SimpleQueue()
    for job in jobs:
        todo.put(job)
    failed: list[Exception] = []
    loop, ended, left = asyncio.get_running_loop(), asyncio.Event(), _WORKERS

    def leave() -> None:
        nonlocal left
        left -= 1
        if not left:
            ended.set()

    def work() -> None:
        try:
            while not tally.stop.is_set():
                one(todo.get_nowait())
        except (queue.Empty, TransferStopped):
            pass
        except Exception as error:
            failed.append(error)
            tally.stop.set()
        finally:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(leave)

    for _ in range(_WORKERS):
        threading.Thread(target=work, daemon=True).start()
    try:
        while not ended.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), _TELL_S)
            yield tally.now()
    finally:
        tally.stop.set()
    if failed:
        raise failed[0]
