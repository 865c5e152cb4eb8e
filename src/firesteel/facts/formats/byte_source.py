"""Where header bytes come from: anything that has a name, a size and can hand out a range of bytes.

A checkpoint is tens of gigabytes and its header a few megabytes at the front, so the readers ask for
ranges and never for the file. The same reader then works on a file, on a URL before the download,
and on bytes in a test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from firesteel.errors import FiresteelError


class BadHeader(FiresteelError):
    """A checkpoint file that says nothing, nonsense, or more than any real model would."""


class ByteSource(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int: ...

    def read(self, start: int, length: int) -> bytes:
        """Exactly `length` bytes from `start`, or BadHeader."""
        ...


@dataclass(frozen=True, slots=True)
class MemorySource:
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
    return bad_header(name, "is cut short")


def bad_header(name: str, what: str) -> BadHeader:
    return BadHeader(one_line(f"{name} {what}"), next="download it again")


def one_line(words: str) -> str:
    """Words that quote a file, safe to print: no control characters, no names without end."""
    line = "".join(char if char.isprintable() else "?" for char in words[:300])
    return line if len(words) <= 300 else f"{line[:297]}..."
