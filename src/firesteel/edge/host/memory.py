"""The host's memory now: a cheap `sample`, the processes on the GPU, and dropping files from the page cache.

A sample costs less than a millisecond, so a supervisor can take one a second for as long as a model lives.
Only `meminfo` raises when there is nothing to read; everything else returns None. `KernelLog` gives a sample
what the kernel has logged since the last one.

On a machine without a GPU engines are our own processes, and the limits of our cgroups bind them: they count.
On a machine with one they run in docker's cgroups, and our own limit says nothing about them.
"""

from __future__ import annotations

import ctypes
import os
import stat
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

from firesteel.edge.host import nvidia_smi
from firesteel.edge.host.machine_files import machine_file, sim_folder
from firesteel.edge.host.process import die_with_parent, uptime
from firesteel.errors import HostNotReady
from firesteel.facts.host import memory as facts
from firesteel.facts.host.hardware import Meminfo
from firesteel.facts.host.memory import GpuProcess, KernelEvent, MemorySample, Shm
from firesteel.values import Value

_APPS = ("--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader")
_CACHESTAT = 451
"""The system call's number, the same on x86-64 and arm64; Linux 6.5 and newer."""


def meminfo() -> Meminfo:
    try:
        return _under_limits(Meminfo.parse(machine_file("proc/meminfo").read_text()))
    except (OSError, ValueError) as error:
        raise HostNotReady(
            f"this machine's memory cannot be read: {error}", next="run firesteel on Linux"
        ) from error


def sample(log: KernelLog | None = None, proc: Path | None = None) -> MemorySample:
    """Without a log, kernel events stay unknown. `proc` replaces this machine's `/proc`."""
    folder = proc or machine_file("proc/meminfo").parent
    try:
        memory = Meminfo.parse(_text(folder / "meminfo"))
        memory = memory if proc else _under_limits(memory)
    except ValueError:
        memory = None
    return MemorySample(
        at_s=uptime(),
        memory=memory,
        pressure=facts.parse_pressure(_text(folder / "pressure/memory")),
        large_blocks_bytes=facts.parse_buddyinfo(_text(folder / "buddyinfo"), os.sysconf("SC_PAGE_SIZE")),
        oom_kills=facts.parse_oom_kills(_text(folder / "vmstat")),
        kernel=log.new_events() if log else None,
    )


def _under_limits(memory: Meminfo) -> Meminfo:
    if sim_folder() is not None or Path("/proc/driver/nvidia").exists():
        return memory
    return facts.limited(memory, cgroup_limits())


def cgroup_limits(root: Path = Path("/")) -> list[facts.CgroupMemory]:
    """Of our own cgroup and of those above it. `root` replaces this machine's."""
    levels = (facts.cgroup_memory(partial(_cgroup_text, root, folder)) for folder in _cgroups(root))
    return [level for level in levels if level]


def own_oom_kills(root: Path = Path("/")) -> int | None:
    """Processes of our own cgroup that the kernel has killed because memory ran out; None: not counted."""
    folder = next(iter(_cgroups(root)), None)
    return None if folder is None else facts.oom_kills(partial(_cgroup_text, root, folder))


def _cgroup_text(root: Path, folder: str, name: str) -> str:
    return _text(root / folder.lstrip("/") / name)


@cache
def _cgroups(root: Path) -> tuple[str, ...]:
    """Read once: a process stays where it is, and a host may have hundreds of mounts."""
    proc = root / "proc/self"
    return facts.memory_cgroups(_text(proc / "cgroup"), _text(proc / "mountinfo"))


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
    return None if output is None else facts.parse_gpu_processes(output)


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


_MAX_RECORDS = 2000
"""Read at once. A driver in distress logs hundreds a second; the rest is read the next time."""
_RECORD_BYTES = 8192
_JOURNAL = ("journalctl", "--dmesg", "--quiet", "--no-pager", "--output=cat")
_JOURNAL_TIMEOUT_S = 5


class KernelLog:
    """Follows the kernel's log from the moment of opening; earlier records are skipped.

    Root can read `/dev/kmsg`, and so can every user of a kernel without `dmesg_restrict`. Members of `adm`
    and `systemd-journal`, like the first user of a DGX Spark, can read the journal instead. Otherwise there
    is no log: `None`, never an empty one.
    """

    def __init__(self) -> None:
        self._journal: subprocess.Popen[bytes] | None = None
        self._incomplete = b""
        self._source = self._open_kmsg()
        if self._source is None and sim_folder() is None:
            self._source = self._open_journal()

    def new_events(self) -> tuple[KernelEvent, ...] | None:
        """Events since the last call; None when the log cannot be read. Never waits."""
        if self._source is None:
            return None
        data = self._incomplete + b"".join(self._records(self._source))
        lines, newline, self._incomplete = data.rpartition(b"\n")
        return facts.parse_kernel_log((lines + newline).decode(errors="replace"))

    def close(self) -> None:
        if self._source is not None:
            os.close(self._source)
            self._source = None
        if self._journal is not None:
            self._journal.kill()
            self._journal.wait()
            self._journal = None

    def _records(self, source: int) -> list[bytes]:
        records: list[bytes] = []
        for _ in range(_MAX_RECORDS):
            try:
                record = os.read(source, _RECORD_BYTES)
            except BrokenPipeError:
                continue  # records were overwritten before they were read; later ones can be
            except OSError:
                break  # nothing more for now
            if not record:
                break
            records.append(record)
        return records

    def _open_kmsg(self) -> int | None:
        source = None
        try:
            source = os.open(machine_file("dev/kmsg"), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(source, 0, os.SEEK_END)
        except OSError:
            if source is not None:
                os.close(source)
            return None
        return source

    def _open_journal(self) -> int | None:
        """A user without permission sees an empty journal, and no kernel boots without logging a line."""
        try:
            last = subprocess.run(
                [*_JOURNAL, "--lines=1"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=_JOURNAL_TIMEOUT_S,
                check=False,
            )
            if not last.stdout.strip():
                return None
            self._journal = subprocess.Popen(
                [*_JOURNAL, "--lines=0", "--follow"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                preexec_fn=die_with_parent,
            )
            assert self._journal.stdout is not None
            # Our own descriptor, since Popen's file object would block and buffer.
            source = os.dup(self._journal.stdout.fileno())
        except (OSError, subprocess.TimeoutExpired):
            return None
        self._journal.stdout.close()
        os.set_blocking(source, False)
        return source

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()
