"""A client's connection: its requests one after the other; each is answered before the next is read.

A client that half-closes its connection is treated as gone, as nginx does: its request is cancelled. A
program that sends a request, closes its sending side and then waits gets no response.
"""

from __future__ import annotations

import asyncio
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, cast

from firesteel.gateway.http.body import ModelField, find_model
from firesteel.gateway.http.chunks import ChunkParser
from firesteel.gateway.http.exchange import Exchange
from firesteel.gateway.http.forward import CLOSE, KEEP_ALIVE
from firesteel.gateway.http.head import END, CachedHead, ProtocolError, RequestHead, read_request
from firesteel.gateway.http.keepalive import watch_peer
from firesteel.gateway.http.responses import CONTINUE, rejection_response, response_bytes
from firesteel.gateway.http.routes import Route, find_route, query_model
from firesteel.gateway.interfaces import ApiFamily, Caller, Endpoint, GatewayResponse, Rejection
from firesteel.gateway.origin import is_plain_host, reject_foreign_page

if TYPE_CHECKING:
    from firesteel.gateway.http.server import HttpServer

_MAX_AHEAD = 64 * 1024
"""Bytes of pipelined requests to buffer while a response is under way; then reading is paused."""

_AT_HEAD, _AT_BODY, _ANSWERING, _LINGERING = range(4)


class ClientConnection(asyncio.Protocol):
    __slots__ = (
        "_began", "_body", "_body_bytes", "_buffer", "_cached_head", "_caller", "_chunks", "_destination",
        "_exchange", "_head", "_is_in_head", "_is_paused", "_is_write_paused", "_route", "_server", "_state",
        "deadline", "dispatcher", "limits", "pool", "transport",
    )  # fmt: skip

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self.dispatcher, self.pool, self.limits = server.dispatcher, server.pool, server.limits
        self._state = _AT_HEAD
        self._buffer = b""
        self._began = 0.0
        self._head: RequestHead | None = None
        self._cached_head: CachedHead[RequestHead] | None = None
        self._route: Route | Rejection | None = None
        self._destination: Route | Endpoint | None = None
        self._caller = Caller()
        self._exchange: Exchange | None = None
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._chunks: ChunkParser | None = None
        self._is_in_head = self._is_paused = self._is_write_paused = False
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.deadline = inf
        """When the current activity times out."""

    # -- called by the loop --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.deadline = monotonic() + self.limits.head_s
        watch_peer(transport)
        self._server.add_client(self)

    def data_received(self, data: bytes) -> None:
        if self._state == _AT_HEAD and not self._is_write_paused and len(self._buffer) <= _MAX_AHEAD:
            self._take_head(self._buffer + data if self._buffer else data)
        elif self._state == _AT_BODY:
            self._receive_body(data)
        elif self._state != _LINGERING:
            self._buffer_ahead(data)

    def eof_received(self) -> bool | None:
        """The client is gone; what was written before is still sent."""
        if self._exchange is not None:
            self._drop_exchange()
            self.transport.abort()
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self._drop_exchange()
        self._server.remove_client(self)

    def pause_writing(self) -> None:
        self._is_write_paused = True
        self.deadline = monotonic() + self.limits.send_idle_s
        if self._exchange is not None:
            self._exchange.pause()

    def resume_writing(self) -> None:
        self._is_write_paused = False
        if self._state == _AT_HEAD:
            self._await_next_request()
        elif self._state == _ANSWERING:
            self.deadline = inf
        if self._exchange is not None:
            self.deadline = monotonic() + self.limits.comment_every_s
            self._exchange.resume()

    # -- called by the server --

    def expire(self) -> None:
        """The deadline has passed."""
        if self._state == _AT_BODY or (self._state == _AT_HEAD and self._buffer):
            self._reject(Rejection(408, "timeout", "the request took too long to arrive"))
            self.transport.close()
        elif self._is_write_paused:
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
        if self._state == _AT_HEAD and not self._buffer:
            self.transport.close()

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

    def is_write_paused(self) -> bool:
        """Whether the client is too slow at the moment."""
        return self._is_write_paused

    def keeps_alive(self) -> bool:
        return self._head is not None and self._head.keeps_alive and not self._server.is_draining

    def watch_leaving(self, exchange: Exchange) -> None:
        """Keep its time limits: the connection that does so is closed."""
        self._server.leaving.add(exchange)

    def respond(self, response: GatewayResponse) -> None:
        keep = self.keeps_alive()
        head = self._head
        is_11 = head is None or head.is_11
        connection = (b"" if is_11 else KEEP_ALIVE) if keep else CLOSE
        is_head = head is not None and head.method == b"HEAD"
        self.transport.write(response_bytes(response, connection, is_head=is_head))
        self.done(keep=keep)

    def done(self, *, keep: bool) -> None:
        """The whole response is written; `keep`: the connection may be used again."""
        self._exchange = None
        if not keep or self._server.is_draining:
            self.transport.close()
            self.deadline = monotonic() + self.limits.send_idle_s
            return
        self._state = _AT_HEAD
        if not self._is_write_paused:
            self._await_next_request()

    def _await_next_request(self) -> None:
        """Wait for the next request, or start with one that is already buffered."""
        self.deadline = monotonic() + self.limits.keep_alive_s
        self._resume_reading()
        if self._buffer:
            asyncio.get_running_loop().call_soon(self._take_next)

    def _take_next(self) -> None:
        is_blocked = self._is_write_paused or self.transport.is_closing()
        if self._state == _AT_HEAD and self._buffer and not is_blocked:
            self._take_head(self._buffer)
            if self._state != _ANSWERING:
                self._resume_reading()

    def _resume_reading(self) -> None:
        """Only once the buffer is small: otherwise requests are read faster than they are answered."""
        if self._is_paused and len(self._buffer) <= _MAX_AHEAD:
            self._is_paused = False
            self.transport.resume_reading()

    def _drop_exchange(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.client_left()

    def _buffer_ahead(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) > _MAX_AHEAD and not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()

    # -- the head of a request --

    def _take_head(self, data: bytes) -> None:
        self._began = monotonic()
        cached = self._cached_head
        if cached is not None and (end := cached.match(data)):
            self._head = cached.head
            self._buffer = data[end:]
        elif not self._read_head(data):
            return
        self._admit(cast(RequestHead, self._head))

    def _read_head(self, data: bytes) -> bool:
        """False: it is incomplete or was rejected."""
        if data.startswith(b"\r\n"):
            data = data.lstrip(b"\r\n")  # empty lines before a request are skipped
        self._head = self._cached_head = None
        end = data.find(END)
        try:
            if end < 0 or end > self.limits.head_bytes:
                self._wait_for_head(data)
                return False
            head = read_request(data[:end], self.limits.head_lines)
            if len(head.target) > self.limits.uri_bytes:
                raise self._target_too_long()
        except ProtocolError as error:
            self._reject(error.rejection)
            return False
        self._head = head
        self._cached_head = CachedHead(data[: end + 4], head)
        self._route = find_route(head.method, head.path)
        self._buffer = data[end + 4 :]
        return True

    def _wait_for_head(self, data: bytes) -> None:
        if len(data) > self.limits.uri_bytes and b"\r\n" not in data[: self.limits.uri_bytes]:
            raise self._target_too_long()
        if len(data) > self.limits.head_bytes:
            raise ProtocolError(431, "bad_head", f"the head is longer than {self.limits.head_bytes} bytes")
        if b"\n\n" in data or b"\n\r\n" in data:
            raise ProtocolError(400, "bad_head", "lines must end in CRLF")
        if data and not self._is_in_head:
            self.deadline = monotonic() + self.limits.head_s
        self._is_in_head = bool(data)
        self._buffer = data

    def _target_too_long(self) -> ProtocolError:
        return ProtocolError(414, "bad_head", f"the target is longer than {self.limits.uri_bytes} bytes")

    def _admit(self, head: RequestHead) -> None:
        self._state = _ANSWERING
        self._is_in_head = False
        self.deadline = inf
        caller = self.dispatcher.admit(head.token)
        if isinstance(caller, Rejection):
            if response := self.dispatcher.public_response(head.method, head.path):
                self._respond_early(response)
            else:
                self._reject(caller)
            return
        if not caller.name and (page := _foreign_page(head)):
            self._reject(page)
            return
        self._caller = caller
        destination = self._route
        if not isinstance(destination, Route):
            self._handle_local(head, caller)
            return
        self._destination = destination
        self._read_body(head)

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

    def _read_body(self, head: RequestHead) -> None:
        size, buffered = head.length, self._buffer
        if size is None:
            if head.is_chunked:
                self._begin_body(head)
            else:
                self._dispatch(head, b"")
        elif size > self.limits.body_bytes:
            self._reject(self._body_too_long().rejection)
        elif len(buffered) == size:
            self._buffer = b""
            self._dispatch(head, buffered)
        elif len(buffered) > size:
            self._buffer = buffered[size:]
            self._dispatch(head, buffered[:size])
        else:
            self._begin_body(head)

    # -- the body of a request --

    def _begin_body(self, head: RequestHead) -> None:
        self._state = _AT_BODY
        self._body, self._body_bytes = [], 0
        self._chunks = ChunkParser() if head.is_chunked else None
        if head.expects_continue and not self._buffer:
            self.transport.write(CONTINUE)
        buffered, self._buffer = self._buffer, b""
        self.deadline = monotonic() + self.limits.body_idle_s
        if buffered:
            self._receive_body(buffered)

    def _receive_body(self, data: bytes) -> None:
        try:
            self._take_body(data)
        except ProtocolError as error:
            self._reject(error.rejection)

    def _take_body(self, data: bytes) -> None:
        assert self._head is not None
        self.deadline = monotonic() + self.limits.body_idle_s
        if self._chunks is not None:
            end = self._chunks.follow(data, 0, self._body)
            self._body_bytes += end
            if self._body_bytes > self.limits.body_bytes:
                raise self._body_too_long()
            is_whole = self._chunks.is_over
        else:
            end = min(len(data), (self._head.length or 0) - self._body_bytes)
            self._body.append(data if end == len(data) else data[:end])
            self._body_bytes += end
            is_whole = self._body_bytes == self._head.length
        if is_whole:
            self._buffer = data[end:]
            body, self._body = b"".join(self._body), []
            self._state = _ANSWERING
            self.deadline = inf
            self._dispatch(self._head, body)

    def _body_too_long(self) -> ProtocolError:
        return ProtocolError(413, "too_large", f"the body is longer than {self.limits.body_bytes} bytes")

    def _dispatch(self, head: RequestHead, body: bytes) -> None:
        exchange = Exchange(self, head, self._caller, self._began)
        self.deadline = self._began + self.limits.comment_every_s
        destination = self._destination
        if isinstance(destination, Endpoint):
            self._exchange = exchange
            exchange.forward_to(destination, body)
            return
        route = cast(Route, destination)
        model_field = find_model(body, head.content_type) if route.body != "none" else _model_in_query(head)
        if isinstance(model_field, Rejection) and model_field.kind == "missing_model" and b"?" in head.target:
            model_field = _model_in_query(head)
        if isinstance(model_field, Rejection):
            self.respond(rejection_response(model_field, route.family))
            return
        self._exchange = exchange
        exchange.submit(route, model_field, body)

    # -- responses of the gateway itself --

    def _reject(self, rejection: Rejection) -> None:
        self._respond_early(rejection_response(rejection, self._family()))

    def _family(self) -> ApiFamily:
        route = find_route(b"POST", self._head.path) if self._head is not None else None
        return route.family if isinstance(route, Route) else "openai"

    def _respond_early(self, response: GatewayResponse) -> None:
        """May be sent before the request is complete; the rest of the request is discarded."""
        head = self._head
        size = (head.length or 0) if head is not None and not head.is_chunked else inf
        if self._state == _ANSWERING and len(self._buffer) >= size:
            self._buffer = self._buffer[int(size) :]
            self.respond(response)
            return
        is_head = head is not None and head.method == b"HEAD"
        self.transport.write(response_bytes(response, CLOSE, is_head=is_head))
        self._state = _LINGERING
        self._buffer = b""
        self.deadline = monotonic() + self.limits.linger_s
        if self.transport.can_write_eof():
            self.transport.write_eof()


def _foreign_page(head: RequestHead) -> Rejection | None:
    """Without keys, reject requests of foreign web pages (`origin.py`)."""
    host = head.host.decode("ascii", "replace")
    if not head.origin and not head.site and is_plain_host(host):
        return None
    origin = head.origin.decode("ascii", "replace") or None
    site = head.site.decode("ascii", "replace") or None
    return reject_foreign_page(head.method.decode("ascii"), host, origin, site, has_keys=False)


def _model_in_query(head: RequestHead) -> ModelField | Rejection:
    """The model of a request without a body."""
    model = query_model(head.target.partition(b"?")[2])
    if model is None:
        return Rejection(400, "missing_model", "name the model in the query: `?model=NAME`")
    return ModelField(model, 0, 0)
