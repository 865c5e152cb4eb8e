"""Samples of a host's memory, and the limits that cgroups set on it. Pure.

No single figure does. MemAvailable was 22.5 GiB while the driver could not allocate; MemFree was 1.2 GiB on a
host that served well; the driver logs that it is out of memory on healthy hosts too. So a sample holds all of
them, and `run/supervise/guard.py` judges them together.

What a kernel does not report is None, and no text makes a parser raise.

    https://github.com/vllm-project/vllm/issues/54200                                   seen 2026-11-15
    https://github.com/MiaAI-Lab/Qwen3.8-Flash-Next-Single-DGX-Spark/pull/54            seen 2026-11-15
    https://github.com/vllm-project/vllm/issues/56824                                   seen 2026-11-15

Containers, systemd units and batch systems limit memory by cgroups, version 1 or 2. `/proc/meminfo` shows the
whole machine even to a process that may use only a part of it. The limits of its own cgroup and of every one
above apply. `/proc/self/cgroup` names its own by the kernel's path, and `/proc/self/mountinfo` shows
which part of that tree is mounted where: a container often sees only its own.

    https://docs.kernel.org/admin-guide/cgroup-v2.html, cgroup-v1/memory.html      seen 2026-11-15
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import PurePosixPath
from typing import Literal

from firesteel.facts.host.hardware import Meminfo, smi_bytes
from firesteel.launch import EngineName
from firesteel.units import MIB
from firesteel.values import Value, replace

LARGE_BLOCK_BYTES = 2 * MIB
"""What the driver needs in one piece: the page cache of a checkpoint once left no free block of that size,
and loading failed. https://github.com/tonyd2wild/GLM-5.3-Flash-NVFP4-DFlash2-2x-DGX-Spark/pull/19,
2026-11-15"""

EventKind = Literal["no-memory", "xid", "oom", "oom-cgroup"]
"""no-memory: the NVIDIA driver could not allocate. xid: it reports a GPU fault. oom: the kernel killed
a process because the host was out of memory; oom-cgroup: because a container was."""
_EVENTS: tuple[tuple[EventKind, re.Pattern[str]], ...] = (
    ("no-memory", re.compile(r"NVRM: .*NV_ERR_NO_MEMORY")),
    ("xid", re.compile(r"NVRM: Xid \(")),
    ("oom-cgroup", re.compile(r"oom-kill:constraint=CONSTRAINT_MEMCG|Memory cgroup out of memory")),
    ("oom", re.compile(r"oom-kill:constraint=|Out of memory: Killed process")),
)
_MAX_LINE = 300
_RECORD = re.compile(r"\d+,\d+,\d+,[^;]*;")
"""The beginning of a `/dev/kmsg` record: level, number, microseconds, flags."""


class Pressure(Value):
    """The percentage of the last ten seconds in which some or all tasks waited for memory."""

    some_avg10: float
    full_avg10: float


class KernelEvent(Value):
    kind: EventKind
    text: str


class MemorySample(Value):
    at_s: float
    """On a monotonic clock."""
    memory: Meminfo | None
    pressure: Pressure | None = None
    large_blocks_bytes: int | None = None
    """Free memory in blocks of 2 MiB or more."""
    oom_kills: int | None = None
    """By the kernel, since boot."""
    kernel: tuple[KernelEvent, ...] | None = None
    """What the kernel logged since the previous sample; None: its log cannot be read."""


class GpuProcess(Value):
    pid: int
    name: str
    used_bytes: int | None = None
    """None where the driver does not report it (`[N/A]`)."""


class Shm(Value):
    """`/dev/shm`: shared memory, which takes up memory."""

    total_bytes: int
    free_bytes: int

    @property
    def used_bytes(self) -> int:
        return max(0, self.total_bytes - self.free_bytes)


def parse_pressure(text: str) -> Pressure | None:
    """`/proc/pressure/memory`."""
    averages = dict(re.findall(r"^(some|full) avg10=(\d{1,3}\.\d{1,6})\b", text, re.M))
    return Pressure(float(averages["some"]), float(averages["full"])) if len(averages) == 2 else None


def parse_buddyinfo(text: str, page_bytes: int = 4096) -> int | None:
    """`/proc/buddyinfo` -> bytes free in large blocks. Column n counts the free blocks of 2^n pages.

    Kernels with pages of 64 KiB reach 2 MiB at a smaller order, so the page size is a parameter.
    """
    zones = re.findall(r"^Node +\d+, zone +\w+((?: +\d{1,15})+) *$", text, re.M)
    if not zones:
        return None
    sizes = [page_bytes << order for order in range(64)]
    return sum(
        int(count) * size
        for zone in zones
        for count, size in zip(zone.split(), sizes, strict=False)
        if size >= LARGE_BLOCK_BYTES
    )


def parse_oom_kills(text: str) -> int | None:
    """`/proc/vmstat`."""
    found = re.search(r"^oom_kill (\d{1,20})$", text, re.M)
    return int(found[1]) if found else None


def parse_kernel_log(text: str) -> tuple[KernelEvent, ...]:
    """Lines of `/dev/kmsg`, `dmesg` or `journalctl --dmesg` -> the events that matter to the guard."""
    events = []
    for line in text.splitlines():
        message = _RECORD.sub("", line[: 4 * _MAX_LINE], count=1)
        kind = next((kind for kind, pattern in _EVENTS if pattern.search(message)), None)
        if kind:
            events.append(KernelEvent(kind, message.strip()[:_MAX_LINE]))
    return tuple(events)


def parse_gpu_processes(text: str) -> tuple[GpuProcess, ...]:
    """`nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv,noheader`.

    A name may contain commas; other lines are messages of nvidia-smi.
    """
    rows = re.findall(r"^ *(\d{1,10}), *(.*?), *([^,]*)$", text, re.M)
    return tuple(GpuProcess(int(pid), name, smi_bytes(used)) for pid, name, used in rows)


ReadText = Callable[[str], str]
"""The text of a file in a cgroup's folder; empty: there is none."""
_NO_LIMIT = 2**60
"""Version 1 writes a number near 2^63 where there is no limit."""


class CgroupMemory(Value):
    limit_bytes: int
    used_bytes: int
    cache_bytes: int = 0
    """The part of it that is page cache, which the kernel drops when it needs memory."""

    @property
    def available_bytes(self) -> int:
        return max(0, self.limit_bytes - self.used_bytes + self.cache_bytes)


def memory_cgroups(cgroup: str, mountinfo: str) -> tuple[str, ...]:
    """`/proc/self/cgroup` and `/proc/self/mountinfo` -> its folders, its own first, then those above it."""
    own: dict[bool, str] = {}  # is version 2 -> its path
    for number, controllers, path in re.findall(r"^(\d+):([^:\n]*):(/.*)$", cgroup, re.M):
        if number == "0" and not controllers:
            own[True] = path
        elif "memory" in controllers.split(","):
            own[False] = path
    folders: list[str] = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, (kind, *options) = before.split(" "), (after or " ").split(" ")
        is_v1 = kind == "cgroup" and "memory" in options[-1].split(",")
        path = own.get(kind == "cgroup2") if is_v1 or kind == "cgroup2" else None
        if path is not None and len(fields) > 4:
            folders += _upwards(path, root=fields[3], mount=fields[4])
    return tuple(dict.fromkeys(folders))


def _upwards(path: str, root: str, mount: str) -> list[str]:
    """The folder of a path in a tree whose part `root` is mounted at `mount`, and those above it."""
    try:
        inside = PurePosixPath(path).relative_to(root)
    except ValueError:  # another part of the tree is mounted: what is at the mount is all that can be seen
        inside = PurePosixPath()
    if ".." in inside.parts:  # a namespace shows what is above its own root like that
        inside = PurePosixPath()
    folder = PurePosixPath(mount) / inside
    return [str(each) for each in (folder, *folder.parents) if each.is_relative_to(mount)]


def cgroup_memory(read: ReadText) -> CgroupMemory | None:
    """The limit of one cgroup; None: it has none. `memory.high` slows down what exceeds it, to a crawl."""
    limits = [
        int(text)
        for name in ("memory.max", "memory.high", "memory.limit_in_bytes")
        if (text := read(name).strip()).isdigit() and int(text) < _NO_LIMIT
    ]
    used = (read("memory.current") or read("memory.usage_in_bytes")).strip()
    if not limits or not used.isdigit():
        return None
    stat = {name: int(value) for name, value in re.findall(r"^(\w+) (\d{1,20})$", read("memory.stat"), re.M)}
    # In version 1 only the fields with `total_` count the cgroups below it.
    cache = sum(stat.get(f"total_{name}", stat.get(name, 0)) for name in ("active_file", "inactive_file"))
    return CgroupMemory(min(limits), int(used), min(cache, int(used)))


def oom_kills(read: ReadText) -> int | None:
    """How many processes of a cgroup the kernel has killed because memory ran out; None: not counted."""
    found = re.search(r"^oom_kill (\d{1,15})$", read("memory.events") or read("memory.oom_control"), re.M)
    return int(found[1]) if found else None


def limited(memory: Meminfo, cgroups: Iterable[CgroupMemory]) -> Meminfo:
    """The memory that is left to a process under these limits."""
    for cgroup in cgroups:
        if cgroup.limit_bytes < memory.total_bytes:
            memory = replace(memory, total_bytes=cgroup.limit_bytes, limit_bytes=cgroup.limit_bytes)
        memory = replace(
            memory,
            available_bytes=min(memory.available_bytes, cgroup.available_bytes),
            free_bytes=min(memory.free_bytes, max(0, cgroup.limit_bytes - cgroup.used_bytes)),
        )
    return memory


class MeasuredMemory(Value):
    """What one start took; None: not known. Field names are keys of the file that records it."""

    key: str
    """`launch_key` of the launch that was started: see `planner.memory.measured`."""
    engine: EngineName
    version: str | None
    process_bytes: int
    """All that its processes hold, on one Spark, once it serves."""
    seen: str
    """The date."""
    weights_bytes: int | None = None
    kv_bytes: int | None = None
    kv_tokens: int | None = None
    checkpoint_bytes: int | None = None
    """The size of the whole checkpoint in its plan: another size now is another file."""
    planned_kv_bytes: int | None = None
    """What its plan gave the KV cache."""
