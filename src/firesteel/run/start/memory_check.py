"""May a launch start in the memory that is left? Pure.

decide_start(sample, need, ...)      -> StartDecision(refusal, next, warnings)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from firesteel.facts.host.hardware import Meminfo
from firesteel.facts.host.memory import GpuProcess, MemorySample, Shm
from firesteel.planner.advice import down, services_to_stop
from firesteel.run.supervise.guard import MIN_LARGE_BLOCKS_BYTES, NO_KERNEL_LOG
from firesteel.units import GIB, show_bytes
from firesteel.values import Value

_LEFTOVER_BYTES = GIB
"""Swap, shared memory or huge pages above this are reported before a start."""


class LaunchMemory(Value):
    """What a launch takes of this host's memory, according to its plan."""

    peak_bytes: int
    """Peak use of host memory. 0: the engine uses a GPU with memory of its own."""
    keep_free_bytes: int
    floor_bytes: int
    is_unified: bool = False
    """CUDA then sees only MemFree and counts page cache as used."""
    shm_bytes: int | None = None
    """What it will use of the host's `/dev/shm`; None: it has its own, or unknown."""


class StartDecision(Value):
    refusal: str | None = None
    next: str = ""
    """What to type if it is refused."""
    warnings: tuple[str, ...] = ()


def decide_start(
    sample: MemorySample,
    need: LaunchMemory,
    others: Sequence[GpuProcess] | None = None,
    shm: Shm | None = None,
    ours: Mapping[str, int] | None = None,
) -> StartDecision:
    """`others`: processes on the GPU that are not ours; None: not known. `ours`: what our services hold."""
    memory = sample.memory
    if memory is None:
        refusal = "this machine's memory cannot be read, so the memory guard could not work"
        return StartDecision(refusal, "cat /proc/meminfo")
    warnings = (
        *_memory_warnings(memory, need, sample.large_blocks_bytes),
        *_leftovers(memory, shm, need),
        *(_gpu_user_warning(user) for user in others or ()),
        *((NO_KERNEL_LOG,) if sample.kernel is None and need.is_unified else ()),
    )
    if need.peak_bytes > memory.available_bytes - need.floor_bytes:
        refusal = (
            f"it takes {show_bytes(need.peak_bytes)} at its peak; {show_bytes(memory.available_bytes)} are "
            f"available and {show_bytes(need.floor_bytes)} must stay free, or the host hangs"
        )
        short = need.peak_bytes - (memory.available_bytes - need.floor_bytes)
        return StartDecision(refusal, _make_room(short, others or (), ours or {}), warnings)
    return StartDecision(warnings=warnings)


def _make_room(short_bytes: int, others: Sequence[GpuProcess], ours: Mapping[str, int]) -> str:
    """What to stop; only what frees enough. A process whose use is not known may be it."""
    if stopped := services_to_stop(short_bytes, ours):
        return f"{down(stopped, ours)}, then repeat the command"
    largest = max(others, key=lambda user: user.used_bytes or 0, default=None)
    if largest and (largest.used_bytes is None or largest.used_bytes >= short_bytes):
        return f"kill {largest.pid}   # {largest.name}"
    return f"free {show_bytes(short_bytes)} first: ps aux --sort=-rss shows who holds most"


def _gpu_user_warning(user: GpuProcess) -> str:
    holds = f" and holds {show_bytes(user.used_bytes)}" if user.used_bytes is not None else ""
    return f"{user.name} (pid {user.pid}) also uses the GPU{holds}: kill {user.pid}, if it is not needed"


def _memory_warnings(memory: Meminfo, need: LaunchMemory, blocks: int | None) -> Iterator[str]:
    left = memory.available_bytes - need.peak_bytes
    if left < need.keep_free_bytes and need.peak_bytes:
        keep_free = show_bytes(need.keep_free_bytes)
        yield f"it will leave {show_bytes(max(0, left))}, but {keep_free} should stay free"
    if need.is_unified and memory.free_bytes < need.peak_bytes:
        yield (
            f"only {show_bytes(memory.free_bytes)} are free, the rest of the available memory is page cache: "
            "sync; echo 1 | sudo tee /proc/sys/vm/drop_caches"
        )
    if (
        need.is_unified
        and blocks is not None
        and blocks < min(MIN_LARGE_BLOCKS_BYTES, memory.free_bytes // 2)
    ):
        yield (
            f"memory is fragmented, only {show_bytes(blocks)} are free in blocks of 2 MiB or more: "
            "echo 1 | sudo tee /proc/sys/vm/compact_memory"
        )


def _leftovers(memory: Meminfo, shm: Shm | None, need: LaunchMemory) -> Iterator[str]:
    """Memory that other programs left occupied and that an engine could use."""
    if (swapped := memory.swap_used_bytes) and swapped > _LEFTOVER_BYTES:
        yield f"{show_bytes(swapped)} are in swap: sudo swapoff --all && sudo swapon --all"
    if memory.huge_pages_bytes and memory.huge_pages_bytes > _LEFTOVER_BYTES:
        size = show_bytes(memory.huge_pages_bytes)
        yield (f"{size} are reserved as huge pages, which no engine uses: sudo sysctl vm.nr_hugepages=0")
    if shm and shm.used_bytes > _LEFTOVER_BYTES:
        yield f"{show_bytes(shm.used_bytes)} of memory are used by /dev/shm: ls -l /dev/shm"
    if shm and need.shm_bytes and shm.free_bytes < need.shm_bytes:
        yield (
            f"/dev/shm has {show_bytes(shm.free_bytes)} free and {show_bytes(need.shm_bytes)} are needed: "
            f"sudo mount -o remount,size={need.shm_bytes} /dev/shm"
        )
