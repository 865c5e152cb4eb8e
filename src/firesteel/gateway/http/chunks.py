"""Strict parser for chunked bodies that leaves their content untouched.

httptools does not report at which byte a body ended; and what follows the end must never be taken for a part
of it.
"""

from __future__ import annotations

import re

from firesteel.gateway.http.head import FIELD, ProtocolError

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]++"
_QUOTED = rb'"(?>(?:[\t\x20\x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\t\x20-\x7e\x80-\xff])*)"'
_EXTENSION = rb"[ \t]*+;[ \t]*+%b(?>(?:[ \t]*+=[ \t]*+(?:%b|%b))?)" % (_TOKEN, _TOKEN, _QUOTED)
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})(?>(?:%b)*)\r\n" % _EXTENSION)
"""RFC 9112, 7.1.1."""
_MAX_LINE = 512
"""Of a size line with its extensions."""
_MAX_TRAILERS = 8192
_MAX_LENGTH = 4096
LAST_CHUNK = b"0\r\n\r\n"

_AT_SIZE, _AT_DATA, _AT_DATA_END, _AT_TRAILER = range(4)


def encode_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class _SizeLines(dict[int, bytes | tuple[()]]):
    """By the length of a whole chunk: the line that it begins with, as engines write it. A chunk of another
    form, or a long one, begins with nothing of this (`startswith(())` is False) and is parsed."""

    def __missing__(self, length: int) -> bytes | tuple[()]:
        if length > _MAX_LENGTH:
            return ()
        lines = (b"%x\r\n" % size for size in range(max(1, length - 9), length - 4))
        line = self[length] = next((line for line in lines if len(line) + int(line, 16) + 2 == length), ())
        return line


SIZE_LINES = _SizeLines()


def is_whole_chunk(data: bytes) -> bool:
    """Whether this is exactly one chunk, as nearly every event arrives. A fast path for
    `ChunkParser.follow`; `Upstream.data_received` repeats it."""
    return data.startswith(SIZE_LINES[len(data)]) and data.endswith(b"\r\n")


class ChunkParser:
    """The position in a chunked body."""

    __slots__ = ("_left", "_line", "_state", "_trailers", "is_over", "whole")

    def __init__(self) -> None:
        self._state = _AT_SIZE
        self._left = 0
        self._line = b""
        self._trailers = 0
        self.is_over = False
        self.whole = -1
        """The end of the last complete chunk in the data parsed last, or -1."""

    def is_between(self) -> bool:
        """Whether the position is between two chunks; `is_whole_chunk` data does not change that."""
        return self._state == _AT_SIZE and not self._line and not self.is_over

    def follow(self, data: bytes, position: int = 0, out: list[bytes] | None = None) -> int:
        """Parse from `position` to the end of `data` or of the body, and return where it stopped. The content
        of the chunks is appended to `out`. Raises `ProtocolError`."""
        size = len(data)
        self.whole = -1
        while position < size and not self.is_over:
            if self._state == _AT_SIZE:
                position = self._take_size(data, position, out)
            elif self._state == _AT_DATA:
                position = self._take_data(data, position, out)
            elif self._state == _AT_DATA_END:
                position = self._take_data_end(data, position)
            else:
                position = self._take_trailer(data, position)
        return position

    def _take_size(self, data: bytes, position: int, out: list[bytes] | None) -> int:
        match = None if self._line else _SIZE.match(data, position)
        if match is None:
            return self._take_split_size(data, position)
        start = match.end()
        left = int(match[1], 16)
        end = start + left
        if left and data.startswith(b"\r\n", end) and start - position <= _MAX_LINE:
            # The usual case: the whole chunk is here.
            if out is not None:
                out.append(data[start:end])
            self.whole = end + 2
            return end + 2
        self._begin(left, start - position)
        return start

    def _take_split_size(self, data: bytes, position: int) -> int:
        end, line = self._rest_of_line(data, position, _MAX_LINE)
        if line:
            match = _SIZE.fullmatch(line)
            if match is None:
                raise ProtocolError(400, "bad_chunk", "a chunk has no valid size")
            self._begin(int(match[1], 16), len(line))
        return end

    def _begin(self, left: int, line_bytes: int) -> None:
        if line_bytes > _MAX_LINE:
            raise ProtocolError(400, "bad_chunk", "a chunk's extensions are too long")
        self._left = left
        self._state = _AT_DATA if left else _AT_TRAILER

    def _take_data(self, data: bytes, position: int, out: list[bytes] | None) -> int:
        end = min(position + self._left, len(data))
        if out is not None:
            out.append(data[position:end])
        self._left -= end - position
        if not self._left:
            self._state = _AT_DATA_END
        return end

    def _take_data_end(self, data: bytes, position: int) -> int:
        end = position + 2 - len(self._line)
        line = self._line + data[position:end]
        if not b"\r\n".startswith(line):
            raise ProtocolError(400, "bad_chunk", "a chunk is longer than its size")
        if len(line) < 2:
            self._line = line
            return len(data)
        self._line = b""
        self._state = _AT_SIZE
        self.whole = end
        return end

    def _take_trailer(self, data: bytes, position: int) -> int:
        end, line = self._rest_of_line(data, position, _MAX_TRAILERS - self._trailers)
        if not line:
            return end
        self._trailers += len(line)
        if line == b"\r\n":
            self.is_over = True
            self.whole = end
        elif not (line.endswith(b"\r\n") and FIELD.fullmatch(line, 0, len(line) - 2)):
            raise ProtocolError(400, "bad_chunk", "a trailer is not `name: value`")
        return end

    def _rest_of_line(self, data: bytes, position: int, max_bytes: int) -> tuple[int, bytes]:
        """Return the end of the line, and the line with its CRLF; empty while it is incomplete."""
        end = data.find(b"\n", position) + 1 or len(data)
        line = self._line + data[position:end]
        if len(line) > max_bytes:
            raise ProtocolError(400, "bad_chunk", "a chunk's size line or the trailers are too long")
        is_whole = line.endswith(b"\n")
        self._line = b"" if is_whole else line
        return end, line if is_whole else b""
