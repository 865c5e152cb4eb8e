"""Accepts connections, checks their deadlines, and shuts down gracefully."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic

from firesteel.gateway.http.client_connection import ClientConnection
from firesteel.gateway.http.limits import BufferBudget, HttpLimits, buffered_limits
from firesteel.gateway.http.normalize import Normalizers
from firesteel.gateway.http.request import Request
from firesteel.gateway.http.upstream import ConnectionPool
from firesteel.gateway.interfaces import Dispatcher
from firesteel.gateway.service_config import ServiceConfig

_BACKLOG = 1024
_GOODBYE_S = 1.0
"""For clients that are cut off to receive the error."""
_CUT_S = 5.0
"""Closing a connection takes a turn of the loop; all of them never take this long."""


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's, where it is installed."""
    try:
        import uvloop  # not on every platform
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class HttpServer:
    """Serves a dispatcher on any number of addresses."""

    def __init__(self, dispatcher: Dispatcher, limits: HttpLimits | None = None) -> None:
        self.dispatcher = dispatcher
        self.limits = limits or HttpLimits()
        self.pool = ConnectionPool(self.limits)
        self.buffers = BufferBudget(self.limits.buffer_bytes)
        self.is_draining = False
        self.origins: tuple[str, ...] = ()
        """Web pages that may use the models (`access.py`)."""
        self.keepalives: Mapping[str, str] = {}
        """Events that keep a client, by its `User-Agent` (`ServiceConfig`)."""
        self._clients: set[ClientConnection] = set()
        self.lingering: set[ClientConnection] = set()
        """Clients whose request was rejected before it was complete."""
        self.leaving: set[Request] = set()
        """Requests whose client has left, and whose engine is not cancelled."""
        self._listeners: list[asyncio.Server] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()

    def use_clients(self, config: ServiceConfig) -> None:
        """What is known of clients."""
        self.keepalives = config.keepalives
        self.pool.normalizers = Normalizers(config.normalizers, config.normalize)

    async def start(self, host: str, port: int, ssl_context: ssl.SSLContext | None = None) -> int:
        """Listen, and return the port (0 chooses a free one)."""
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(
            lambda: ClientConnection(self), host, port, ssl=ssl_context, backlog=_BACKLOG
        )
        self._listeners.append(listener)
        if self._sweeper is None:
            self._sweep()
        return int(listener.sockets[0].getsockname()[1])

    async def drain(self, grace_s: float) -> int:
        """Accept no new connections, close idle ones, and let active requests finish within `grace_s`. Return
        how many did not."""
        cut = 0
        self.is_draining = True
        for listener in self._listeners:
            listener.close()
        for client in tuple(self._clients):
            client.drain()
        try:
            async with asyncio.timeout(grace_s):
                await self._until_empty()
        except TimeoutError:
            cut = await self._cut_off()
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        self.pool.close()
        return cut

    def change_buffers(self, limit_bytes: int) -> None:
        """For connections from now on, and the common bound for all."""
        if limit_bytes != self.buffers.limit_bytes:
            self.limits = buffered_limits(limit_bytes, keeps_bodies=self.limits.keeps_bodies)
            self.buffers.limit_bytes = limit_bytes

    def add_client(self, client: ClientConnection) -> None:
        self._clients.add(client)
        if self.is_draining:  # it was accepted, but not yet announced, when the others were closed
            client.transport.close()

    def remove_client(self, client: ClientConnection) -> None:
        self._clients.discard(client)
        if not self._clients:
            self._empty.set()

    def connections(self) -> int:
        return len(self._clients)

    def _sweep(self) -> None:
        now = monotonic()
        for client in [client for client in self._clients if client.deadline <= now]:
            client.expire()
        for request in tuple(self.leaving):
            request.tick(now)
            if request.is_done():
                self.leaving.discard(request)
        self.pool.sweep(now)
        self._sweeper = asyncio.get_running_loop().call_later(self.limits.sweep_s, self._sweep)

    async def _cut_off(self) -> int:
        cut = sum(client.stop() for client in tuple(self._clients))
        with suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE_S):
                await self._until_empty()
        for client in tuple(self._clients):
            client.abort()
        async with asyncio.timeout(_CUT_S):
            await self._until_empty()
        return cut

    async def _until_empty(self) -> None:
        if self._clients:
            self._empty.clear()
            await self._empty.wait()
