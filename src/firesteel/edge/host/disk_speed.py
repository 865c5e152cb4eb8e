"""How fast a file comes from the disk: around the page cache, through it, and mapped; each read cold."""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from firesteel.units import MIB

LoadMode = Literal["direct", "read", "mmap"]
"""direct: past the page cache (O_DIRECT). read: into a buffer, as `--no-mmap` and `eager` loads do. mmap:
page by page as it is touched, as llama.cpp does by default."""
MODES: tuple[LoadMode, ...] = ("direct", "read", "mmap")
_BLOCK = 8 * MIB
_PAGE = 4096


@contextmanager
def temporary_file(folder: Path, size: int) -> Iterator[Path]:
    """A file that does not compress, on the disk of this folder; it has no name, so none can be left over."""
    folder.mkdir(parents=True, exist_ok=True)
    block = os.urandom(MIB)
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(size // MIB):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        yield Path(f"/proc/self/fd/{file.fileno()}")


def read_speed(path: Path, mode: LoadMode, max_bytes: int) -> float | None:
    """Bytes per second; None where the file system has no such mode (tmpfs has no O_DIRECT)."""
    _drop(path)
    size = min(path.stat().st_size, max_bytes) // _BLOCK * _BLOCK
    if not size:
        return None
    try:
        began = time.perf_counter()
        {"direct": _direct, "read": _read, "mmap": _mmap}[mode](path, size)
        return size / (time.perf_counter() - began)
    except OSError:
        return None
    finally:
        _drop(path)


def _drop(path: Path) -> None:
    with path.open("rb") as file, suppress(OSError):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _direct(path: Path, size: int) -> None:
    buffer = mmap.mmap(-1, _BLOCK)  # aligned, as O_DIRECT wants it
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        for _ in range(size // _BLOCK):
            os.readv(descriptor, [buffer])
    finally:
        os.close(descriptor)
        buffer.close()


def _read(path: Path, size: int) -> None:
    buffer = bytearray(_BLOCK)
    with path.open("rb", buffering=0) as file:
        for _ in range(size // _BLOCK):
            file.readinto(buffer)


def _mmap(path: Path, size: int) -> None:
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as view:
        for offset in range(0, size, _PAGE):
            view[offset]
