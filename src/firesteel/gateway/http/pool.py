"""Connections to engines, kept open between requests.

The newest is used first, so that in quiet times the others age and are closed. None is kept as long as
engines keep theirs: a connection that closes under a request means that the request is sent twice.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from functools import cached_property
from time import monotonic

from firesteel.gateway.http.keepalive import watch_peer
from firesteel.gateway.http.limits import HttpLimits
from firesteel.gateway.http.upstream import Upstream
from firesteel.gateway.interfaces import Endpoint

Key = tuple[tuple[str, int] | str, bool]
Ready = Callable[[Upstream], None]
Failed = Callable[[str], None]


class ConnectionPool:
    """Idle connections by address."""

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._idle: dict[Key, list[Upstream]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.unasked: set[tuple[str, int] | str] = set()
        """Addresses of servers that reject a request for token counts."""

    def take(self, endpoint: Endpoint) -> Upstream | None:
        """Return an idle connection that is not too old."""
        idle = self._idle.get((endpoint.address, endpoint.is_tls))
        while idle:
            upstream = idle.pop()
            if upstream.idle_since < monotonic() - self._limits.idle_connection_s:
                upstream.transport.close()
            elif not upstream.transport.is_closing():
                return upstream
        return None

    def connect(self, endpoint: Endpoint, ready: Ready, failed: Failed) -> asyncio.Task[None]:
        """Open a connection without blocking; one of the callbacks is called later, unless cancelled."""
        task = asyncio.get_running_loop().create_task(self._connect(endpoint, ready, failed))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def sweep(self, now: float) -> None:
        """Close connections that have been idle for too long."""
        oldest = now - self._limits.idle_connection_s
        for idle in self._idle.values():
            for upstream in [upstream for upstream in idle if upstream.idle_since < oldest]:
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

    async def _connect(self, endpoint: Endpoint, ready: Ready, failed: Failed) -> None:
        try:
            async with asyncio.timeout(self._limits.connect_s):
                upstream = await self._open(endpoint)
        except TimeoutError:
            failed(f"no connection within {self._limits.connect_s:g} s")
        except (OSError, ssl.SSLError, ValueError) as error:
            failed(str(error) or type(error).__name__)
        else:
            ready(upstream)

    async def _open(self, endpoint: Endpoint) -> Upstream:
        key = (endpoint.address, endpoint.is_tls)
        idle = self._idle.setdefault(key, [])
        loop = asyncio.get_running_loop()
        tls = self._tls if endpoint.is_tls else None

        def new_upstream() -> Upstream:
            return Upstream(
                lambda upstream: self._put_back(idle, upstream), lambda upstream: self._remove(idle, upstream)
            )

        if isinstance(endpoint.address, str):
            _, upstream = await loop.create_unix_connection(new_upstream, endpoint.address)
            return upstream
        host, port = endpoint.address
        _, upstream = await loop.create_connection(new_upstream, host, port, ssl=tls)
        watch_peer(upstream.transport)
        return upstream

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context()

    def _put_back(self, idle: list[Upstream], upstream: Upstream) -> None:
        if len(idle) >= self._limits.idle_connections:
            upstream.transport.close()
            return
        upstream.idle_since = monotonic()
        idle.append(upstream)

    def _remove(self, idle: list[Upstream], upstream: Upstream) -> None:
        if upstream in idle:
            idle.remove(upstream)
