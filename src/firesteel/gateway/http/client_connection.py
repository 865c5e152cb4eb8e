"""A client's connection: its requests one after the other; each is answered before the next is read.

A client that closes its sending side may be gone, or only have nothing more to send. One that asked for a
stream gets a comment: if it is gone, its host answers with a reset, and the request is cancelled; otherwise
it gets its stream. There is nothing harmless to send to any other client, so it is treated as gone, as nginx
does.
"""

from __future__ import annotations

import asyncio
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from firesteel.gateway.http.body import ModelField, find_model
from firesteel.gateway.http.cors import cors_lines, preflight_response
from firesteel.gateway.http.direct import DirectExchange, Tunnel, direct_request
from firesteel.gateway.http.exchange import Exchange
from firesteel.gateway.http.forward import CLOSE, KEEP_ALIVE
from firesteel.gateway.http.head import RequestHead
from firesteel.gateway.http.keepalive import is_reset, watch_peer
from firesteel.gateway.http.ollama_exchange import OllamaExchange
from firesteel.gateway.http.request_checks import model_in_query, reject_page
from firesteel.gateway.http.request_reader import (
    ANSWERING,
    AT_BODY,
    AT_HEAD,
    LINGERING,
    TUNNELING,
    WAITING_FOR_BODY,
    RequestReader,
)
from firesteel.gateway.http.responses import rejection_response, response_bytes
from firesteel.gateway.http.routes import (
    DIRECT_ROUTES,
    UPSTREAM_AT,
    DirectRoute,
    Route,
    TranslatedRoute,
    check_upgrade,
    family_of,
    find_route,
)
from firesteel.gateway.http.translation import read_ollama
from firesteel.gateway.interfaces import ApiFamily, Caller, Endpoint, GatewayResponse, Rejection

if TYPE_CHECKING:
    from firesteel.gateway.http.server import HttpServer

_WRITE_AHEAD = 16 * 1024
"""Bytes of a response that a client has not read; then the engine is not read from either."""

_PEER_CHECK_S, _MAX_PEER_CHECK_S = 0.001, 5.0
_DISCARD_EVERY_S = 0.001
"""Between two reads of rejected requests; a read is at most 256 KiB."""


class ClientConnection(RequestReader):
    __slots__ = (
        "_caller", "_destination", "_exchange", "_is_half_closed", "_route", "_server", "_unsent",
        "cors", "dispatcher", "pool",
    )  # fmt: skip

    def __init__(self, server: HttpServer) -> None:
        super().__init__(server.limits, server.buffers)
        self._server = server
        self.dispatcher, self.pool = server.dispatcher, server.pool
        self._route: Route | Rejection | None = None
        self._destination: Any = None
        """A `Route`, or an `Endpoint` of the gateway itself."""
        self._caller = Caller()
        self._exchange: Exchange | None = None
        self._is_half_closed = False
        self.cors = b""
        """Header lines that let a web page read the response (`cors.py`)."""
        self._unsent = 0
        """Of the common buffers: what a slow client has not read."""

    # -- called by the loop --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.deadline = monotonic() + self.limits.head_s
        self.transport.set_write_buffer_limits(_WRITE_AHEAD)
        watch_peer(transport)
        self._server.add_client(self)

    def eof_received(self) -> bool | None:
        """Return whether the client may still read. What was written before is sent in any case."""
        exchange = self._exchange
        if exchange is None:
            return None
        self._is_half_closed = True
        if self.transport.can_write_eof() and exchange.write_comment():
            self._check_peer(_PEER_CHECK_S)
            return True
        self._drop_exchange()
        self.transport.abort()
        return None

    def _check_peer(self, delay_s: float) -> None:
        """A reset is not reported to a transport that has read the end; later writes would find it."""
        if is_reset(self.transport):
            self.abort()
        elif delay_s < _MAX_PEER_CHECK_S and not self.transport.is_closing():
            asyncio.get_running_loop().call_later(delay_s, self._check_peer, delay_s * 4)

    def connection_lost(self, exc: Exception | None) -> None:
        self._drop_exchange()
        self.free_body()
        self.buffers.give(self._buffered + self._unsent)
        self._buffered = self._unsent = 0
        self._server.remove_client(self)
        self._server.lingering.discard(self)

    def pause_writing(self) -> None:
        self.is_write_paused = True
        self.deadline = monotonic() + self.limits.send_idle_s
        self._unsent = self.transport.get_write_buffer_size()
        if not self.buffers.take(self._unsent):
            self._unsent = 0
            self.abort()  # the slowest reader, now that there is no room for what it does not read
        elif self._exchange is not None:
            self._exchange.pause()

    def resume_writing(self) -> None:
        self.is_write_paused = False
        self.buffers.give(self._unsent)
        self._unsent = 0
        if self._state == AT_HEAD:
            self._await_next_request()
        elif self._state == ANSWERING:
            self.deadline = inf
        if self._exchange is not None:
            self.deadline = monotonic() + self.limits.comment_every_s
            self._exchange.resume()

    # -- called by the server --

    def expire(self) -> None:
        """The deadline has passed."""
        if self._state == WAITING_FOR_BODY:
            self._reject(self.buffers.full())
            self._resume_reading()  # the rest is discarded, so that the rejection arrives
            return
        if self._state == AT_BODY or (self._state == AT_HEAD and self._buffer):
            self._reject(Rejection(408, "timeout", "the request took too long to arrive"))
            self.transport.close()
        elif self.is_write_paused:
            self.abort()
        elif self._exchange is not None:
            exchange = self._exchange
            next_tick = exchange.tick(monotonic())
            if self._exchange is exchange:
                self.deadline = next_tick
            return
        else:
            self.transport.abort() if self.transport.is_closing() else self.transport.close()
        self.deadline = monotonic() + self.limits.linger_s

    def drain(self) -> None:
        """Close now if idle, otherwise after the current response."""
        if self._state == AT_HEAD and not self._buffer:
            self.transport.close()
        elif self._state == TUNNELING:
            self.deadline = monotonic()

    def is_draining(self) -> bool:
        return self._server.is_draining

    def stop(self) -> bool:
        """End the current request with an error if possible. Return whether there was one."""
        exchange = self._exchange
        if exchange is not None:
            exchange.stop()
        self.transport.close()
        return exchange is not None

    def abort(self) -> None:
        """Close at once, so that an incomplete response cannot be taken for complete."""
        self._drop_exchange()
        self.transport.abort()

    # -- called by the exchange --

    def keeps_alive(self) -> bool:
        is_ending = self._server.is_draining or self._is_half_closed
        return self._head is not None and self._head.keeps_alive and not is_ending

    def begin_tunnel(self, deadline: float) -> None:
        """From here on the client's bytes are the server's."""
        self._state, self.deadline = TUNNELING, deadline
        self.buffers.give(self._buffered)
        data, self._buffer, self._buffered = self._buffer, b"", 0
        self.resume()
        if data:
            self._take_tunneled(data)

    def _take_tunneled(self, data: bytes) -> None:
        if isinstance(self._exchange, Tunnel) and not self._exchange.client_sent(data):
            self._pause_reading()

    def resume(self) -> None:
        if not self.transport.is_closing():
            self._resume_reading()

    def watch_leaving(self, exchange: Exchange) -> None:
        """Keep its time limits and its body: the connection that does so is closed."""
        exchange.reserved_bytes, self.reserved_bytes = self.reserved_bytes, 0
        self._server.leaving.add(exchange)

    def respond(self, response: GatewayResponse) -> None:
        keep = self.keeps_alive()
        head = self._head
        is_11 = head is None or head.is_11
        connection = self.cors + ((b"" if is_11 else KEEP_ALIVE) if keep else CLOSE)
        is_head = head is not None and head.method == b"HEAD"
        self.transport.write(response_bytes(response, connection, is_head=is_head))
        self.done(keep=keep)

    def done(self, *, keep: bool) -> None:
        """The whole response is written; `keep`: the connection may be used again."""
        self._exchange = None
        if self.reserved_bytes:
            self.free_body()
        if not keep or self._server.is_draining or self._is_half_closed:
            self.transport.close()
            self.deadline = monotonic() + self.limits.send_idle_s
            return
        self._state = AT_HEAD
        if not self.is_write_paused:
            self._await_next_request()

    def _await_next_request(self) -> None:
        """Wait for the next request, or start with one that is already buffered."""
        self.deadline = monotonic() + self.limits.keep_alive_s
        self._resume_reading()
        if self._buffer:
            asyncio.get_running_loop().call_soon(self._take_next)

    def _drop_exchange(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.client_left()

    # -- called when a head or a request is complete --

    def _admit(self, head: RequestHead, *, is_new: bool) -> None:
        if is_new:
            route = find_route(head.method, head.path)
            self._route = check_upgrade(route, is_websocket=bool(head.websocket_key))
            self.cors = b""
        self._state = ANSWERING
        self._is_in_head = False
        self.deadline = inf
        if head.origin and self._answer_preflight(head):
            return
        caller = self.dispatcher.admit(head.token)
        if isinstance(caller, Rejection):
            if response := self.dispatcher.public_response(head.method, head.path):
                self._respond_early(response)
            else:
                self._reject(caller)
            return
        if not caller.name and (page := reject_page(head, is_allowed=bool(self.cors))):
            self._reject(page)
            return
        self._caller = caller
        destination = self._route
        if not isinstance(destination, Route):
            self._handle_local(head, caller)
            return
        self._destination = destination
        self._read_body(head)

    def _answer_preflight(self, head: RequestHead) -> bool:
        """Of a web page: whether its browser only asks what is allowed. That needs no key."""
        origins = self._server.origins
        self.cors = cors_lines(head, origins)
        response = preflight_response(head, self.cors, origins)
        if isinstance(response, Rejection):
            self._reject(response)
        elif response is not None:
            self._respond_early(response)
        return response is not None

    def _handle_local(self, head: RequestHead, caller: Caller) -> None:
        """For a path that is not an engine's."""
        destination = self.dispatcher.local_target(head.method, head.path, caller) or self._route
        if isinstance(destination, Endpoint):
            self._destination = destination
            self._read_body(head)
        elif isinstance(destination, GatewayResponse):
            self._respond_early(destination)
        elif isinstance(destination, Rejection):
            self._reject(destination)
        else:
            path = head.path.decode("ascii", "replace")
            self._reject(Rejection(404, "unknown_path", f"{path} is not a path of this server"))

    def _dispatch(self, head: RequestHead, body: bytes) -> None:
        self.deadline = self._began + self.limits.comment_every_s
        if self._destination.__class__ is not Route:
            self._dispatch_other(self._destination, head, body)
            return
        route: Route = self._destination
        exchange = Exchange(self, head, self._caller, self._began)
        model_field = find_model(body, head.content_type) if route.body != "none" else model_in_query(head)
        if isinstance(model_field, Rejection) and model_field.kind == "missing_model" and b"?" in head.target:
            model_field = model_in_query(head)
        if isinstance(model_field, Rejection):
            self.respond(rejection_response(model_field, route.family))
            return
        self._exchange = exchange
        exchange.submit(route, model_field, body)

    def _dispatch_other(
        self, destination: Endpoint | TranslatedRoute | DirectRoute, head: RequestHead, body: bytes
    ) -> None:
        if isinstance(destination, Endpoint):
            self._exchange = exchange = Exchange(self, head, self._caller, self._began)
            exchange.forward_to(destination, body)
        elif isinstance(destination, DirectRoute):
            self._dispatch_direct(destination, head, body)
        else:
            self._dispatch_ollama(destination, head, body)

    def _dispatch_direct(self, route: DirectRoute, head: RequestHead, body: bytes) -> None:
        request = direct_request(head)
        if not isinstance(request, Rejection):
            is_path = route is DIRECT_ROUTES[UPSTREAM_AT]
            rejection = self.dispatcher.check_direct(request.model, self._caller, is_path=is_path)
            request = rejection or request
        if isinstance(request, Rejection):
            self.respond(rejection_response(request, route.family))
            return
        kind = Tunnel if head.websocket_key else DirectExchange
        self._exchange = exchange = kind(self, request.head, self._caller, self._began)
        exchange.path = request.path
        exchange.submit(route, ModelField(request.model, 0, 0), body)

    def _dispatch_ollama(self, route: TranslatedRoute, head: RequestHead, body: bytes) -> None:
        call = read_ollama(head.path, body)
        if isinstance(call, Rejection):
            self.respond(rejection_response(call, route.family))
            return
        if call.is_unload():
            rejection = self.dispatcher.keep_alive(call.context.model, 0.0, self._caller)
            self.respond(rejection_response(rejection, "ollama") if rejection else call.loaded())
            return
        self._exchange = exchange = OllamaExchange(self, head, self._caller, self._began)
        exchange.ollama = call
        exchange.submit(route, call.model_field, call.body)

    # -- responses of the gateway itself --

    def _reject(self, rejection: Rejection) -> None:
        family: ApiFamily = family_of(self._head.path) if self._head is not None else "openai"
        self._respond_early(rejection_response(rejection, family))

    def _respond_early(self, response: GatewayResponse) -> None:
        """May be sent before the request is complete; the rest of the request is discarded."""
        self.free_body()
        head = self._head
        size = (head.length or 0) if head is not None and not head.is_chunked else inf
        if self._state == ANSWERING and len(self._buffer) >= size:
            self._buffer = self._buffer[int(size) :]
            self.respond(response)
            return
        is_head = head is not None and head.method == b"HEAD"
        self.transport.write(response_bytes(response, self.cors + CLOSE, is_head=is_head))
        self._state = LINGERING
        self._server.lingering.add(self)
        self._buffer = b""
        self.deadline = monotonic() + self.limits.linger_s
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _discard(self) -> None:
        """Many that go on sending are read in turns, so that they do not take all the time."""
        self._pause_reading()
        delay_s = _DISCARD_EVERY_S * len(self._server.lingering)
        asyncio.get_running_loop().call_later(delay_s, self.resume)
