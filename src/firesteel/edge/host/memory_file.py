"""A file in memory that other processes of the same user can read while its owner lives.

For what has to be known when no disk takes it: a full one, a read-only one, one that does not answer. The
kernel shows it as an open file of its owner, under the name it was given.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


class MemoryFile:
    """Raises OSError when the kernel has none to give."""

    def __init__(self, name: str) -> None:
        self._file = os.memfd_create(name)
        self._written_bytes = 0

    def fileno(self) -> int:
        return self._file

    def replace(self, content: bytes) -> None:
        """In one system call, so that no reader sees half of it; NULs cover the rest of a longer one."""
        os.pwrite(self._file, content.ljust(self._written_bytes, b"\0"), 0)
        self._written_bytes = max(self._written_bytes, len(content))

    def read(self) -> bytes:
        return os.pread(self._file, os.fstat(self._file).st_size, 0)

    def close(self) -> None:
        os.close(self._file)


def read_memory_file(owner: int, name: str, max_bytes: int) -> bytes:
    """Empty when the process has none of that name, or is another user's."""
    with suppress(OSError):
        for link in Path(f"/proc/{owner}/fd").iterdir():
            if str(link.readlink()).startswith(f"/memfd:{name} "):
                with link.open("rb") as file:
                    return file.read(max_bytes).rstrip(b"\0")
    return b""
