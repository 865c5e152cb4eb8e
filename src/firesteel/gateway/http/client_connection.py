"""A client's connection: its requests one after the other, each answered before the next is looked at.

A client that closes its half is taken for gone, as nginx takes it: what it asked for is cancelled. Programs
that send a request, close their half and then wait for an engine's answer get none.
"""

from __future__ import annotations

import asyncio
from math import inf
from time import monotonic
from typing import Protocol, cast

from firesteel.gateway.http.body import ModelField, find_model
from firesteel.gateway.http.chunks import Chunks
from firesteel.gateway.http.exchange import Exchange
from firesteel.gateway.http.forward import CLOSE, KEEP_ALIVE
from firesteel.gateway.http.head import END, AmbiguousHead, RepeatedHead, RequestHead, read_request
from firesteel.gateway.http.keepalive import watch_peer
from firesteel.gateway.http.limits import HttpLimits
from firesteel.gateway.http.pool import ConnectionPool
from firesteel.gateway.http.responses import CONTINUE, refusal_reply, reply_bytes
from firesteel.gateway.http.routes import Route, find_route, query_model
from firesteel.gateway.interfaces import ApiFamily, Dispatcher, Endpoint, GatewayResponse, Identity, Refusal
from firesteel.gateway.origin import is_plain_host, refuse_page

_MAX_AHEAD = 64 * 1024
"""Of requests that come before the answer to the one in hand; then we stop reading."""

_AT_HEAD, _AT_BODY, _ANSWERING, _LINGERING = range(4)


class ConnectionOwner(Protocol):
    """The server, as a connection sees it."""

    desk: Dispatcher
    pool: ConnectionPool
    limits: HttpLimits
    is_draining: bool

    def joined(self, client: ClientConnection) -> None: ...

    def left(self, client: ClientConnection) -> None: ...


class ClientConnection(asyncio.Protocol):
    """The connection."""

    __slots__ = (
        "_began", "_body", "_body_bytes", "_chunks", "_exchange", "_goal", "_head", "_house", "_is_in_head",
        "_is_paused", "_is_stuck", "_last", "_route", "_seen", "_state", "_who", "deadline", "desk",
        "limits", "pool", "transport",
    )  # fmt: skip

    def __init__(self, house: ConnectionOwner) -> None:
        self._house = house
        self.desk, self.pool, self.limits = house.desk, house.pool, house.limits
        self._state = _AT_HEAD
        self._seen = b""
        self._began = 0.0
        self._head: RequestHead | None = None
        self._last: RepeatedHead[RequestHead] | None = None
        self._route: Route | Refusal | None = None
        self._goal: Route | Endpoint | None = None
        self._who = Identity()
        self._exchange: Exchange | None = None
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._chunks: Chunks | None = None
        self._is_in_head = self._is_paused = self._is_stuck = False
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.deadline = inf
        """When it has taken too long over what it is doing."""

    # -- what the loop does --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.deadline = monotonic() + self.limits.head_s
        watch_peer(transport)
        self._house.joined(self)

    def data_received(self, data: bytes) -> None:
        if self._state == _AT_HEAD and not self._is_stuck and len(self._seen) <= _MAX_AHEAD:
            self._take_head(self._seen + data if self._seen else data)
        elif self._state == _AT_BODY:
            self._guarded_body(data)
        elif self._state != _LINGERING:
            self._keep_ahead(data)

    def eof_received(self) -> bool | None:
        """The client is taken for gone; what was written to it still goes out."""
        if self._exchange is not None:
            self._leave()
            self.transport.abort()
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        self._house.left(self)

    def pause_writing(self) -> None:
        self._is_stuck = True
        self.deadline = monotonic() + self.limits.send_idle_s
        if self._exchange is not None:
            self._exchange.pause()

    def resume_writing(self) -> None:
        self._is_stuck = False
        if self._state == _AT_HEAD:
            self._look_ahead()
        elif self._state == _ANSWERING:
            self.deadline = inf
        if self._exchange is not None:
            self._exchange.resume()

    # -- what the server does --

    def expire(self) -> None:
        """The deadline has passed."""
        if self._state == _AT_BODY or (self._state == _AT_HEAD and self._seen):
            self._refuse(Refusal(408, "timeout", "the request did not come in time"))
            self.transport.close()
        elif self._is_stuck:
            self.cut()
        else:
            self.transport.abort() if self.transport.is_closing() else self.transport.close()
        self.deadline = monotonic() + self.limits.linger_s

    def drain(self) -> None:
        """The server stops: goes now if it does nothing, else after the answer in hand."""
        if self._state == _AT_HEAD and not self._seen:
            self.transport.close()

    def stop(self) -> bool:
        """The grace is over: says so where it can, and goes. Whether a request was cut off."""
        exchange = self._exchange
        if exchange is not None:
            exchange.stop()
        self.transport.close()
        return exchange is not None

    def abort(self) -> None:
        self._leave()
        self.transport.abort()

    # -- what the exchange does --

    def is_stuck(self) -> bool:
        return self._is_stuck

    def keeps_alive(self) -> bool:
        return self._head is not None and self._head.keeps_alive and not self._house.is_draining

    def reply(self, reply: GatewayResponse) -> None:
        keeps = self.keeps_alive()
        head = self._head
        is_11 = head is None or head.is_11
        hop = (b"" if is_11 else KEEP_ALIVE) if keeps else CLOSE
        self.transport.write(reply_bytes(reply, hop, is_head=head is not None and head.method == b"HEAD"))
        self.done(keep=keeps)

    def cut(self) -> None:
        self._leave()
        self.transport.abort()

    def done(self, *, keep: bool) -> None:
        self._exchange = None
        if not keep or self._house.is_draining:
            self.transport.close()
            self.deadline = monotonic() + self.limits.send_idle_s
            return
        self._state = _AT_HEAD
        if not self._is_stuck:
            self._look_ahead()

    def _look_ahead(self) -> None:
        """Waits for the next request, or begins with what came before the last one was answered."""
        self.deadline = monotonic() + self.limits.keep_alive_s
        self._read_on()
        if self._seen:
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        if self._state == _AT_HEAD and self._seen and not (self._is_stuck or self.transport.is_closing()):
            self._take_head(self._seen)
            if self._state != _ANSWERING:
                self._read_on()

    def _read_on(self) -> None:
        """Not before what is held has been worked off: else a flood is let in faster than it is answered."""
        if self._is_paused and len(self._seen) <= _MAX_AHEAD:
            self._is_paused = False
            self.transport.resume_reading()

    def _leave(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.gone()

    def _keep_ahead(self, data: bytes) -> None:
        self._seen += data
        if len(self._seen) > _MAX_AHEAD and not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()

    # -- a request --

    def _take_head(self, data: bytes) -> None:
        self._began = monotonic()
        last = self._last
        if last is not None and (end := last.match(data)):
            self._head = last.head
            self._seen = data[end:]
        elif not self._read_head(data):
            return
        self._admit(cast(RequestHead, self._head))

    def _read_head(self, data: bytes) -> bool:
        """False: it is not all there, or was refused."""
        if data.startswith(b"\r\n"):
            data = data.lstrip(b"\r\n")  # empty lines before a request are skipped
        self._head = self._last = None
        end = data.find(END)
        try:
            if end < 0 or end > self.limits.head_bytes:
                self._wait_for_head(data)
                return False
            head = read_request(data[:end], self.limits.head_lines)
            if len(head.target) > self.limits.uri_bytes:
                raise AmbiguousHead(
                    414, "bad_head", f"the target is longer than {self.limits.uri_bytes} bytes"
                )
        except AmbiguousHead as unclear:
            self._refuse(unclear.refusal)
            return False
        self._head = head
        self._last = RepeatedHead(data[: end + 4], head)
        self._route = find_route(head.method, head.path)
        self._seen = data[end + 4 :]
        return True

    def _wait_for_head(self, data: bytes) -> None:
        if len(data) > self.limits.uri_bytes and b"\r\n" not in data[: self.limits.uri_bytes]:
            raise AmbiguousHead(414, "bad_head", f"the target is longer than {self.limits.uri_bytes} bytes")
        if len(data) > self.limits.head_bytes:
            raise AmbiguousHead(431, "bad_head", f"the head is longer than {self.limits.head_bytes} bytes")
        if b"\n\n" in data or b"\n\r\n" in data:
            raise AmbiguousHead(400, "bad_head", "lines end in CRLF")
        if data and not self._is_in_head:
            self.deadline = monotonic() + self.limits.head_s
        self._is_in_head = bool(data)
        self._seen = data

    def _admit(self, head: RequestHead) -> None:
        self._state = _ANSWERING
        self._is_in_head = False
        self.deadline = inf
        who = self.desk.admit(head.token)
        if isinstance(who, Refusal):
            if reply := self.desk.public(head.method, head.path):
                self._early(reply)
            else:
                self._refuse(who)
            return
        if not who.name and (page := _foreign_page(head)):
            self._refuse(page)
            return
        self._who = who
        goal = self._route
        if not isinstance(goal, Route):
            self._find_own(head, who)
            return
        self._goal = goal
        self._want_body(head)

    def _find_own(self, head: RequestHead, who: Identity) -> None:
        """For a path that is no engine's."""
        goal = self.desk.own(head.method, head.path, who) or self._route
        if isinstance(goal, Endpoint):
            self._goal = goal
            self._want_body(head)
        elif isinstance(goal, GatewayResponse):
            self._early(goal)
        elif isinstance(goal, Refusal):
            self._refuse(goal)
        else:
            path = head.path.decode("ascii", "replace")
            self._refuse(Refusal(404, "unknown_path", f"{path} is not a path of this server"))

    def _want_body(self, head: RequestHead) -> None:
        size, seen = head.length, self._seen
        if size is None:
            if head.is_chunked:
                self._begin_body(head)
            else:
                self._act(head, b"")
        elif size > self.limits.body_bytes:
            self._refuse(Refusal(413, "too_large", f"the body is longer than {self.limits.body_bytes} bytes"))
        elif len(seen) == size:
            self._seen = b""
            self._act(head, seen)
        elif len(seen) > size:
            self._seen = seen[size:]
            self._act(head, seen[:size])
        else:
            self._begin_body(head)

    # -- its body --

    def _begin_body(self, head: RequestHead) -> None:
        self._state = _AT_BODY
        self._body, self._body_bytes = [], 0
        self._chunks = Chunks() if head.is_chunked else None
        if head.expects_continue and not self._seen:
            self.transport.write(CONTINUE)
        seen, self._seen = self._seen, b""
        self.deadline = monotonic() + self.limits.body_idle_s
        if seen:
            self._guarded_body(seen)

    def _guarded_body(self, data: bytes) -> None:
        try:
            self._take_body(data)
        except AmbiguousHead as unclear:
            self._refuse(unclear.refusal)

    def _take_body(self, data: bytes) -> None:
        assert self._head is not None
        self.deadline = monotonic() + self.limits.body_idle_s
        if self._chunks is not None:
            end = self._chunks.follow(data, 0, self._body)
            self._body_bytes += end
            if self._body_bytes > self.limits.body_bytes:
                raise AmbiguousHead(
                    413, "too_large", f"the body is longer than {self.limits.body_bytes} bytes"
                )
            is_whole = self._chunks.is_over
        else:
            end = min(len(data), (self._head.length or 0) - self._body_bytes)
            self._body.append(data if end == len(data) else data[:end])
            self._body_bytes += end
            is_whole = self._body_bytes == self._head.length
        if is_whole:
            self._seen = data[end:]
            body, self._body = b"".join(self._body), []
            self._state = _ANSWERING
            self.deadline = inf
            self._act(self._head, body)

    def _act(self, head: RequestHead, body: bytes) -> None:
        exchange = Exchange(self, head, self._who, self._began)
        goal = self._goal
        if isinstance(goal, Endpoint):
            self._exchange = exchange
            exchange.pass_to(goal, body)
            return
        route = cast(Route, goal)
        found = find_model(body, head.content_type) if route.body != "none" else _asked_model(head)
        if isinstance(found, Refusal) and found.kind == "missing_model" and b"?" in head.target:
            found = _asked_model(head)
        if isinstance(found, Refusal):
            self.reply(refusal_reply(found, route.family))
            return
        self._exchange = exchange
        exchange.ask(route, found, body)

    # -- answers of our own --

    def _refuse(self, refusal: Refusal) -> None:
        self._early(refusal_reply(refusal, self._family()))

    def _family(self) -> ApiFamily:
        route = find_route(b"POST", self._head.path) if self._head is not None else None
        return route.family if isinstance(route, Route) else "openai"

    def _early(self, reply: GatewayResponse) -> None:
        """An answer that may come before the request is whole: what is left of that is thrown away."""
        head = self._head
        size = (head.length or 0) if head is not None and not head.is_chunked else inf
        if self._state == _ANSWERING and len(self._seen) >= size:
            self._seen = self._seen[int(size) :]
            self.reply(reply)
            return
        is_head = head is not None and head.method == b"HEAD"
        self.transport.write(reply_bytes(reply, CLOSE, is_head=is_head))
        self._state = _LINGERING
        self._seen = b""
        self.deadline = monotonic() + self.limits.linger_s
        if self.transport.can_write_eof():
            self.transport.write_eof()


def _foreign_page(head: RequestHead) -> Refusal | None:
    """Where no keys are in use: `origin.py` says what a page from elsewhere could do."""
    host = head.host.decode("ascii", "replace")
    if not head.origin and not head.site and is_plain_host(host):
        return None
    origin = head.origin.decode("ascii", "replace") or None
    site = head.site.decode("ascii", "replace") or None
    return refuse_page(head.method.decode("ascii"), host, origin, site, has_keys=False)


def _asked_model(head: RequestHead) -> ModelField | Refusal:
    """Where no body can say it."""
    model = query_model(head.target.partition(b"?")[2])
    if model is None:
        return Refusal(400, "missing_model", "name the model in the query: `?model=NAME`")
    return ModelField(model, 0, 0)
