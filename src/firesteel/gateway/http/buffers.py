"""One bound on the bytes of all clients together: bodies that are read, wait or are sent, unfinished heads,
and responses that slow clients do not read.

The engines are planned into the host's memory to the last gigabyte, so the gateway must not grow with the
number of its clients. A body of known length is reserved as a whole before it is read, so that every body
that was begun can be completed; until then the client is not read from (back-pressure). Bodies without a
length, and those that arrived together with their head, are rejected with 503 if there is no room.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from firesteel.gateway.interfaces import Rejection

_WAITING_SHARE = 4
"""One part in four for the beginnings of bodies that wait, which arrived with their heads; otherwise these
could leave no room for any whole body."""


class BodyWaiter(Protocol):
    """A client whose body waits to be read."""

    def read_on(self) -> None:
        """There is room for it now."""


class BufferBudget:
    __slots__ = ("_waiting", "_waiting_bytes", "limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._waiting_bytes = 0
        self._waiting: deque[tuple[BodyWaiter, int, int]] = deque()

    def take(self, size: int) -> bool:
        """Reserve, if there is room."""
        if self.used_bytes + size > self.limit_bytes:
            return False
        self.used_bytes += size
        return True

    def give(self, size: int) -> None:
        self.used_bytes -= size
        if self._waiting:
            self._wake()

    def _wake(self) -> None:
        while self._waiting:
            waiter, total, part = self._waiting[0]
            if not self.take(total - part):
                return
            self._waiting.popleft()
            self._waiting_bytes -= part
            waiter.read_on()

    def wait(self, waiter: BodyWaiter, total: int, part: int) -> bool:
        """Wait until `total` bytes can be reserved, of which `part` have arrived. False: too much waits."""
        if self._waiting_bytes + part > self.limit_bytes // _WAITING_SHARE or not self.take(part):
            return False
        self._waiting_bytes += part
        self._waiting.append((waiter, total, part))
        return True

    def stop_waiting(self, waiter: BodyWaiter) -> None:
        for entry in self._waiting:
            if entry[0] is waiter:
                self._waiting.remove(entry)
                self._waiting_bytes -= entry[2]
                self.give(entry[2])
                return

    def full(self) -> Rejection:
        size = self.limit_bytes // 2**20
        why = f"the requests of all clients together fill the gateway's memory, {size} MiB. Retry in 5 s."
        return Rejection(503, "buffers_full", why, 5.0)
