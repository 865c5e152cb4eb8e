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

from firesteel.gateway.http.access import cors_lines, model_in_query, preflight_response, reject_page
from firesteel.gateway.http.body import ModelField, find_model
from firesteel.gateway.http.direct import direct_request
from firesteel.gateway.http.head import RequestHead
from firesteel.gateway.http.messages import (
    CLOSE,
    CONTINUE,
    KEEP_ALIVE,
    keepalive_event,
    rejection_response,
    response_bytes,
)
from firesteel.gateway.http.normalize import user_agent
from firesteel.gateway.http.request import Request
from firesteel.gateway.http.request_reader import MAX_AHEAD, RequestReader
from firesteel.gateway.http.routes import (
    DIRECT_ROUTES,
    UPSTREAM_AT,
    DirectRoute,
    ResponsesRoute,
    Route,
    TranslatedRoute,
    check_upgrade,
    family_of,
    find_route,
)
from firesteel.gateway.http.translation import DIRECT, ollama_dialect, read_ollama, responses_dialect
from firesteel.gateway.http.upstream import is_reset, watch_peer
from firesteel.gateway.interfaces import ApiFamily, Caller, Endpoint, GatewayResponse, Rejection

if TYPE_CHECKING:
    from firesteel.gateway.http.server import HttpServer

_WRITE_AHEAD = 16 * 1024
"""Bytes of a response that a client has not read; then the engine is not read from either."""

_PEER_CHECK_S, _MAX_PEER_CHECK_S = 0.001, 5.0
_DISCARD_EVERY_S = 0.001
"""Between two reads of rejected requests; a read is at most 256 KiB."""


AT_HEAD, WAITING_FOR_BODY, AT_BODY, ANSWERING, LINGERING, TUNNELING = range(6)


class ClientConnection(asyncio.Protocol):
    __slots__ = (
        "_began", "_caller", "_destination", "_head", "_is_half_closed", "_is_paused", "_reader", "_request",
        "_route", "_server", "_state", "_unsent", "buffers", "cors", "deadline", "dispatcher",
        "is_write_paused", "limits", "pool", "transport",
    )  # fmt: skip

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self.limits, self.buffers = server.limits, server.buffers
        self.dispatcher, self.pool = server.dispatcher, server.pool
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.deadline = inf
        """When the current activity times out."""
        self._reader = RequestReader(server.limits, server.buffers, self)
        self._state = AT_HEAD
        self._began = 0.0
        """When the current request began to arrive."""
        self._head: RequestHead | None = None
        self._route: Route | Rejection | None = None
        self._destination: Any = None
        """A `Route`, or an `Endpoint` of the gateway itself."""
        self._caller = Caller()
        self._request: Request | None = None
        self._is_half_closed = self._is_paused = self.is_write_paused = False
        self.cors = b""
        """Header lines that let a web page read the response (`access.py`)."""
        self._unsent = 0
        """Of the common buffers: what a slow client has not read."""

    # -- called by the loop --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.deadline = monotonic() + self.limits.head_s
        self.transport.set_write_buffer_limits(_WRITE_AHEAD)
        watch_peer(transport)
        self._server.add_client(self)

    def data_received(self, data: bytes) -> None:
        state = self._state
        if state == AT_HEAD and not self.is_write_paused and len(self._reader.buffer) <= MAX_AHEAD:
            self._take_head(data)
        elif state == AT_BODY:
            self._take_body(data)
        elif state == LINGERING:
            self._discard()
        elif state == TUNNELING:
            self._take_tunneled(data)
        elif not self._reader.keep(data):
            self.abort()
        elif not self._reader.is_small():
            self._pause_reading()

    def eof_received(self) -> bool | None:
        """Return whether the client may still read. What was written before is sent in any case."""
        request = self._request
        if request is None:
            return None
        self._is_half_closed = True
        if self.transport.can_write_eof() and request.write_comment():
            self._check_peer(_PEER_CHECK_S)
            return True
        self._drop_request()
        self.transport.abort()
        return None

    def _check_peer(self, delay_s: float) -> None:
        """A reset is not reported to a transport that has read the end; later writes would find it."""
        if is_reset(self.transport):
            self.abort()
        elif delay_s < _MAX_PEER_CHECK_S and not self.transport.is_closing():
            asyncio.get_running_loop().call_later(delay_s, self._check_peer, delay_s * 4)

    def connection_lost(self, exc: Exception | None) -> None:
        self._drop_request()
        self._reader.close()
        self.buffers.give(self._unsent)
        self._unsent = 0
        self._server.remove_client(self)
        self._server.lingering.discard(self)

    def pause_writing(self) -> None:
        self.is_write_paused = True
        self.deadline = monotonic() + self.limits.send_idle_s
        self._unsent = self.transport.get_write_buffer_size()
        if not self.buffers.take(self._unsent):
            self._unsent = 0
            self.abort()  # the slowest reader, now that there is no room for what it does not read
        elif self._request is not None:
            self._request.pause()

    def resume_writing(self) -> None:
        self.is_write_paused = False
        self.buffers.give(self._unsent)
        self._unsent = 0
        if self._state == AT_HEAD:
            self._await_next_request()
        elif self._state == ANSWERING:
            self.deadline = inf
        if self._request is not None:
            self.deadline = monotonic() + self.limits.comment_every_s
            self._request.resume()

    # -- called by the server --

    def expire(self) -> None:
        """The deadline has passed."""
        if self._state == WAITING_FOR_BODY:
            self._reject(self.buffers.full())
            self._resume_reading()  # the rest is discarded, so that the rejection arrives
            return
        if self._state == AT_BODY or (self._state == AT_HEAD and self._reader.buffer):
            self._reject(Rejection(408, "timeout", "the request took too long to arrive"))
            self.transport.close()
        elif self.is_write_paused:
            self.abort()
        elif self._request is not None:
            request = self._request
            next_tick = request.tick(monotonic())
            if self._request is request:
                self.deadline = next_tick
            return
        else:
            self.transport.abort() if self.transport.is_closing() else self.transport.close()
        self.deadline = monotonic() + self.limits.linger_s

    def drain(self) -> None:
        """Close now if idle, otherwise after the current response."""
        if self._state == AT_HEAD and not self._reader.buffer:
            self.transport.close()
        elif self._state == TUNNELING:
            self.deadline = monotonic()

    def is_draining(self) -> bool:
        return self._server.is_draining

    def stop(self) -> bool:
        """End the current request with an error if possible. Return whether there was one."""
        request = self._request
        if request is not None:
            request.stop()
        self.transport.close()
        return request is not None

    def abort(self) -> None:
        """Close at once, so that an incomplete response cannot be taken for complete."""
        self._drop_request()
        self.transport.abort()

    # -- called by the request --

    @property
    def reserved_bytes(self) -> int:
        """Of the common buffers, for the body."""
        return self._reader.reserved_bytes

    def free_body(self) -> None:
        """It was sent, or will not be."""
        if self._state == WAITING_FOR_BODY:
            self._state = LINGERING
        self._reader.free_body()

    def keeps_alive(self) -> bool:
        head = self._head
        if head is None or not head.keeps_alive:
            return False
        return not (self._server.is_draining or self._is_half_closed)

    def keepalive(self) -> bytes:
        """The event that this client takes for a sign of life; empty: comments are enough, or all that is
        known to be safe."""
        events, head = self._server.keepalives, self._head
        name = events.get(user_agent(head), "") if events and head is not None else ""
        return keepalive_event(name) if name else b""

    def begin_tunnel(self, deadline: float) -> None:
        """From here on the client's bytes are the server's."""
        self._state, self.deadline = TUNNELING, deadline
        data = self._reader.take_buffer()
        self.resume()
        if data:
            self._take_tunneled(data)

    def _take_tunneled(self, data: bytes) -> None:
        if self._request is not None and not self._request.client_sent(data):
            self._pause_reading()

    def resume(self) -> None:
        if not self.transport.is_closing():
            self._resume_reading()

    def _resume_reading(self) -> None:
        """Only once the buffer is small: otherwise requests are read faster than they are answered."""
        if self._is_paused and self._reader.is_small():
            self._is_paused = False
            self.transport.resume_reading()

    def _pause_reading(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()

    def watch_leaving(self, request: Request) -> None:
        """Keep its time limits and its body: the connection that does so is closed."""
        request.reserved_bytes, self._reader.reserved_bytes = self._reader.reserved_bytes, 0
        self._server.leaving.add(request)

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
        self._request = None
        if self._reader.reserved_bytes:
            self._reader.free_body()
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
        if self._is_paused:
            self._resume_reading()
        if self._reader.buffer:
            asyncio.get_running_loop().call_soon(self._take_next)

    def _take_next(self) -> None:
        is_blocked = self.is_write_paused or self.transport.is_closing()
        if self._state == AT_HEAD and self._reader.buffer and not is_blocked:
            self._take_head(b"")
            if self._state != ANSWERING:
                self._resume_reading()

    def _drop_request(self) -> None:
        request, self._request = self._request, None
        if request is not None:
            request.client_left()

    # -- a head, and the body behind it --

    def _take_head(self, data: bytes) -> None:
        self._began = monotonic()
        reader = self._reader
        was_in_head = reader.is_in_head
        head = reader.take_head(data)
        if head is None or head is not self._head:
            if head is None or isinstance(head, Rejection):
                self._head = None
                if head is not None:
                    self._reject(head)
                elif reader.is_in_head and not was_in_head:
                    self.deadline = self._began + self.limits.head_s
                return
            self._head = head
            route = find_route(head.method, head.path)
            self._route = check_upgrade(route, is_websocket=bool(head.websocket_key))
            self.cors = b""
        self._state = ANSWERING
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
        if isinstance(destination, Route):
            self._destination = destination
            self._read_body(head)
        else:
            self._handle_local(head, caller)

    def _read_body(self, head: RequestHead) -> None:
        body = self._reader.begin_body(head)
        if isinstance(body, Rejection):
            self._reject(body)
        elif body is not None:
            self._dispatch(head, body)
        elif self._reader.is_waiting:
            self._state = WAITING_FOR_BODY
            self._pause_reading()
            self.deadline = monotonic() + self.limits.buffer_wait_s
        else:
            self._await_body(head)

    def read_on(self) -> None:
        """Called when there is room for the body."""
        assert self._head is not None
        self._reader.has_room(self._head)
        self._await_body(self._head)
        self._resume_reading()

    def _await_body(self, head: RequestHead) -> None:
        self._state = AT_BODY
        data = self._reader.take_buffer()
        if head.expects_continue and not data:
            self.transport.write(CONTINUE)
        self.deadline = monotonic() + self.limits.body_idle_s
        if data:
            self._take_body(data)

    def _take_body(self, data: bytes) -> None:
        head = self._head
        assert head is not None
        self.deadline = monotonic() + self.limits.body_idle_s
        body = self._reader.take_body(head, data)
        if isinstance(body, Rejection):
            self._reject(body)
        elif body is not None:
            self._state = ANSWERING
            self._dispatch(head, body)

    # -- what a request is for --

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
        route = self._destination
        if route.__class__ is not Route:
            if isinstance(route, Endpoint):
                self._request = request = Request(self, head, self._caller, self._began)
                request.forward_to(route, body)
            elif isinstance(route, DirectRoute):
                self._dispatch_direct(route, head, body)
            elif isinstance(route, ResponsesRoute):
                self._dispatch_responses(route, head, body)
            else:
                self._dispatch_ollama(route, head, body)
            return
        model_field = find_model(body, head.content_type) if route.body != "none" else model_in_query(head)
        if isinstance(model_field, Rejection):
            if model_field.kind == "missing_model" and b"?" in head.target:
                model_field = model_in_query(head)
            if isinstance(model_field, Rejection):
                self.respond(rejection_response(model_field, route.family))
                return
        self._request = request = Request(self, head, self._caller, self._began)
        request.submit(route, model_field, body)

    def _dispatch_responses(self, route: ResponsesRoute, head: RequestHead, body: bytes) -> None:
        found = find_model(body, head.content_type)
        if isinstance(found, Rejection) and found.kind == "missing_model" and b"?" in head.target:
            found = model_in_query(head)
        if isinstance(found, Rejection):
            self.respond(rejection_response(found, route.family))
            return
        self._request = request = Request(self, head, self._caller, self._began)
        request.submit(route, found, body, responses_dialect(body))

    def _dispatch_direct(self, route: DirectRoute, head: RequestHead, body: bytes) -> None:
        direct = direct_request(head)
        if not isinstance(direct, Rejection):
            is_path = route is DIRECT_ROUTES[UPSTREAM_AT]
            rejection = self.dispatcher.check_direct(direct.model, self._caller, is_path=is_path)
            direct = rejection or direct
        if isinstance(direct, Rejection):
            self.respond(rejection_response(direct, route.family))
            return
        self._request = request = Request(self, direct.head, self._caller, self._began)
        request.path = direct.path
        request.submit(route, ModelField(direct.model, 0, 0), body, DIRECT)

    def _dispatch_ollama(self, route: TranslatedRoute, head: RequestHead, body: bytes) -> None:
        call = read_ollama(head.path, body)
        if isinstance(call, Rejection):
            self.respond(rejection_response(call, route.family))
            return
        if call.is_unload():
            rejection = self.dispatcher.keep_alive(call.context.model, 0.0, self._caller)
            self.respond(rejection_response(rejection, "ollama") if rejection else call.loaded())
            return
        self._request = request = Request(self, head, self._caller, self._began)
        request.submit(route, call.model_field, call.body, ollama_dialect(call), call)

    # -- responses of the gateway itself --

    def _reject(self, rejection: Rejection) -> None:
        family: ApiFamily = family_of(self._head.path) if self._head is not None else "openai"
        self._respond_early(rejection_response(rejection, family))

    def _respond_early(self, response: GatewayResponse) -> None:
        """May be sent before the request is complete; the rest of the request is discarded."""
        self.free_body()
        head = self._head
        size = (head.length or 0) if head is not None and not head.is_chunked else inf
        reader = self._reader
        if self._state == ANSWERING and len(reader.buffer) >= size:
            reader.buffer = reader.buffer[int(size) :]
            self.respond(response)
            return
        is_head = head is not None and head.method == b"HEAD"
        self.transport.write(response_bytes(response, self.cors + CLOSE, is_head=is_head))
        self._state = LINGERING
        self._server.lingering.add(self)
        reader.buffer = b""
        self.deadline = monotonic() + self.limits.linger_s
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _discard(self) -> None:
        """Many that go on sending are read in turns, so that they do not take all the time."""
        self._pause_reading()
        delay_s = _DISCARD_EVERY_S * len(self._server.lingering)
        asyncio.get_running_loop().call_later(delay_s, self.resume)
