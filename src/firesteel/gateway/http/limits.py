"""Limits on what a client may send and how long it may take, and one bound on the bytes of all clients
together: bodies that are read, wait or are sent, unfinished heads, and responses that slow clients do not
read.

The engines are planned into the host's memory to the last gigabyte, so the gateway must not grow with the
number of its clients.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from firesteel.gateway.interfaces import Rejection
from firesteel.values import Value

KIB = 1024


class HttpLimits(Value):
    """Every loop and every buffer of the HTTP server is bounded by one of these."""

    head_bytes: int = 32 * KIB
    head_lines: int = 100
    uri_bytes: int = 8 * KIB
    body_bytes: int = 64 * KIB * KIB
    buffer_bytes: int = 128 * KIB * KIB
    """Bodies and buffers of all clients together (`BufferBudget`)."""
    buffer_wait_s: float = 30.0
    """For room for a body; then 503."""
    keeps_bodies: bool = True
    """Keep bodies until the request ends, for a log of prompts; otherwise until the engine responds."""
    head_s: float = 30.0
    """From the first byte of a head to its last."""
    body_idle_s: float = 60.0
    """Between two pieces of a request's body."""
    keep_alive_s: float = 75.0
    """Between a response and the next request."""
    send_idle_s: float = 60.0
    """A client that reads nothing for this long is disconnected: it keeps a model busy."""
    linger_s: float = 5.0
    """After a rejection, how long the rest of its request is discarded, so that the rejection arrives."""
    hold_after_s: float = 1.0
    """A stream that waits longer gets its head and comments; before that a rejection has its real status."""
    comment_every_s: float = 5.0
    connect_s: float = 5.0
    idle_connections: int = 64
    """Per endpoint."""
    idle_connection_s: float = 4.0
    """Below the 5 s after which uvicorn (vLLM, SGLang) and cpp-httplib (llama.cpp) close idle ones."""
    sweep_s: float = 1.0
    """How often the deadlines are checked."""


def buffered_limits(buffer_bytes: int, *, keeps_bodies: bool) -> HttpLimits:
    """No body takes more than half of the common buffers."""
    body_bytes = min(HttpLimits().body_bytes, buffer_bytes // 2)
    return HttpLimits(buffer_bytes=buffer_bytes, body_bytes=body_bytes, keeps_bodies=keeps_bodies)


_WAITING_SHARE = 4
"""One part in four for the beginnings of bodies that wait, which arrived with their heads; otherwise these
could leave no room for any whole body."""


class BodyWaiter(Protocol):
    """A client whose body waits to be read."""

    def read_on(self) -> None:
        """There is room for it now."""


class BufferBudget:
    """What all clients together may fill.

    A body of known length is reserved as a whole before it is read, so that every body that was begun can be
    completed; until then the client is not read from (back-pressure). Bodies without a length, and those that
    arrived together with their head, are rejected with 503 if there is no room.
    """

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
