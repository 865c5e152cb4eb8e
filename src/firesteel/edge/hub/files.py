"""The files of a Hub repository at one commit: listed, moved in threads, compared with their digests.

A listing is checked before any of it becomes a path on this disk. The threads are daemons and check at every
piece whether they are still wanted: Ctrl-C ends a fetch at once, and a process that ends does not wait for
60 GB. Reading those takes a minute or more, so a file that was read is not read again as long as its size,
time of change and inode stay the same, and its first MiB too: formats of weights have their header there, and
storage that fails changes no time. Only reading everything again finds damage further inside.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
import queue
import re
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from firesteel.edge.home import read_json, write_text
from firesteel.errors import FiresteelError, HostNotReady, UsageError
from firesteel.units import MIB, show_bytes, show_seconds
from firesteel.values import Value

_COMMIT = re.compile(r"[0-9a-f]{40}\Z")
_DIGEST = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?\Z")
_REVISION = re.compile(r"[\w][\w./-]{0,200}\Z", re.ASCII)
_MAX_NAME, _MAX_PATH = 255, 1024
"""Bytes. Linux takes 255 in a name and 4096 in a path, of which the store needs some:
https://github.com/torvalds/linux/blob/master/include/uapi/linux/limits.h, seen 2026-11-15"""
_MAX_SHOWN = 80
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Control characters, Unicode line ends, and surrogates, which cannot be part of a file name."""
_NOT_THE_HUB = "check HF_ENDPOINT: the Hub does not answer like this"


class HubFile(Value):
    path: str
    bytes: int
    digest: str
    """sha256 of a large file, git's own sha1 of a small one. Also the name of its blob."""

    def new_hash(self) -> Any:
        """The hash object for its digest; git hashes the length of a small file first."""
        if len(self.digest) == 64:
            return hashlib.sha256()
        return hashlib.sha1(b"blob %d\0" % self.bytes, usedforsecurity=False)


class Listing(Value):
    """What a repository holds at one commit."""

    repository: str
    commit: str
    files: tuple[HubFile, ...]


def is_commit(revision: str) -> bool:
    return bool(_COMMIT.match(revision))


def is_digest(text: str) -> bool:
    return bool(_DIGEST.match(text))


def check_revision(revision: str) -> None:
    if not _REVISION.match(revision) or ".." in revision.split("/"):
        raise UsageError(f"`{revision}` is not a revision", next="--revision main, or a commit")


def check_listing(listing: Listing) -> None:
    """Refuses a listing with a path or digest that leads outside the store or fits on no disk."""
    for file in listing.files:
        if reason := _defect(file):
            raise _unusable(listing, file, reason)
    # With `/` sorted as the lowest character, what lies inside a folder follows right after it.
    for file, after in pairwise(sorted(listing.files, key=lambda file: file.path.replace("/", "\0"))):
        if f"{after.path}/".startswith(f"{file.path}/"):
            raise _unusable(listing, after, "another file has the same path")
    sizes = dict[str, int]()
    for file in listing.files:
        if sizes.setdefault(file.digest, file.bytes) != file.bytes:
            raise _unusable(listing, file, "a file of another size has the same digest")
    if not is_commit(listing.commit):
        raise FiresteelError(f"{listing.repository} names no commit", next=_NOT_THE_HUB)


def _defect(file: HubFile) -> str | None:
    if not {"", ".", ".."}.isdisjoint(file.path.split("/")):
        return "its path leads elsewhere"
    if _CONTROL.search(file.path):
        return "its name has control characters"
    path = file.path.encode()
    if len(path) > _MAX_PATH or max(map(len, path.split(b"/"))) > _MAX_NAME:
        return "its name is too long for a disk"
    if not is_digest(file.digest) or file.bytes < 0:
        return "it has no digest, or no size"
    return None


def _unusable(listing: Listing, file: HubFile, reason: str) -> FiresteelError:
    return FiresteelError(
        f"{listing.repository} lists a file that cannot be stored, {reason}: {file.path[:_MAX_SHOWN]!r}",
        next=_NOT_THE_HUB,
    )


_WORKERS = 4
_PROGRESS_INTERVAL_S = 0.5
_RATE_WINDOW_S = 15.0
T = TypeVar("T")


class TransferProgress(Value):
    """How far a fetch or a check has come."""

    done_bytes: int
    total_bytes: int
    bytes_per_s: float | None = None
    """None: not known yet."""

    def __str__(self) -> str:
        text = f"{show_bytes(self.done_bytes)} of {show_bytes(self.total_bytes)}"
        if not self.bytes_per_s:
            return text
        left_s = (self.total_bytes - self.done_bytes) / self.bytes_per_s
        return f"{text}, {show_bytes(round(self.bytes_per_s))}/s, {show_seconds(left_s)} left"


class TransferStopped(Exception):
    """The transfer was cancelled."""


class TransferCounter:
    """Bytes that several threads have moved."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes, self.stop = total_bytes, threading.Event()
        self._done, self._existing, self._lock = 0, 0, threading.Lock()
        self._history: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])

    def add(self, count: int) -> None:
        if self.stop.is_set():
            raise TransferStopped
        with self._lock:
            self._done += count

    def add_existing(self, count: int) -> None:
        """Bytes that were on disk already: done, but no part of the rate."""
        self.add(count)
        with self._lock:
            self._existing += count

    def progress(self) -> TransferProgress:
        now = time.monotonic()
        with self._lock:
            done, moved = self._done, self._done - self._existing
        self._history.append((now, moved))
        while len(self._history) > 2 and now - self._history[0][0] > _RATE_WINDOW_S:
            self._history.popleft()
        then, moved_then = self._history[0]
        rate = (moved - moved_then) / (now - then) if now > then else 0.0
        return TransferProgress(done, self.total_bytes, rate if rate > 0 else None)


async def run_in_threads(
    jobs: Iterable[T], work: Callable[[T], None], counter: TransferCounter
) -> AsyncGenerator[TransferProgress]:
    """Does `work` for every job in threads that stop with this iterator; raises the first failure."""
    todo: queue.SimpleQueue[T] = queue.SimpleQueue()
    for job in jobs:
        todo.put(job)
    failures: list[Exception] = []
    loop, ended, running = asyncio.get_running_loop(), asyncio.Event(), _WORKERS

    def count_down() -> None:
        nonlocal running
        running -= 1
        if not running:
            ended.set()

    def run_worker() -> None:
        try:
            while not counter.stop.is_set():
                work(todo.get_nowait())
        except (queue.Empty, TransferStopped):
            pass
        except Exception as error:
            failures.append(error)
            counter.stop.set()
        finally:
            with suppress(RuntimeError):  # the loop is closed: the transfer was cancelled
                loop.call_soon_threadsafe(count_down)

    for _ in range(_WORKERS):
        threading.Thread(target=run_worker, daemon=True).start()
    try:
        while not ended.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(_PROGRESS_INTERVAL_S):
                    await ended.wait()
            yield counter.progress()
    finally:
        counter.stop.set()
    if failures:
        raise failures[0]


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
        return tuple(stored for stored in files if stamps.get(_key(stored), "") != _stamp(stored.path))

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


def _stamp(path: Path) -> FileStamp | None:
    """None: it cannot be read."""
    try:
        status = path.stat()
        with path.open("rb", buffering=0) as file:
            head = hashlib.sha256(file.read(_HEAD_BYTES)).hexdigest()
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns, status.st_ino, head]


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
