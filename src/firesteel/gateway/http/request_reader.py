"""Heads and bodies out of the bytes of a client, within the limits and the common buffers.

Knows no transport and no dispatcher: the connection (`client_connection.py`) passes in what arrives and acts
on what comes out.
"""

from __future__ import annotations

from typing import cast

from firesteel.gateway.http.chunks import ChunkParser
from firesteel.gateway.http.head import END, CachedHead, ProtocolError, RequestHead, read_request
from firesteel.gateway.http.limits import BodyWaiter, BufferBudget, HttpLimits
from firesteel.gateway.interfaces import Rejection

MAX_AHEAD = 64 * 1024
"""Bytes of pipelined requests to buffer while a response is under way; then reading is paused."""

_UNCOUNTED_BYTES = 4096
"""A body that arrives with its head and is no longer than this takes less than the connection itself."""


class RequestReader:
    __slots__ = (
        "_body", "_buffered", "_buffers", "_cached_head", "_limits", "_waiter", "buffer", "is_in_head",
        "is_waiting", "reserved_bytes",
    )  # fmt: skip

    def __init__(self, limits: HttpLimits, buffers: BufferBudget, waiter: BodyWaiter) -> None:
        """`waiter` is called when there is room for a body that waits."""
        self._limits, self._buffers, self._waiter = limits, buffers, waiter
        self.buffer = b""
        """What was received and belongs to no complete head or body."""
        self._cached_head: CachedHead[RequestHead] | None = None
        self._body: BodyReader | None = None
        self.reserved_bytes = self._buffered = 0
        """Of the common buffers: for a body, and for the bytes before and behind it."""
        self.is_in_head = self.is_waiting = False

    def is_small(self) -> bool:
        """Whether more may be read before the buffer is used up."""
        return len(self.buffer) <= MAX_AHEAD

    def take_buffer(self) -> bytes:
        data, self.buffer = self.buffer, b""
        self._buffers.give(self._buffered)
        self._buffered = 0
        return data

    def keep(self, data: bytes) -> bool:
        """Of the next requests, while a response is under way. False: there is no room."""
        self.buffer += data
        return self._count_buffer()

    def _count_buffer(self) -> bool:
        self._buffers.give(self._buffered)
        self._buffered = len(self.buffer)
        if self._buffers.take(self._buffered):
            return True
        self._buffered = 0
        return False

    # -- the head of a request --

    def take_head(self, data: bytes) -> RequestHead | Rejection | None:
        """None: it is incomplete. The object is the last one if only the length of the head differs."""
        if self.buffer:
            data = self.buffer + data
        if self._buffered:
            self._buffers.give(self._buffered)
            self._buffered = 0
        cached = self._cached_head
        if cached is not None and (end := cached.match(data)):
            self.buffer = data[end:]
            self.is_in_head = False
            return cached.head
        try:
            return self._read_head(data)
        except ProtocolError as error:
            return error.rejection

    def _read_head(self, data: bytes) -> RequestHead | Rejection | None:
        if data.startswith(b"\r\n"):
            data = data.lstrip(b"\r\n")  # empty lines before a request are skipped
        self._cached_head = None
        end = data.find(END)
        if end < 0 or end > self._limits.head_bytes:
            self._check_beginning(data)
            self.is_in_head = bool(data)
            self.buffer = data
            return None if self._count_buffer() else self._buffers.full()
        head = read_request(data[:end], self._limits.head_lines)
        if len(head.target) > self._limits.uri_bytes:
            raise self._target_too_long()
        self._cached_head = CachedHead(data[: end + 4], head)
        self.buffer = data[end + 4 :]
        self.is_in_head = False
        return head

    def _check_beginning(self, data: bytes) -> None:
        """Of a head that is incomplete."""
        limits = self._limits
        if len(data) > limits.uri_bytes and b"\r\n" not in data[: limits.uri_bytes]:
            raise self._target_too_long()
        if len(data) > limits.head_bytes:
            raise ProtocolError(431, "bad_head", f"the head is longer than {limits.head_bytes} bytes")
        if b"\n\n" in data or b"\n\r\n" in data:
            raise ProtocolError(400, "bad_head", "lines must end in CRLF")

    def _target_too_long(self) -> ProtocolError:
        return ProtocolError(414, "bad_head", f"the target is longer than {self._limits.uri_bytes} bytes")

    # -- the body of a request --

    def begin_body(self, head: RequestHead) -> bytes | Rejection | None:
        """The body, if all of it has arrived. None: it is to be read, at once unless `is_waiting`."""
        size, buffered = head.length, self.buffer
        if size is None:
            return None if head.is_chunked else b""
        if size > self._limits.body_bytes:
            return self._body_too_long()
        arrived = len(buffered)
        if arrived < size:
            return self._reserve_body(size)
        if size > _UNCOUNTED_BYTES:
            if not self._buffers.take(size):
                return self._buffers.full()
            self.reserved_bytes = size
        if arrived == size:
            self.buffer = b""
            return buffered
        self.buffer = buffered[size:]
        return buffered[:size]

    def _reserve_body(self, size: int) -> Rejection | None:
        """It is read when there is room for all of it."""
        if self._buffers.take(size):
            self.reserved_bytes = size
        elif self._buffers.wait(self._waiter, size, len(self.buffer)):
            self.is_waiting = True
        else:
            return self._buffers.full()
        return None

    def take_body(self, head: RequestHead, data: bytes) -> bytes | Rejection | None:
        """The body, once `data` completes it."""
        body = self._body
        if body is None:
            body = self._body = BodyReader(None if head.is_chunked else head.length)
        try:
            end = body.take(data)
        except ProtocolError as error:
            return error.rejection
        if body.size > self._limits.body_bytes:
            return self._body_too_long()
        if body.size > self.reserved_bytes:  # chunked: its length is not known before
            if not self._buffers.take(body.size - self.reserved_bytes):
                return self._buffers.full()
            self.reserved_bytes = body.size
        if not body.is_whole():
            return None
        self.buffer = data[end:]
        self._body = None
        return body.body()

    def _body_too_long(self) -> Rejection:
        return Rejection(413, "too_large", f"the body is longer than {self._limits.body_bytes} bytes")

    def has_room(self, head: RequestHead) -> None:
        """For the body that waits: it is reserved."""
        self.is_waiting = False
        self.reserved_bytes = head.length or 0

    def free_body(self) -> None:
        """It was sent, or will not be."""
        if self.is_waiting:
            self.is_waiting = False
            self._buffers.stop_waiting(self._waiter)
        self._body = None
        self._buffers.give(self.reserved_bytes)
        self.reserved_bytes = 0

    def close(self) -> None:
        self.free_body()
        self.take_buffer()


_MAX_PIECES = 256
_IN_PLACE_BYTES = 1024 * 1024


class BodyReader:
    """Collects the body of a request. A long body of known length is written where it stays; others are
    joined at their end."""

    __slots__ = ("_chunks", "_joined", "_left", "_pieces", "_place", "size")

    def __init__(self, length: int | None) -> None:
        """`length`: None for a chunked body."""
        self._chunks = ChunkParser() if length is None else None
        self._left = length or 0
        self._pieces: list[bytes] = []
        self._joined = 0
        self._place = bytearray(length) if length and length > _IN_PLACE_BYTES else None
        """Its pages take no memory until they are written."""
        self.size = 0
        """Bytes received, with their framing."""

    def take(self, data: bytes) -> int:
        """Take what belongs to the body, and return where it ended. Raises `ProtocolError`."""
        if self._chunks is not None:
            end = self._chunks.follow(data, 0, self._pieces)
        else:
            end = min(len(data), self._left)
            self._left -= end
            if self._place is not None:
                self._place[self.size : self.size + end] = memoryview(data)[:end]
            else:
                self._pieces.append(data if end == len(data) else data[:end])
        self.size += end
        if len(self._pieces) - self._joined >= _MAX_PIECES:  # pieces of a few bytes have a header of 33
            self._pieces[self._joined :] = [b"".join(self._pieces[self._joined :])]
            self._joined += 1
        return end

    def is_whole(self) -> bool:
        return not self._left if self._chunks is None else self._chunks.is_over

    def body(self) -> bytes:
        """A long one stays a `bytearray`, which is not changed any more: a copy would double it."""
        return b"".join(self._pieces) if self._place is None else cast(bytes, self._place)
