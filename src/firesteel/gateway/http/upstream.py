"""A connection to an engine: one request out, one answer in, and back into the pool if nothing was odd.

The body is passed on as it comes, in pieces; only its framing is followed, to know where it ends. Whoever
takes it says how (`Pieces`) when it has seen the head.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import IntEnum
from typing import Protocol, cast

from firesteel.gateway.http.chunks import Chunks, is_chunk
from firesteel.gateway.http.head import END, AmbiguousHead, RepeatedHead, ResponseHead, read_response

_MAX_HEAD = 64 * 1024
_MAX_HEADS = 8
"""Of 1xx answers before the real one."""
_MAX_HELD = 64 * 1024


class ChunkBoundaries(IntEnum):
    """How a chunked body is handed on."""

    AS_THEY_COME = 0
    WHOLE_CHUNKS = 1
    """Never a part of a chunk: so that something may be said between any two."""
    WITHOUT_FRAMING = 2


class ResponseReceiver(Protocol):
    """Who asked, and takes the answer. After `over` or `broke` it hears no more."""

    def answered(self, head: ResponseHead) -> ChunkBoundaries: ...

    def take(self, piece: bytes) -> None: ...

    def flush(self) -> None:
        """What has come so far was all there is for now."""

    def over(self) -> None: ...

    def broke(self, why: str, *, is_unheard: bool) -> None:
        """is_unheard: nothing at all came back over a connection that had been used before."""


_HEAD, _LENGTH, _CHUNKED, _CLOSE = range(4)


class Upstream(asyncio.Protocol):
    """The connection. `taker` is None while it is idle."""

    __slots__ = (
        "_chunks", "_give_back", "_heads", "_held", "_is_even", "_is_framed", "_is_fresh", "_is_head_only",
        "_is_paused", "_keeps", "_last", "_left", "_lost", "_mode", "_pieces", "_seen", "idle_since",
        "is_sending", "taker", "transport",
    )  # fmt: skip

    def __init__(self, give_back: Callable[[Upstream], None], lost: Callable[[Upstream], None]) -> None:
        self._give_back = give_back
        self._lost = lost
        self._is_fresh = True
        self._is_paused = False
        self._is_even = False
        """A framed body that stands between two chunks, with nothing held back."""
        self._seen = b""
        self._mode = _HEAD
        self._last: RepeatedHead[ResponseHead] | None = None
        self.taker: ResponseReceiver | None = None
        self.idle_since = 0.0
        self.is_sending = False
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)

    # -- what the exchange does --

    def send(self, taker: ResponseReceiver, request: tuple[bytes, ...], *, is_head_only: bool) -> None:
        """Asks. `is_head_only`: the answer to HEAD has no body, whatever it says."""
        self.taker = taker
        self._mode = _HEAD
        self._is_even = False
        self._heads = 0
        self._is_head_only = is_head_only
        self._held = b""
        for part in request:
            self.transport.write(part)

    def drop(self) -> None:
        """Closes at once: whatever the engine still says is for nobody."""
        self.taker = None
        self.transport.abort()

    def pause(self) -> None:
        if not self._is_paused and not self.transport.is_closing():
            self._is_paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        if self._is_paused and not self.transport.is_closing():
            self._is_paused = False
            self.transport.resume_reading()

    # -- what the loop does --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        taker, mode = self.taker, self._mode
        if taker is None:
            self.drop()  # nobody asked
            return
        try:
            if self._is_even and is_chunk(data):
                taker.take(data)
            elif mode == _CHUNKED:
                self._take_chunked(taker, data)
            elif mode == _HEAD:
                self._take_head(taker, data)
            elif mode == _LENGTH:
                self._take_length(taker, data)
            else:
                taker.take(data)
        except AmbiguousHead as unclear:
            self._break(f"its answer is not HTTP/1.1 as we understand it: {unclear}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost(self)
        taker, self.taker = self.taker, None
        if taker is None:
            return
        if self._mode == _CLOSE and exc is None:
            taker.over()
        else:
            is_unheard = self._mode == _HEAD and not self._is_fresh and not self._heads and not self._seen
            taker.broke("it closed the connection before its answer was whole", is_unheard=is_unheard)

    def pause_writing(self) -> None:
        self.is_sending = True

    def resume_writing(self) -> None:
        self.is_sending = False

    # -- the answer --

    def _take_head(self, taker: ResponseReceiver, data: bytes) -> None:
        if self._seen:
            data = self._seen + data
            self._seen = b""
        last = self._last
        if last is not None and (end := last.match(data)):
            self._begin(taker, last.head, data[end:])
            return
        end = data.find(END)
        if end >= 0:
            self._read_head(taker, data, end)
        elif len(data) > _MAX_HEAD:
            raise AmbiguousHead(502, "bad_answer", "its head is too long")
        else:
            self._seen = data

    def _read_head(self, taker: ResponseReceiver, data: bytes, end: int) -> None:
        """An interim answer (100, 102, 103) is this hop's. 101 is none: we asked for no other protocol."""
        self._heads += 1
        head = read_response(data[:end])
        rest = data[end + 4 :]
        if head.status >= 200:
            self._last = RepeatedHead(data[: end + 4], head)
            self._begin(taker, head, rest)
        elif head.status == 101 or self._heads > _MAX_HEADS:
            raise AmbiguousHead(502, "bad_answer", "it keeps answering 1xx")
        elif rest:
            self._take_head(taker, rest)

    def _begin(self, taker: ResponseReceiver, head: ResponseHead, rest: bytes) -> None:
        self._keeps = head.keeps_alive
        self._left = 0
        self._pieces = taker.answered(head)
        self._is_framed = self._pieces != ChunkBoundaries.WITHOUT_FRAMING
        if self._is_head_only or head.status == 204 or head.status == 304:
            self._mode = _LENGTH
            self._take_length(taker, rest)
        elif head.length is not None:
            self._mode, self._left = _LENGTH, head.length
            self._take_length(taker, rest)
        elif head.is_chunked:
            self._mode, self._chunks = _CHUNKED, Chunks()
            self._take_chunked(taker, rest)
        else:
            self._mode = _CLOSE
            if rest:
                taker.take(rest)
        if self.taker is taker:
            taker.flush()

    def _take_length(self, taker: ResponseReceiver, data: bytes) -> None:
        size = len(data)
        if size >= self._left:
            piece = data if size == self._left else data[: self._left]
            self._end(taker, piece, is_clean=size == self._left)
        elif data:
            self._left -= size
            taker.take(data)

    def _take_chunked(self, taker: ResponseReceiver, data: bytes) -> None:
        chunks = self._chunks
        if not self._is_framed:
            self._take_unframed(taker, data)
            return
        end = chunks.follow(data)
        self._is_even = chunks.is_between()
        if chunks.is_over:
            piece = data if end == len(data) else data[:end]
            self._end(taker, self._held + piece, is_clean=end == len(data))
        elif self._pieces == ChunkBoundaries.AS_THEY_COME or (chunks.whole == end and not self._held):
            if data:
                taker.take(data)
        else:
            self._hold(taker, data, chunks.whole)

    def _hold(self, taker: ResponseReceiver, data: bytes, whole: int) -> None:
        """Passes on what ends with a chunk and keeps the rest, for as long as it is little."""
        piece = b""
        if whole >= 0:
            piece, self._held = self._held + data[:whole], data[whole:]
        else:
            self._held += data
        if len(self._held) > _MAX_HELD:
            self._pieces = ChunkBoundaries.AS_THEY_COME
            piece, self._held = piece + self._held, b""
        self._is_even = self._is_even and not self._held
        if piece:
            taker.take(piece)

    def _take_unframed(self, taker: ResponseReceiver, data: bytes) -> None:
        out: list[bytes] = []
        end = self._chunks.follow(data, 0, out)
        piece = b"".join(out)
        if self._chunks.is_over:
            self._end(taker, piece, is_clean=end == len(data))
        elif piece:
            taker.take(piece)

    def is_between_chunks(self) -> bool:
        """Whether everything that was handed on ended with a chunk."""
        return self._mode == _CHUNKED and self._pieces == ChunkBoundaries.WHOLE_CHUNKS

    def _end(self, taker: ResponseReceiver, piece: bytes, *, is_clean: bool) -> None:
        """The last piece. The connection is free before the taker hears of the end: it may ask again."""
        if piece:
            taker.take(piece)
            if self.taker is not taker:
                return  # it let go meanwhile
        self.taker = None
        self._is_fresh = False
        self.resume()
        if is_clean and self._keeps and not self.is_sending and not self.transport.get_write_buffer_size():
            self._give_back(self)
        else:
            self.transport.abort()
        taker.over()

    def _break(self, why: str) -> None:
        taker = self.taker
        self.drop()
        if taker is not None:
            taker.broke(why, is_unheard=False)
