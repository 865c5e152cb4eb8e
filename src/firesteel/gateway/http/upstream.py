"""Connections to engines: each sends a request, receives the response, and returns to the pool if all went
well.

The body is forwarded in pieces as it arrives; only its framing is parsed, to find its end. The receiver
chooses how a chunked body is split (`ChunkBoundaries`) when it gets the head. A peer that has vanished is
noticed by TCP keepalive.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterable
from enum import IntEnum
from functools import cached_property, partial
from time import monotonic
from typing import Protocol, cast

from firesteel.gateway.http.chunks import SIZE_LINES, ChunkParser, is_whole_chunk
from firesteel.gateway.http.head import END, CachedHead, ProtocolError, ResponseHead, read_response
from firesteel.gateway.http.limits import HttpLimits
from firesteel.gateway.http.normalize import Normalizers
from firesteel.gateway.interfaces import Endpoint
from firesteel.gateway.translate.shape import SystemRole

_MAX_HEAD = 64 * 1024
_MAX_HEADS = 8
"""Interim responses (1xx) before the final one."""
_MAX_PARTIAL_CHUNK = 64 * 1024
PIECES = 32
"""Of a stream, before the receiver looks at them."""


class ChunkBoundaries(IntEnum):
    """How a chunked body is split into pieces."""

    AS_THEY_COME = 0
    WHOLE_CHUNKS = 1
    """Never a part of a chunk, so that an error event can follow any piece."""
    WITHOUT_FRAMING = 2


class ResponseReceiver(Protocol):
    """Gets the response. `response_ended` or `response_failed` is the last call."""

    def response_started(self, head: ResponseHead) -> ChunkBoundaries: ...

    def body_received(self, piece: bytes) -> None: ...

    def flush(self) -> None:
        """No more data is available at the moment."""

    def response_ended(self) -> None: ...

    def response_failed(self, why: str, *, is_retryable: bool) -> None:
        """is_retryable: a reused connection closed before the first byte of a response."""


_HEAD, _LENGTH, _CHUNKED, _CLOSE = range(4)


class Upstream(asyncio.Protocol):
    """`receiver` is None while the connection is idle."""

    __slots__ = (
        "_arrivals", "_boundaries", "_buffer", "_cached_head", "_chunks", "_heads", "_is_at_boundary",
        "_is_framed", "_is_fresh", "_is_head_only", "_is_paused", "_keeps_alive", "_left", "_lost", "_mode",
        "_on_drained", "_partial_chunk", "_pieces", "_release", "_write", "idle_since", "is_sending",
        "receiver", "transport",
    )  # fmt: skip

    def __init__(self, release: Callable[[Upstream], None], lost: Callable[[Upstream], None]) -> None:
        self._release = release
        self._lost = lost
        self._is_fresh = True
        self._is_paused = False
        self._is_at_boundary = False
        """Between two chunks, with nothing held back."""
        self._buffer = b""
        self._mode = _HEAD
        self._pieces: list[bytes] | None = None
        self._cached_head: CachedHead[ResponseHead] | None = None
        self.receiver: ResponseReceiver | None = None
        self.idle_since = 0.0
        self.is_sending = False
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)

    # -- called by the request --

    def send(
        self,
        receiver: ResponseReceiver,
        request: Iterable[bytes | memoryview],
        *,
        is_head_only: bool,
        on_drained: Callable[[], None] | None = None,
    ) -> None:
        """`is_head_only`: the response to HEAD has no body, whatever its headers say. `on_drained`: the
        request asks for another protocol; called whenever more of that may be sent."""
        self.receiver, self._on_drained = receiver, on_drained
        self._mode = _HEAD
        self._is_at_boundary = False
        self._heads = 0
        self._is_head_only = is_head_only
        for part in request:
            self.transport.write(part)

    def forward_to(self, write: Callable[[bytes], None], pieces: list[bytes], arrivals: list[float]) -> None:
        """Write whole chunks without a call of the receiver, which finds them and the time of each in these
        lists; `PIECES` at most."""
        if self._mode == _CHUNKED and self._is_framed:
            self._write, self._pieces, self._arrivals = write, pieces, arrivals

    def stop_forwarding(self) -> None:
        self._pieces = None

    def drop(self) -> None:
        """Close at once, and discard the rest of the response."""
        self.receiver = self._pieces = None
        self.transport.abort()

    def pause(self) -> None:
        if not self._is_paused and not self.transport.is_closing():
            self._is_paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        if self._is_paused and not self.transport.is_closing():
            self._is_paused = False
            self.transport.resume_reading()

    # -- called by the loop --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        pieces = self._pieces
        if (
            pieces is not None
            and self._is_at_boundary
            and len(pieces) < PIECES
            and data.startswith(SIZE_LINES[len(data)])
            and data.endswith(b"\r\n")
        ):  # every event of a stream passes here: what can be done later for many of them is
            self._write(data)
            pieces.append(data)
            self._arrivals.append(monotonic())
            return
        receiver, mode = self.receiver, self._mode
        if receiver is None:
            self.drop()  # unexpected data
            return
        try:
            if self._is_at_boundary and is_whole_chunk(data):
                receiver.body_received(data if self._is_framed else data[data.find(b"\n") + 1 : -2])
            elif mode == _CHUNKED:
                self._take_chunked(receiver, data)
            elif mode == _HEAD:
                self._take_head(receiver, data)
            elif mode == _LENGTH:
                self._take_length(receiver, data)
            else:
                receiver.body_received(data)
        except ProtocolError as error:
            self._break(f"its response is not valid HTTP/1.1: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost(self)
        receiver, self.receiver = self.receiver, None
        if receiver is None:
            return
        if self._mode == _CLOSE and exc is None:
            receiver.response_ended()
        else:
            is_retryable = self._mode == _HEAD and not self._is_fresh and not self._heads and not self._buffer
            receiver.response_failed(
                "it closed the connection before the response was complete", is_retryable=is_retryable
            )

    def pause_writing(self) -> None:
        self.is_sending = True

    def resume_writing(self) -> None:
        self.is_sending = False
        if self._on_drained is not None and self.receiver is not None:
            self._on_drained()

    # -- the response --

    def _take_head(self, receiver: ResponseReceiver, data: bytes) -> None:
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        cached = self._cached_head
        if cached is not None and (end := cached.match(data)):
            self._begin(receiver, cached.head, data[end:])
            return
        end = data.find(END)
        if end >= 0:
            self._read_head(receiver, data, end)
        elif len(data) > _MAX_HEAD:
            raise ProtocolError(502, "bad_answer", "its head is too long")
        else:
            self._buffer = data

    def _read_head(self, receiver: ResponseReceiver, data: bytes, end: int) -> None:
        """Interim responses (100, 102, 103) are dropped. 101 is an error, unless an upgrade was requested."""
        self._heads += 1
        head = read_response(data[:end])
        rest = data[end + 4 :]
        if head.status >= 200:
            self._cached_head = CachedHead(data[: end + 4], head)
            self._begin(receiver, head, rest)
        elif head.status == 101 and self._on_drained is not None:
            head.length, head.is_chunked = None, False
            self._begin(receiver, head, rest)
        elif head.status == 101 or self._heads > _MAX_HEADS:
            raise ProtocolError(502, "bad_answer", "unexpected 1xx responses")
        elif rest:
            self._take_head(receiver, rest)

    def _begin(self, receiver: ResponseReceiver, head: ResponseHead, rest: bytes) -> None:
        self._keeps_alive = head.keeps_alive
        boundaries = receiver.response_started(head)
        if self.receiver is not receiver:
            return  # it dropped the connection, to send the request in another form
        if self._is_head_only or head.status in (204, 304):
            self._mode, self._left = _LENGTH, 0
            self._take_length(receiver, rest)
        elif head.length is not None:
            self._mode, self._left = _LENGTH, head.length
            self._take_length(receiver, rest)
        elif head.is_chunked:
            self._mode, self._chunks, self._partial_chunk = _CHUNKED, ChunkParser(), b""
            self._boundaries = boundaries
            self._is_framed = boundaries != ChunkBoundaries.WITHOUT_FRAMING
            self._take_chunked(receiver, rest)
        else:
            self._mode = _CLOSE
            if rest:
                receiver.body_received(rest)
        if self.receiver is receiver:
            receiver.flush()

    def _take_length(self, receiver: ResponseReceiver, data: bytes) -> None:
        size, left = len(data), self._left
        if size >= left:
            self._end(receiver, data[:left], is_clean=size == left)
        elif data:
            self._left -= size
            receiver.body_received(data)

    def _take_chunked(self, receiver: ResponseReceiver, data: bytes) -> None:
        chunks = self._chunks
        if not self._is_framed:
            self._take_unframed(receiver, data)
            return
        end = chunks.follow(data)
        self._is_at_boundary = chunks.is_between()
        if chunks.is_over:
            piece = data if end == len(data) else data[:end]
            self._end(receiver, self._partial_chunk + piece, is_clean=end == len(data))
        elif self._boundaries == ChunkBoundaries.AS_THEY_COME or (
            chunks.whole == end and not self._partial_chunk
        ):
            if data:
                receiver.body_received(data)
        else:
            self._hold(receiver, data, chunks.whole)

    def _hold(self, receiver: ResponseReceiver, data: bytes, whole: int) -> None:
        """Forward complete chunks and hold back the rest, as long as it is small."""
        piece = b""
        if whole >= 0:
            piece, self._partial_chunk = self._partial_chunk + data[:whole], data[whole:]
        else:
            self._partial_chunk += data
        if len(self._partial_chunk) > _MAX_PARTIAL_CHUNK:
            self._boundaries = ChunkBoundaries.AS_THEY_COME
            piece, self._partial_chunk = piece + self._partial_chunk, b""
        self._is_at_boundary = self._is_at_boundary and not self._partial_chunk
        if piece:
            receiver.body_received(piece)

    def _take_unframed(self, receiver: ResponseReceiver, data: bytes) -> None:
        out: list[bytes] = []
        end = self._chunks.follow(data, 0, out)
        self._is_at_boundary = self._chunks.is_between()
        piece = b"".join(out)
        if self._chunks.is_over:
            self._end(receiver, piece, is_clean=end == len(data))
        elif piece:
            receiver.body_received(piece)

    def has_length(self) -> bool:
        """Whether a response of known length is on the way."""
        return self._mode == _LENGTH

    def is_between_chunks(self) -> bool:
        """Whether everything forwarded so far ended with a chunk."""
        return self._mode == _CHUNKED and self._boundaries == ChunkBoundaries.WHOLE_CHUNKS

    def _end(self, receiver: ResponseReceiver, piece: bytes, *, is_clean: bool) -> None:
        """Forward the last piece. The connection is free before the receiver hears of the end: it may reuse
        it."""
        if piece:
            receiver.body_received(piece)
            if self.receiver is not receiver:
                return  # it dropped the connection meanwhile
        self.receiver = self._pieces = None
        self._is_fresh = False
        if self._is_paused:
            self.resume()
        if (
            is_clean
            and self._keeps_alive
            and not self.is_sending
            and not self.transport.get_write_buffer_size()
        ):
            self._release(self)
        else:
            self.transport.abort()
        receiver.response_ended()

    def _break(self, why: str) -> None:
        receiver = self.receiver
        self.drop()
        if receiver is not None:
            receiver.response_failed(why, is_retryable=False)


Key = tuple[tuple[str, int] | str, bool]
Ready = Callable[[Upstream], None]
Failed = Callable[[str], None]


class ConnectionPool:
    """Idle connections by address, kept open between requests.

    The newest is used first, so that in quiet times the others age and are closed. None is kept as long as
    engines keep theirs: a connection that closes under a request means that the request is sent twice.
    """

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._idle: dict[Key, list[Upstream]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.unasked: set[tuple[str, int] | str] = set()
        """Addresses of servers that reject a request for token counts."""
        self.shapes: dict[tuple[tuple[str, int] | str, str], SystemRole] = {}
        """By address and model: the only shape of conversations that its template takes."""
        self.normalizers = Normalizers()

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
            return Upstream(partial(self._put_back, idle), partial(self._remove, idle))

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


_IDLE_S, _EVERY_S, _TIMES = 60, 15, 4
_TCP_CLOSE = 7
"""The state after a reset, in Linux."""


def watch_peer(transport: asyncio.BaseTransport) -> None:
    """Have the kernel probe a silent peer: one that has lost its network would keep a model busy."""
    connection = transport.get_extra_info("socket")
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", _IDLE_S), ("TCP_KEEPINTVL", _EVERY_S), ("TCP_KEEPCNT", _TIMES)):
        if hasattr(socket, name):  # macOS has no TCP_KEEPIDLE
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def is_reset(transport: asyncio.BaseTransport) -> bool:
    """Whether the peer has answered with a reset: it is gone."""
    connection = transport.get_extra_info("socket")
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    if not hasattr(socket, "TCP_INFO"):
        return False
    try:
        return bool(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_CLOSE)
    except (OSError, ValueError):  # uvloop reports a closed descriptor with the latter
        return True
