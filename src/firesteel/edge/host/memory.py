"""The host's memory now: a cheap `sample`, the processes on the GPU, and dropping files from the page cache.

A sample costs less than a millisecond, so a supervisor can take one a second for as long as a model lives.
Only `meminfo` raises when there is nothing to read; everything else returns None.

On a machine without a GPU engines are our own processes, and the limits of our cgroups bind them: they count.
On a machine with one they run in docker's cgroups, and a limit of ours says nothing about them.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable
from functools import cache, partial
from pathlib import Path

from firesteel.edge.host import nvidia_smi
from firesteel.edge.host.kernel_log import KernelLog
from firesteel.edge.host.machine_files import machine_file, sim_folder
from firesteel.edge.host.process import uptime
from firesteel.errors import HostNotReady
from firesteel.facts.host import memory as cgroup
from firesteel.facts.host.hardware import Meminfo, parse_meminfo
from firesteel.facts.host.memory import (
    GpuProcess,
    MemorySample,
    Shm,
    parse_buddyinfo,
    parse_gpu_processes,
    parse_pressure,
    parse_vmstat,
)
from firesteel.values import Value

_APPS = ("--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader")
_CACHESTAT = 451
"""The system call's number, the same on x86-64 and arm64; Linux 6.5 and newer."""


def meminfo() -> Meminfo:
    try:
        return _under_limits(parse_meminfo(machine_file("proc/meminfo").read_text()))
    except (OSError, ValueError) as error:
        raise HostNotReady(
            f"this machine's memory cannot be read: {error}", next="run firesteel on Linux"
        ) from error


def sample(log: KernelLog | None = None, proc: Path | None = None) -> MemorySample:
    """Without a log, kernel events stay unknown. `proc` replaces this machine's `/proc`."""
    folder = proc or machine_file("proc/meminfo").parent
    try:
        memory = parse_meminfo(_text(folder / "meminfo"))
        memory = memory if proc else _under_limits(memory)
    except ValueError:
        memory = None
    return MemorySample(
        at_s=uptime(),
        memory=memory,
        pressure=parse_pressure(_text(folder / "pressure/memory")),
        large_blocks_bytes=parse_buddyinfo(_text(folder / "buddyinfo"), os.sysconf("SC_PAGE_SIZE")),
        stalls=parse_vmstat(_text(folder / "vmstat")),
        kernel=log.new_events() if log else None,
    )


def _under_limits(memory: Meminfo) -> Meminfo:
    if sim_folder() is not None or Path("/proc/driver/nvidia").exists():
        return memory
    return cgroup.limited(memory, cgroup_limits())


def cgroup_limits(root: Path = Path("/")) -> list[cgroup.CgroupMemory]:
    """Of our own cgroup and of those above it. `root` replaces this machine's."""
    levels = (cgroup.cgroup_memory(partial(_cgroup_text, root, folder)) for folder in _cgroups(root))
    return [level for level in levels if level]


def own_oom_kills(root: Path = Path("/")) -> int | None:
    """Processes of our own cgroup that the kernel has killed because memory ran out; None: not counted."""
    folder = next(iter(_cgroups(root)), None)
    return None if folder is None else cgroup.oom_kills(partial(_cgroup_text, root, folder))


def _cgroup_text(root: Path, folder: str, name: str) -> str:
    return _text(root / folder.lstrip("/") / name)


@cache
def _cgroups(root: Path) -> tuple[str, ...]:
    """Read once: a process stays where it is, and a host may have hundreds of mounts."""
    proc = root / "proc/self"
    return cgroup.memory_cgroups(_text(proc / "cgroup"), _text(proc / "mountinfo"))


def _text(path: Path) -> str:
    """Empty when it cannot be read: a kernel without PSI has no `pressure`, a container may hide the rest."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def shm() -> Shm | None:
    try:
        status = os.statvfs(machine_file("dev/shm"))
    except OSError:
        return None
    return Shm(status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize)


def gpu_processes() -> tuple[GpuProcess, ...] | None:
    """The processes that compute on the GPU; None when nvidia-smi is not installed or does not answer."""
    output = nvidia_smi.query(*_APPS)
    return None if output is None else parse_gpu_processes(output)


class Evicted(Value):
    files: int
    bytes: int | None
    """Dropped from the page cache; None: not known (a kernel before 6.5, or another user's file)."""


def evict(paths: Iterable[Path]) -> Evicted:
    """Asks the kernel to drop these files from the page cache. Needs read permission, but not root.

    Pages that are mapped or not yet written to disk stay. Call it only before an engine starts: vLLM stops
    with an error when memory becomes free while it measures. A file with several names counts once.
    """
    seen: set[tuple[int, int]] = set()
    dropped: list[int | None] = []
    for path in paths:
        try:
            # O_NONBLOCK: a pipe among the paths must not block.
            file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            status = os.fstat(file)
            if stat.S_ISREG(status.st_mode) and (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                dropped.append(_drop(file))
        finally:
            os.close(file)
    known = [size for size in dropped if size is not None]
    return Evicted(len(dropped), sum(known) if len(known) == len(dropped) else None)


def _drop(file: int) -> int | None:
    before = _cached_bytes(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    after = _cached_bytes(file)
    return None if before is None or after is None else max(0, before - after)


def _cached_bytes(file: int) -> int | None:
    """How much of an open file is in the page cache."""
    whole_file = (ctypes.c_uint64 * 2)(0, 0)  # offset 0; length 0 means to the end
    counts = (ctypes.c_uint64 * 5)()
    result = ctypes.CDLL(None).syscall(
        ctypes.c_long(_CACHESTAT), ctypes.c_uint(file), whole_file, counts, ctypes.c_uint(0)
    )
    return int(counts[0]) * os.sysconf("SC_PAGE_SIZE") if result == 0 else None
