"""Compares files with the digests that they were published with, and records which of them are intact.

Reading 60 GB takes a minute or more, so a file that was read is not read again as long as its size, time of
change and inode stay the same, and its first MiB too: formats of weights have their header there, and
storage that fails changes no time. Only reading everything again finds damage further inside.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from firesteel.edge.files.home import write_text
from firesteel.edge.files.state_file import read_json
from firesteel.edge.hub.listing import HubFile
from firesteel.edge.hub.transfer import TransferCounter, TransferProgress, run_in_threads
from firesteel.errors import HostNotReady
from firesteel.units import MIB
from firesteel.values import Value

_HEAD_BYTES = MIB
MAX_RECORD_BYTES = 64 * MIB
_DAMAGE = (errno.EIO, errno.ENOENT)
"""The disk cannot read the file, or it has vanished: like wrong bytes, another copy is needed."""
FileStamp = list[int | str]


class StoredFile(Value):
    """A published file and where it is on this disk."""

    file: HubFile
    path: Path


class DigestResult(Value):
    damaged: tuple[StoredFile, ...]
    read_bytes: int
    seconds: float


class VerifiedFiles(Value):
    """Digests of files that were read and matched, with the file's stamp at that time: a JSON file."""

    record: Path

    def unread(self, files: Iterable[StoredFile]) -> tuple[StoredFile, ...]:
        """Those that were never compared with their digest, or have changed since."""
        stamps = self._stamps()
        return tuple(stored for stored in files if not _is_unchanged(stored.path, stamps.get(_key(stored))))

    def mark(self, files: Iterable[StoredFile]) -> None:
        """Files that were hashed while they were written."""
        self._update({_key(stored): _stamp(stored.path) for stored in files})

    async def compare(self, files: Sequence[StoredFile]) -> AsyncGenerator[TransferProgress | DigestResult]:
        """Reads the files and records the intact ones; yields progress, then the result."""
        counter = TransferCounter(sum(stored.file.bytes for stored in files))
        # Stamped before it is read: what is written meanwhile is not taken for verified.
        stamps = {_key(stored): _stamp(stored.path) for stored in files}
        damaged, began = list[StoredFile](), time.monotonic()

        def read(stored: StoredFile) -> None:
            if not matches_digest(stored, counter.add):
                damaged.append(stored)

        async for progress in run_in_threads(files, read, counter):
            yield progress
        for stored in damaged:
            stamps[_key(stored)] = None
        self._update(stamps)
        yield DigestResult(tuple(damaged), counter.total_bytes, time.monotonic() - began)

    def _update(self, stamps: Mapping[str, FileStamp | None]) -> None:
        merged = {**self._stamps(), **stamps}
        write_text(self.record, json.dumps({key: stamp for key, stamp in merged.items() if stamp}))

    def _stamps(self) -> dict[str, Any]:
        stamps = read_json(self.record, MAX_RECORD_BYTES)
        return stamps if isinstance(stamps, dict) else {}


def _key(stored: StoredFile) -> str:
    return stored.file.digest


def _is_unchanged(path: Path, known: Any) -> bool:
    """A record of version 0.1 has only size and time."""
    if not isinstance(known, list) or len(known) < 2:
        return False
    now = _status(path)
    return now is not None and known[:3] == now[: len(known)] and known[3:] in ([], [_head(path)])


def _stamp(path: Path) -> FileStamp | None:
    status = _status(path)
    return [*status, _head(path)] if status else None


def _status(path: Path) -> list[int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def _head(path: Path) -> str:
    try:
        with path.open("rb", buffering=0) as file:
            return hashlib.sha256(file.read(_HEAD_BYTES)).hexdigest()
    except OSError:
        return ""


def matches_digest(stored: StoredFile, on_read: Callable[[int], None]) -> bool:
    """Reads all of it, then drops it from the page cache: on a Spark that is the GPU's memory."""
    digest = stored.file.new_hash()
    try:
        with stored.path.open("rb", buffering=0) as source:
            while piece := source.read(8 * MIB):
                digest.update(piece)
                on_read(len(piece))
            os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError as error:
        if error.errno in _DAMAGE:
            return False
        raise HostNotReady(
            f"{stored.path} cannot be read: {error.strerror}", next=f"ls -l {stored.path}"
        ) from error
    return bool(digest.hexdigest() == stored.file.digest)
