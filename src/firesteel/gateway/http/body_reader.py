"""Collects the body of a request."""

from __future__ import annotations

from typing import cast

from firesteel.gateway.http.chunks import ChunkParser

_MAX_PIECES = 256
_IN_PLACE_BYTES = 1024 * 1024


class BodyReader:
    """A long body of known length is written where it stays; others are joined at their end."""

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
        """A long one stays a `bytearray`, which nobody changes: a copy would double it."""
        return b"".join(self._pieces) if self._place is None else cast(bytes, self._place)
