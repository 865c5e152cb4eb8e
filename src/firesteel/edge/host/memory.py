"""The host's memory right now: one cheap look (`sample`), who is on the GPU, and giving page cache back.

A look costs less than a millisecond, so a keeper may take one a second for as long as a model lives.
Only `meminfo` raises when there is nothing to read; everything else says None.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from firesteel.edge.host import nvidia_smi
from firesteel.edge.host.kernel_log import KernelLog
from firesteel.edge.host.machine_files import machine_file
from firesteel.edge.host.process import uptime
from firesteel.errors import HostNotReady
from firesteel.facts import Meminfo, parse_meminfo
from firesteel.facts.host.memory_sample import (
    GpuProcess,
    MemorySample,
    Shm,
    parse_buddyinfo,
    parse_gpu_users,
    parse_pressure,
    parse_vmstat,
)

_APPS = ("--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader")
_CACHESTAT = 451
"""The system call's number, the same on x86-64 and arm64; Linux 6.5 and newer."""


def meminfo() -> Meminfo:
    try:
        return parse_meminfo(machine_file("proc/meminfo").read_text())
    except (OSError, ValueError) as error:
        raise HostNotReady(
            f"this machine's memory cannot be read: {error}", next="run firesteel on Linux"
        ) from error


def sample(log: KernelLog | None = None, proc: Path | None = None) -> MemorySample:
    """Without a log, what the kernel says stays unknown. `proc` stands in for this machine's `/proc`."""
    folder = proc or machine_file("proc/meminfo").parent
    return MemorySample(
        at_s=uptime(),
        memory=_meminfo_in(folder),
        pressure=parse_pressure(_text(folder / "pressure/memory")),
        large_blocks_bytes=parse_buddyinfo(_text(folder / "buddyinfo"), os.sysconf("SC_PAGE_SIZE")),
        stalls=parse_vmstat(_text(folder / "vmstat")),
        kernel=log.news() if log else None,
    )


def _meminfo_in(folder: Path) -> Meminfo | None:
    try:
        return parse_meminfo(_text(folder / "meminfo"))
    except ValueError:
        return None


def _text(path: Path) -> str:
    """Empty when it cannot be read: a kernel without PSI has no `pressure`, a container may hide the rest."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def shm() -> Shm | None:
    try:
        found = os.statvfs(machine_file("dev/shm"))
    except OSError:
        return None
    return Shm(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)


def gpu_processes() -> tuple[GpuProcess, ...] | None:
    """Who computes on the GPU; None when nvidia-smi is not there or does not answer."""
    said = nvidia_smi.query(*_APPS)
    return None if said is None else parse_gpu_users(said)


@dataclass(frozen=True, slots=True)
class Evicted:
    files: int
    bytes: int | None
    """That left the page cache; None: the kernel does not say (older than 6.5, or another user's file)."""


def evict(paths: Iterable[Path]) -> Evicted:
    """Asks the kernel to drop these files from the page cache. Needs to be able to read them, and no root.

    Pages that are mapped or not yet written to the disk stay. Only before an engine starts: vLLM stops with
    an error when memory comes free while it measures. A file with several names counts once.
    """
    seen: set[tuple[int, int]] = set()
    left: list[int | None] = []
    for path in paths:
        try:
            file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            about = os.fstat(file)
            if stat.S_ISREG(about.st_mode) and (about.st_dev, about.st_ino) not in seen:
                seen.add((about.st_dev, about.st_ino))
                left.append(_drop(file))
        finally:
            os.close(file)
    known = [each for each in left if each is not None]
    return Evicted(len(left), sum(known) if len(known) == len(left) else None)


def _drop(file: int) -> int | None:
    before = _cached_bytes(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    after = _cached_bytes(file)
    return None if before is None or after is None else max(0, before - after)


def _cached_bytes(file: int) -> int | None:
    """Of an open file, what the page cache holds."""
    whole = (ctypes.c_uint64 * 2)(0, 0)  # from the start, to the end
    told = (ctypes.c_uint64 * 5)()
    done = ctypes.CDLL(None).syscall(
        ctypes.c_long(_CACHESTAT), ctypes.c_uint(file), whole, told, ctypes.c_uint(0)
    )
    return int(told[0]) * os.sysconf("SC_PAGE_SIZE") if done == 0 else None
