"""What the server, a client's connection and an exchange see of each other."""

from __future__ import annotations

import asyncio
from typing import Protocol, TypeVar

from firesteel.gateway.http.limits import HttpLimits
from firesteel.gateway.http.pool import ConnectionPool
from firesteel.gateway.interfaces import Dispatcher, GatewayResponse

C = TypeVar("C", contravariant=True)


class ConnectionOwner(Protocol[C]):
    """The server, as a client's connection sees it."""

    dispatcher: Dispatcher
    pool: ConnectionPool
    limits: HttpLimits
    is_draining: bool

    def add_client(self, client: C) -> None: ...

    def remove_client(self, client: C) -> None: ...


class ResponseWriter(Protocol):
    """A client's connection, as an exchange sees it."""

    dispatcher: Dispatcher
    pool: ConnectionPool
    limits: HttpLimits
    transport: asyncio.Transport

    def respond(self, response: GatewayResponse) -> None: ...

    def is_write_paused(self) -> bool:
        """Whether the client is too slow at the moment."""

    def keeps_alive(self) -> bool:
        """Whether the connection may be used after this response."""

    def done(self, *, keep: bool) -> None:
        """The whole response is written."""

    def abort(self) -> None:
        """Close at once, so that an incomplete response cannot be taken for complete."""
