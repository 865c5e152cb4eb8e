"""Follow a log file that grows, is truncated or is replaced, in whole lines."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from firesteel.run.service import MAX_TAIL_BYTES

_MAX_LINE_CHARS = 64 * 2**10
_MAX_READ_BYTES = 256 * 2**10


class LogTail:
    """Keeps the file open: otherwise a new file could get the inode of the old one and be taken for it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("rb")
        self._partial_line = ""

    def close(self) -> None:
        self._file.close()

    def last(self, count: int) -> list[str]:
        self._file.seek(max(0, os.fstat(self._file.fileno()).st_size - MAX_TAIL_BYTES))
        return self._read(MAX_TAIL_BYTES)[-count:]

    def more(self) -> list[str]:
        """Lines since the last call; a file that is missing for a moment has none."""
        opened = os.fstat(self._file.fileno())
        with suppress(FileNotFoundError):
            current = self._path.stat()
            if (current.st_ino, current.st_dev) != (opened.st_ino, opened.st_dev):
                self._file.close()
                self._file, self._partial_line = self._path.open("rb"), ""
            elif opened.st_size < self._file.tell():
                self._file.seek(0)
                self._partial_line = ""
        return self._read(_MAX_READ_BYTES)

    def _read(self, max_bytes: int) -> list[str]:
        text = self._partial_line + self._file.read(max_bytes).decode(errors="replace").replace("\r", "\n")
        *lines, self._partial_line = text.split("\n")
        if len(self._partial_line) > _MAX_LINE_CHARS:
            lines, self._partial_line = [*lines, self._partial_line], ""
        return [line[:_MAX_LINE_CHARS] for line in lines]
