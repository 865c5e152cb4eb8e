"""Reads a client's requests: each head, and the body behind it, within the limits and the common buffers."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from math import inf
from time import monotonic
from typing import cast

from firesteel.gateway.http.body_reader import BodyReader
from firesteel.gateway.http.buffers import BufferBudget
from firesteel.gateway.http.head import END, CachedHead, ProtocolError, RequestHead, read_request
from firesteel.gateway.http.limits import HttpLimits
from firesteel.gateway.http.responses import CONTINUE
from firesteel.gateway.interfaces import Rejection

_MAX_AHEAD = 64 * 1024
"""Bytes of pipelined requests to buffer while a response is under way; then reading is paused."""

_UNCOUNTED_BYTES = 4096
"""A body that arrives with its head and is no longer than this takes less than the connection itself."""

AT_HEAD, WAITING_FOR_BODY, AT_BODY, ANSWERING, LINGERING, TUNNELING = range(6)


class RequestReader(asyncio.Protocol):
    __slots__ = (
        "_began", "_body", "_buffer", "_buffered", "_cached_head", "_head", "_is_in_head", "_is_paused",
        "_state", "buffers", "deadline", "is_write_paused", "limits", "reserved_bytes", "transport",
    )  # fmt: skip

    def __init__(self, limits: HttpLimits, buffers: BufferBudget) -> None:
        self.limits, self.buffers = limits, buffers
        self._state = AT_HEAD
        self._buffer = b""
        self._began = 0.0
        self._head: RequestHead | None = None
        self._cached_head: CachedHead[RequestHead] | None = None
        self._body: BodyReader | None = None
        self.reserved_bytes = self._buffered = 0
        """Of the common buffers: for a body, and for the bytes before and behind it."""
        self._is_in_head = self._is_paused = self.is_write_paused = False
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.deadline = inf
        """When the current activity times out."""

    @abstractmethod
    def _admit(self, head: RequestHead, *, is_new: bool) -> None:
        """A head is complete. `is_new`: it differs from the last one of this connection."""

    @abstractmethod
    def _dispatch(self, head: RequestHead, body: bytes) -> None:
        """The request is complete."""

    @abstractmethod
    def _reject(self, rejection: Rejection) -> None: ...

    @abstractmethod
    def _discard(self) -> None:
        """More of a request arrived that was rejected."""

    @abstractmethod
    def _take_tunneled(self, data: bytes) -> None:
        """Of a WebSocket."""

    @abstractmethod
    def abort(self) -> None: ...

    def data_received(self, data: bytes) -> None:
        if self._state == AT_HEAD and not self.is_write_paused and len(self._buffer) <= _MAX_AHEAD:
            self._take_head(self._buffer + data if self._buffer else data)
        elif self._state == AT_BODY:
            self._receive_body(data)
        elif self._state == LINGERING:
            self._discard()
        elif self._state == TUNNELING:
            self._take_tunneled(data)
        else:
            self._buffer_ahead(data)

    def _take_next(self) -> None:
        is_blocked = self.is_write_paused or self.transport.is_closing()
        if self._state == AT_HEAD and self._buffer and not is_blocked:
            self._take_head(self._buffer)
            if self._state != ANSWERING:
                self._resume_reading()

    def _resume_reading(self) -> None:
        """Only once the buffer is small: otherwise requests are read faster than they are answered."""
        if self._is_paused and len(self._buffer) <= _MAX_AHEAD:
            self._is_paused = False
            self.transport.resume_reading()

    def _pause_reading(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()

    def _count_buffer(self) -> bool:
        """Count the bytes of an unfinished head or of the next requests. False: there is no room."""
        self.buffers.give(self._buffered)
        self._buffered = len(self._buffer)
        if self.buffers.take(self._buffered):
            return True
        self._buffered = 0
        return False

    def _buffer_ahead(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) > _MAX_AHEAD:
            self._pause_reading()
        if not self._count_buffer():
            self.abort()

    # -- the head of a request --

    def _take_head(self, data: bytes) -> None:
        self._began = monotonic()
        if self._buffered:
            self.buffers.give(self._buffered)
            self._buffered = 0
        cached = self._cached_head
        if cached is not None and (end := cached.match(data)):
            self._head = cached.head
            self._buffer = data[end:]
            self._admit(cached.head, is_new=False)
        elif self._read_head(data):
            self._admit(cast(RequestHead, self._head), is_new=True)

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
        if not self._count_buffer():
            self._reject(self.buffers.full())

    def _target_too_long(self) -> ProtocolError:
        return ProtocolError(414, "bad_head", f"the target is longer than {self.limits.uri_bytes} bytes")

    def _read_body(self, head: RequestHead) -> None:
        size, buffered = head.length, self._buffer
        if size is None:
            if head.is_chunked:
                self._begin_body()
            else:
                self._dispatch(head, b"")
        elif size > self.limits.body_bytes:
            self._reject(self._body_too_long().rejection)
        elif len(buffered) < size:
            self._reserve_body(size)
        elif size > _UNCOUNTED_BYTES and not self.buffers.take(size):
            self._reject(self.buffers.full())
        else:
            if size > _UNCOUNTED_BYTES:
                self.reserved_bytes = size
            if len(buffered) == size:
                self._buffer = b""
                self._dispatch(head, buffered)
            else:
                self._buffer = buffered[size:]
                self._dispatch(head, buffered[:size])

    # -- the body of a request --

    def _reserve_body(self, size: int) -> None:
        """Read it when there is room for all of it."""
        if self.buffers.take(size):
            self.reserved_bytes = size
            self._begin_body()
        elif self.buffers.wait(self, size, len(self._buffer)):
            self._state = WAITING_FOR_BODY
            self._pause_reading()
            self.deadline = monotonic() + self.limits.buffer_wait_s
        else:
            self._reject(self.buffers.full())

    def read_on(self) -> None:
        """Called when there is room for the body."""
        assert self._head is not None
        self.reserved_bytes = self._head.length or 0
        buffered, self._buffer = self._buffer, b""
        self._resume_reading()
        self._buffer = buffered
        self._begin_body()

    def _begin_body(self) -> None:
        head = cast(RequestHead, self._head)
        self._state = AT_BODY
        self._body = BodyReader(None if head.is_chunked else head.length)
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
        body = self._body
        assert self._head is not None and body is not None
        self.deadline = monotonic() + self.limits.body_idle_s
        end = body.take(data)
        if body.size > self.limits.body_bytes:
            raise self._body_too_long()
        if body.size > self.reserved_bytes:  # chunked: its length is not known before
            if not self.buffers.take(body.size - self.reserved_bytes):
                self._reject(self.buffers.full())
                return
            self.reserved_bytes = body.size
        if body.is_whole():
            self._buffer = data[end:]
            self._body = None
            self._state = ANSWERING
            self._dispatch(self._head, body.body())

    def _body_too_long(self) -> ProtocolError:
        return ProtocolError(413, "too_large", f"the body is longer than {self.limits.body_bytes} bytes")

    def free_body(self) -> None:
        """It was sent, or will not be."""
        if self._state == WAITING_FOR_BODY:
            self._state = LINGERING
            self.buffers.stop_waiting(self)
        self._body = None
        self.buffers.give(self.reserved_bytes)
        self.reserved_bytes = 0
