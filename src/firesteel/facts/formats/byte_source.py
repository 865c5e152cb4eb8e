"""Where header bytes come from: anything with a name, a size and ranges of bytes.

A checkpoint has tens of gigabytes, its header a few megabytes at the front, so readers ask for ranges and
never for the whole file. The same reader works on a file, on a URL before the download, and on bytes in a
test.
"""

from __future__ import annotations

from typing import Protocol

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
