"""One sample of a host's memory: everything that distinguishes a healthy host from one about to stop.

No single figure does. MemAvailable was 22.5 GiB while the driver could not allocate; MemFree was 1.2 GiB on a
host that served well; the driver logs that it is out of memory on healthy hosts too. So a sample holds all of
them, and `run/supervise/guard.py` judges them together.

Text in, values out. What a kernel does not report is None, and no text makes a parser raise.

    https://github.com/vllm-project/vllm/issues/54200                                   seen 2026-11-15
    https://github.com/MiaAI-Lab/Qwen3.8-Flash-Next-Single-DGX-Spark/pull/54            seen 2026-11-15
    https://github.com/vllm-project/vllm/issues/56824                                   seen 2026-11-15
"""

from __future__ import annotations

import re
from typing import Literal

from firesteel.facts.host.host import Meminfo, smi_bytes
from firesteel.units import MIB
from firesteel.values import Value

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


class StallCounters(Value):
    """Counted since boot."""

    direct_reclaims: int
    """Allocations for which a program had to free memory first."""
    compactions: int
    """Allocations for which a program had to wait for compaction."""
    oom_kills: int


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
    stalls: StallCounters | None = None
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


def parse_vmstat(text: str) -> StallCounters | None:
    """`/proc/vmstat`. Kernels count direct reclaim once per zone."""
    counters = {name: int(value) for name, value in re.findall(r"^(\w+) (\d{1,20})$", text, re.M)}
    reclaims = [value for name, value in counters.items() if name.startswith("allocstall")]
    if not reclaims or "oom_kill" not in counters:
        return None
    return StallCounters(sum(reclaims), counters.get("compact_stall", 0), counters["oom_kill"])


def parse_kernel_log(text: str) -> tuple[KernelEvent, ...]:
    """Lines of `/dev/kmsg`, `dmesg` or `journalctl --dmesg` -> the events that matter to the guard."""
    return tuple(event for line in text.splitlines() if (event := _event(line)))


def _event(line: str) -> KernelEvent | None:
    message = _RECORD.sub("", line[: 4 * _MAX_LINE], count=1)
    kind = next((kind for kind, pattern in _EVENTS if pattern.search(message)), None)
    return KernelEvent(kind, message.strip()[:_MAX_LINE]) if kind else None


def parse_gpu_processes(text: str) -> tuple[GpuProcess, ...]:
    """`nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv,noheader`.

    A name may contain commas; other lines are messages of nvidia-smi.
    """
    rows = re.findall(r"^ *(\d{1,10}), *(.*?), *([^,]*)$", text, re.M)
    return tuple(GpuProcess(int(pid), name, smi_bytes(used)) for pid, name, used in rows)
