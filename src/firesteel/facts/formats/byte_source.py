"""Where header bytes come from: ranges of a file, a URL or a test's bytes, and a cursor over them.

A checkpoint has tens of gigabytes, its header a few megabytes at the front, so readers ask for ranges and
never for the whole file. The same reader works on a file, on a URL before the download, and on bytes in a
test.

`ByteCursor` reads forward from a ByteSource: small reads from a buffer, long skips without reading. A header
is thousands of fields of a few bytes, and over HTTP each read of the source is a request. So the buffer
starts at 256 KiB and doubles up to 4 MiB: a small header costs one request, a large one a handful.
"""

from __future__ import annotations

import struct
from typing import Any, Protocol

from firesteel.errors import FiresteelError, printable
from firesteel.values import Value

MAX_ERROR_CHARS = 300
"""Of a message that quotes a file."""


class BadHeader(FiresteelError):
    """A checkpoint file whose header is truncated, invalid, or larger than that of any real model."""


class ByteSource(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int: ...

    def read(self, start: int, length: int) -> bytes:
        """Exactly `length` bytes from `start`, or BadHeader."""
        ...


class MemorySource(Value):
    name: str
    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)

    def read(self, start: int, length: int) -> bytes:
        if start < 0 or length < 0 or start + length > len(self.data):
            raise truncated(self.name)
        return self.data[start : start + length]


def truncated(name: str) -> BadHeader:
    return bad_header(name, "is truncated")


def bad_header(name: str, what: str) -> BadHeader:
    return BadHeader(printable(f"{name} {what}", MAX_ERROR_CHARS), next="download it again")


_FIRST_BUFFER_BYTES = 256 * 1024
_MAX_BUFFER_BYTES = 4 * 1024 * 1024


class ByteCursor:
    """Little endian. Reading past `max_bytes` or the end of the source is a BadHeader."""

    def __init__(self, source: ByteSource, max_bytes: int) -> None:
        self.name = source.name
        self.position = 0
        self._source = source
        self._max_bytes = max_bytes
        self._buffer = b""
        self._buffer_at = 0
        self._next_bytes = _FIRST_BUFFER_BYTES

    def take(self, length: int) -> bytes:
        offset = self._fill(length)
        self.position += length
        return self._buffer[offset : offset + length]

    def number(self, code: str) -> Any:
        """One number, by its `struct` format character."""
        format_ = f"<{code}"
        length = struct.calcsize(format_)
        offset = self._fill(length)
        self.position += length
        return struct.unpack_from(format_, self._buffer, offset)[0]

    def string(self, what: str, max_bytes: int) -> str:
        """A 64-bit length and that many bytes of UTF-8."""
        length = self.number("Q")
        if length > max_bytes:
            raise self.bad(f"is damaged: a {what} claims {length:,} bytes")
        try:
            return self.take(length).decode()
        except UnicodeDecodeError:
            raise self.bad(f"is damaged: a {what} is not UTF-8") from None

    def skip(self, length: int) -> None:
        self._check(length)
        self.position += length

    def skip_strings(self, count: int) -> None:
        if self.position + 8 * count > self._source.size:
            raise truncated(self.name)
        length_at = struct.Struct("<Q").unpack_from
        for _ in range(count):
            offset = self.position - self._buffer_at
            if offset + 8 > len(self._buffer):
                offset = self._fill(8)
            self.position += 8 + length_at(self._buffer, offset)[0]
        self._check(0)

    def bad(self, what: str) -> BadHeader:
        return bad_header(self.name, what)

    def _check(self, length: int) -> None:
        end = self.position + length
        if end > self._source.size:
            raise truncated(self.name)
        if end > self._max_bytes:
            raise self.bad(f"has a header of over {self._max_bytes:,} bytes, more than any real model")

    def _fill(self, length: int) -> int:
        """Make sure that `length` bytes are in the buffer; returns their offset in it."""
        offset = self.position - self._buffer_at
        if offset >= 0 and offset + length <= len(self._buffer):
            return offset
        self._check(length)
        size = min(max(length, self._next_bytes), self._source.size - self.position)
        self._buffer = self._source.read(self.position, size)
        self._buffer_at = self.position
        self._next_bytes = min(2 * self._next_bytes, _MAX_BUFFER_BYTES)
        return 0
