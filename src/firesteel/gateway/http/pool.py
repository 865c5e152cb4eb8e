"""Connections to engines, kept open between requests.

The newest is taken first, so that in a quiet time the others grow old and go. None is kept as long as engines
keep theirs: a connection that closes under a request is a request sent twice.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from time import monotonic

from firesteel.gateway.http.keepalive import watch_peer
from firesteel.gateway.http.limits import HttpLimits
from firesteel.gateway.http.upstream import Upstream
from firesteel.gateway.interfaces import Endpoint

Key = tuple[tuple[str, int] | str, bool]
Ready = Callable[[Upstream], None]
Failed = Callable[[str], None]


class Connecting:
    """A connection under way. It is cancelled when nobody waits for it any more."""

    __slots__ = ("_task",)

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def cancel(self) -> None:
        self._task.cancel()


class ConnectionPool:
    """Idle connections by address."""

    __slots__ = ("_idle", "_limits", "_tasks", "_tls")

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._idle: dict[Key, list[Upstream]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._tls: ssl.SSLContext | None = None

    def take(self, seat: Endpoint) -> Upstream | None:
        """An idle connection, if there is a young one."""
        idle = self._idle.get((seat.address, seat.is_tls))
        while idle:
            upstream = idle.pop()
            if upstream.idle_since < monotonic() - self._limits.idle_connection_s:
                upstream.transport.close()
            elif not upstream.transport.is_closing():
                return upstream
        return None

    def connect(self, seat: Endpoint, ready: Ready, failed: Failed) -> Connecting:
        """Opens one; never blocks, and calls one of the two, later."""
        task = asyncio.get_running_loop().create_task(self._connect(seat, ready, failed))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return Connecting(task)

    def sweep(self, now: float) -> None:
        """Closes what has been idle too long."""
        oldest = now - self._limits.idle_connection_s
        for idle in self._idle.values():
            for upstream in [one for one in idle if one.idle_since < oldest]:
                idle.remove(upstream)
                upstream.transport.close()

    def close(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        for idle in self._idle.values():
            while idle:
                idle.pop().transport.abort()

    def count(self) -> int:
        return sum(len(idle) for idle in self._idle.values())

    async def _connect(self, seat: Endpoint, ready: Ready, failed: Failed) -> None:
        try:
            async with asyncio.timeout(self._limits.connect_s):
                upstream = await self._open(seat)
        except TimeoutError:
            failed(f"no connection within {self._limits.connect_s:g} s")
        except (OSError, ssl.SSLError, ValueError) as error:
            failed(str(error) or type(error).__name__)
        else:
            ready(upstream)

    async def _open(self, seat: Endpoint) -> Upstream:
        key = (seat.address, seat.is_tls)
        idle = self._idle.setdefault(key, [])
        loop = asyncio.get_running_loop()
        tls = self._context() if seat.is_tls else None

        def make() -> Upstream:
            return Upstream(lambda one: self._give(idle, one), lambda one: self._lose(idle, one))

        if isinstance(seat.address, str):
            _, upstream = await loop.create_unix_connection(make, seat.address)
            return upstream
        host, port = seat.address
        _, upstream = await loop.create_connection(make, host, port, ssl=tls)
        watch_peer(upstream.transport)
        return upstream

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    def _give(self, idle: list[Upstream], upstream: Upstream) -> None:
        if len(idle) >= self._limits.idle_connections:
            upstream.transport.close()
            return
        upstream.idle_since = monotonic()
        idle.append(upstream)

    def _lose(self, idle: list[Upstream], upstream: Upstream) -> None:
        if upstream in idle:
            idle.remove(upstream)
