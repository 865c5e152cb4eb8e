"""The journal of charges: what keys with a budget have used, on the disk before their clients know.

The request log is written in batches, and `kill -9` loses the last half second of it. A budget must not be
larger after a crash, so each request of a key that has one is a line here as well, written at once; with the
next start, lines that the log does not have are added to it. Only a power cut can lose the last of them.

A line is the number of the charge and the values of its row, as JSON. Numbers only grow, and the log stores
the last one with the rows, in one transaction: no charge is lost and none counts twice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from firesteel.gateway.admin.request_rows import COLUMNS, RowValues

_MAX_BYTES = 2**20
"""Then it is emptied, if the log has everything in it."""
_MAX_READ_BYTES = 64 * 2**20


class ChargeJournal:
    def __init__(self, path: Path, logged: int) -> None:
        """`logged`: the number of the last charge that the log has."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.unwritten = sorted(line for line in _lines(self._file) if line[0] > logged)
        """The charges of an earlier process that the log does not have."""
        self.last = max(logged, *(number for number, _ in self.unwritten), 0)
        size = self._bytes = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            self._append(b"\n")  # a line that was cut off

    def add(self, values: RowValues, logged: int) -> int:
        """Return the charge's number. `logged` is the last one that the log has. OSError: the disk is
        full."""
        if self._bytes > _MAX_BYTES and logged >= self.last:
            os.ftruncate(self._file, 0)
            self._bytes = 0
        self.last += 1
        self._append(json.dumps([self.last, *values]).encode() + b"\n")
        return self.last

    def _append(self, line: bytes) -> None:
        self._bytes += os.write(self._file, line)

    def close(self) -> None:
        with suppress(OSError):
            os.close(self._file)


def _lines(file: int) -> Iterator[tuple[int, RowValues]]:
    """Those that are whole; anything else was cut off, or edited by hand."""
    for line in os.pread(file, _MAX_READ_BYTES, 0).splitlines():
        try:
            number, *values = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            continue
        if type(number) is int and 0 < number < 2**62 and len(values) == len(COLUMNS) and all(
            type(value) is kind or (kind is float and type(value) is int)
            for value, kind in zip(values, _KINDS, strict=True)
        ):  # fmt: skip
            yield number, tuple(values)


_KINDS = tuple(
    str if column in ("key", "model", "route", "how", "why")
    else float if column == "at" or column.endswith("_s")
    else int
    for column in COLUMNS
)  # fmt: skip
