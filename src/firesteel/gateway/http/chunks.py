"""Chunked bodies followed byte by byte, strictly, without touching what is in them.

httptools would follow them too, but does not say at which byte a body ended; and what comes after the end
must never be taken for a part of it.
"""

from __future__ import annotations

import re

from firesteel.gateway.http.head import FIELD, AmbiguousHead

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?\r\n")
_MAX_LINE = 512
"""A size line with its extensions."""
_MAX_TRAILERS = 8192
_MAX_SIZES = 4096
LAST = b"0\r\n\r\n"

_AT_SIZE, _AT_DATA, _AT_DATA_END, _AT_TRAILER = range(4)


def chunk(data: bytes) -> bytes:
    """One chunk of it."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class _Spans(dict[bytes, int]):
    """Plain sizes, each read once: a stream's chunks have about the same few. As the bytes from the end of
    the digits to that of the chunk; 0: not plain, or the last."""

    def __missing__(self, digits: bytes) -> int:
        match = _SIZE.fullmatch(digits + b"\r\n")
        size = int(match[1], 16) if match else 0
        span = size + 4 if size else 0
        if len(self) < _MAX_SIZES and len(digits) <= 15:
            self[digits] = span
        return span


_SPANS = _Spans()


def is_chunk(data: bytes) -> bool:
    """Whether this is one whole chunk. It is what `Chunks.follow` would say, sooner: nearly every event comes
    so."""
    at = data.find(b"\r\n", 0, 18)
    return len(data) == at + _SPANS[data[:at]] and data.endswith(b"\r\n")


class Chunks:
    """Where we are in a chunked body."""

    __slots__ = ("_left", "_line", "_state", "_trailers", "is_over", "whole")

    def __init__(self) -> None:
        self._state = _AT_SIZE
        self._left = 0
        self._line = b""
        self._trailers = 0
        self.is_over = False
        self.whole = -1
        """In what was followed last: the end of its last whole chunk, or -1."""

    def is_between(self) -> bool:
        """Whether we are between two chunks; then we are again behind data of which `is_chunk` is true."""
        return self._state == _AT_SIZE and not self._line and not self.is_over

    def follow(self, data: bytes, at: int = 0, out: list[bytes] | None = None) -> int:
        """Goes on from `at`, and says how far it came: to the end of `data`, or of the body. The bytes that
        the chunks carry are put into `out`. Raises `Unclear`."""
        size = len(data)
        self.whole = -1
        while at < size and not self.is_over:
            if self._state == _AT_SIZE:
                at = self._take_size(data, at, out)
            elif self._state == _AT_DATA:
                at = self._take_data(data, at, out)
            elif self._state == _AT_DATA_END:
                at = self._take_data_end(data, at)
            else:
                at = self._take_trailer(data, at)
        return at

    def _take_size(self, data: bytes, at: int, out: list[bytes] | None) -> int:
        match = None if self._line else _SIZE.match(data, at)
        if match is None:
            return self._take_split_size(data, at)
        start = match.end()
        left = int(match[1], 16)
        end = start + left
        if left and data.startswith(b"\r\n", end) and start - at <= _MAX_LINE:
            # The usual case: the whole chunk is here.
            if out is not None:
                out.append(data[start:end])
            self.whole = end + 2
            return end + 2
        self._begin(left, start - at)
        return start

    def _take_split_size(self, data: bytes, at: int) -> int:
        end, line = self._rest_of_line(data, at, _MAX_LINE)
        if line:
            match = _SIZE.fullmatch(line)
            if match is None:
                raise AmbiguousHead(400, "bad_chunk", "a chunk has no size")
            self._begin(int(match[1], 16), len(line))
        return end

    def _begin(self, left: int, line_bytes: int) -> None:
        if line_bytes > _MAX_LINE:
            raise AmbiguousHead(400, "bad_chunk", "a chunk's extensions are too long")
        self._left = left
        self._state = _AT_DATA if left else _AT_TRAILER

    def _take_data(self, data: bytes, at: int, out: list[bytes] | None) -> int:
        end = min(at + self._left, len(data))
        if out is not None:
            out.append(data[at:end])
        self._left -= end - at
        if not self._left:
            self._state = _AT_DATA_END
        return end

    def _take_data_end(self, data: bytes, at: int) -> int:
        end = at + 2 - len(self._line)
        line = self._line + data[at:end]
        if not b"\r\n".startswith(line):
            raise AmbiguousHead(400, "bad_chunk", "a chunk is longer than it said")
        if len(line) < 2:
            self._line = line
            return len(data)
        self._line = b""
        self._state = _AT_SIZE
        self.whole = end
        return end

    def _take_trailer(self, data: bytes, at: int) -> int:
        end, line = self._rest_of_line(data, at, _MAX_TRAILERS - self._trailers)
        if not line:
            return end
        self._trailers += len(line)
        if line == b"\r\n":
            self.is_over = True
            self.whole = end
        elif not (line.endswith(b"\r\n") and FIELD.fullmatch(line, 0, len(line) - 2)):
            raise AmbiguousHead(400, "bad_chunk", "a trailer is not `name: value`")
        return end

    def _rest_of_line(self, data: bytes, at: int, most: int) -> tuple[int, bytes]:
        """Where the line ends, and the line with its end; an empty one while it is not all there."""
        end = data.find(b"\n", at) + 1 or len(data)
        line = self._line + data[at:end]
        if len(line) > most:
            raise AmbiguousHead(400, "bad_chunk", "a chunk's size line or the trailers are too long")
        is_whole = line.endswith(b"\n")
        self._line = b"" if is_whole else line
        return end, line if is_whole else b""
