"""Reads a log of any length in pieces, so that a gigabyte of it never has to fit in memory."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from firesteel.errors import FiresteelError, UsageError

MAX_BYTES = 2**30
"""The longest log that is read; the first cause of a longer one is not in its last gigabyte anyway."""
_CHUNK_BYTES = 2**16


@contextmanager
def open_log(source: Path | BinaryIO, name: str) -> Iterator[Iterator[str]]:
    """The text in chunks. `name` is for messages."""
    try:
        if not isinstance(source, Path):
            yield _read(source, name)
            return
        with source.open("rb") as file:
            yield _read(file, name)
    except OSError as error:
        raise FiresteelError(f"{name} cannot be read: {error.strerror}", next=f"ls -l {name}") from error


def _read(file: BinaryIO, name: str) -> Iterator[str]:
    decoder, count = getincrementaldecoder("utf-8")(errors="replace"), 0
    while data := file.read(_CHUNK_BYTES):
        if not count and b"\0" in data:
            raise UsageError(f"{name} is not text", next="firesteel diagnose with the log of the engine")
        count += len(data)
        if count > MAX_BYTES:
            raise UsageError(
                f"{name} is longer than {MAX_BYTES:,} bytes",
                next=f"head -c 100M {name} | firesteel diagnose -",
            )
        yield decoder.decode(data)
    yield decoder.decode(b"", final=True)
