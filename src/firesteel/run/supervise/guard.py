"""When to start, when to stop, so that the host lives. Pure: samples of memory in, words out.

On unified memory an engine that takes too much does not fail: the host wedges, and somebody pulls the plug.

    may_start(sample, need, ...)   -> Start(refusal, next, warnings)      before
    Watch(limits).after(sample)    -> a Watch; its `stop` says why, if so during load and serving, 1 Hz
    memory_is_back(before, after, held)                                   after a stop

No figure alone tells a calm host from one that is about to stop, and each has cried wolf: MemAvailable stood
at 22.5 GiB while the driver could not allocate; MemFree stood at 1.2 GiB on a host that served well; the
driver's `NV_ERR_NO_MEMORY` came in starts that went well, and at rest. So:

- less available than the floor, twice in a row, or once far below it
- memory falling so fast, faster than the plan foresees, that the danger line is seconds away
- everything waiting for memory (PSI `full`), or swap filling up, while little is available
- the driver out of memory while little is free or what is free is in crumbs: at once
- the kernel killing processes because the host is out of memory: at once

Weights load fast, and that is no collapse: down to what the plan leaves, memory may fall at any speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from firesteel.facts import GpuProcess, KernelEvent, Meminfo, MemorySample, Shm
from firesteel.units import GIB, MIB, show_bytes

HORIZON_S = 5.0
"""The danger line must be further away than that, at the speed of the last two seconds. A host went from 29
to 2.5 GiB in 9 s (https://github.com/vllm-project/vllm/issues/54200, 2026-11-15), 2.9 GiB a second; five
seconds are what it takes to see that twice and to kill a container. The five is our choice."""
STEP_S = 0.9
"""A second, less what a loop once a second may come early."""
DANGER_SHARE = 0.5
"""Of the floor. On a GB10 the floor is about 8 GiB and the danger line about 4. Hosts wedged with 7 and with
6.1 GiB left (https://github.com/vllm-project/vllm/issues/46307,
https://github.com/AEON-7/vllm-ultimate-dgx-spark/issues/9), others rest at 4.9 for days
(https://github.com/NousResearch/hermes-agent/issues/90713); all seen 2026-11-15."""
LOW_SHARE = 2.0
"""Times the floor: below it memory is low, and pressure or swap decide."""
FULL_PRESSURE = 20.0
"""Percent of ten seconds in which nothing ran for want of memory. A tight host that serves well shows 0.00
(hermes-agent 90713, above); systemd-oomd waits for 60 over 30 s, by when a Spark is gone. Our choice."""
SWAP_GROWTH_BYTES, SWAP_WINDOW_S = 512 * MIB, 10.0
"""Hosts froze with 61, 316 and 572 MiB in swap (vllm-ultimate-dgx-spark 9, above): much of it, fast, is late
already. Our choice."""
DRIVER_FREE_BYTES, DRIVER_FREE_SHARE = 10 * GIB, 1 / 12
"""Below so much MemFree, or that share of a smaller host, the driver's word that it is out of memory counts.
Seen with 2.5 GiB free (vllm 54200) and with 8.7 GiB in crumbs
(https://github.com/MiaAI-Lab/DeepSeek-v4.1-Flash-DGX-Sparks/issues/23). With plenty free it came in three
of three good starts, and 55 times in three days of rest (https://github.com/vllm-project/vllm/issues/56824).
All seen 2026-11-15."""
MIN_LARGE_BLOCKS_BYTES = GIB
"""Less than that in blocks of 2 MiB or more: what is free is in crumbs. Four nodes after such a wedge had
nearly none (DeepSeek-v4.1-Flash-DGX-Sparks 23, above)."""
RETURNED_SHARE = 0.5
"""Of what an engine held, how much must be seen to come back: other processes move the same counter."""
_LEFTOVER_BYTES = GIB
"""Swap, shared memory or huge pages beyond this are worth a word before a start."""
_KEPT_S = 15.0

StopKind = Literal["floor", "rate", "pressure", "swap", "driver", "oom"]


@dataclass(frozen=True, slots=True)
class GuardStop:
    kind: StopKind
    why: str
    """With the figures it saw."""
    is_urgent: bool
    """Kill, do not ask: a polite stop may take longer than the host has."""


@dataclass(frozen=True, slots=True)
class GuardLimits:
    floor_bytes: int
    """The engine stops when less is available. 0: no guard by memory."""
    expected_bytes: int = 0
    """What the plan expects the engine to take in all, transients of its loader included."""
    available_bytes: int | None = None
    """What the host had before the start; None: what the first sample shows."""
    driver_lines: int = 1
    """So many lines of the driver, while little is free, stop the engine."""

    @property
    def danger_bytes(self) -> int:
        return round(self.floor_bytes * DANGER_SHARE)


@dataclass(frozen=True, slots=True)
class MemoryWatch:
    """What was seen so far. `after` gives the next one; the first `stop` stays."""

    limits: GuardLimits
    stop: GuardStop | None = None
    notes: tuple[str, ...] = ()
    """What is worth a line in the supervisor's log, once each, and stops nothing."""
    samples: tuple[MemorySample, ...] = ()
    """Of the last seconds, oldest first."""
    driver_lines: int = 0

    def after(self, sample: MemorySample) -> MemoryWatch:
        if self.stop:
            return self
        limits = self.limits
        if limits.available_bytes is None and sample.memory:
            limits = replace(limits, available_bytes=sample.memory.available_bytes)
        recent = tuple(old for old in self.samples if old.at_s > sample.at_s - _KEPT_S)
        lines = self.driver_lines + len(_of("no-memory", sample))
        seen = replace(self, limits=limits, samples=(*recent, sample), driver_lines=lines)
        return replace(seen, stop=_reason(seen), notes=_notes(seen))

    def spared(self) -> MemoryWatch:
        """For a model that serves while another one loads: that one takes the memory, and its own supervisor
        stops it first. Only where hosts stop, and where the kernel kills already, is nobody spared."""
        now = _available(self)[-1]
        if not self.stop or self.stop.kind == "oom" or now is None or now <= self.limits.danger_bytes:
            return self
        return replace(self, stop=None)


def _reason(watch: MemoryWatch) -> GuardStop | None:
    rules = (_killing, _driver, _floor, _rate, _pressure, _swap)
    return next((stop for rule in rules if (stop := rule(watch))), None)


def _of(kind: str, sample: MemorySample) -> list[KernelEvent]:
    return [event for event in sample.kernel or () if event.kind == kind]


def _killing(watch: MemoryWatch) -> GuardStop | None:
    killed = _of("oom", watch.samples[-1])
    if not killed:
        return None
    return _stop("oom", f"the host is out of memory, and its kernel kills: {killed[-1].text}", True)


def _driver(watch: MemoryWatch) -> GuardStop | None:
    sample = watch.samples[-1]
    lines = _of("no-memory", sample)
    if not lines or watch.driver_lines < watch.limits.driver_lines:
        return None
    short = _short_of_free(sample)
    if short is None:
        return None
    times = f" ({watch.driver_lines} times so far)" if watch.driver_lines > 1 else ""
    return _stop("driver", f"the NVIDIA driver could not allocate{times} and {short}: {lines[-1].text}", True)


def _short_of_free(sample: MemorySample) -> str | None:
    """Why the driver is to be believed. What is not known speaks for it: a wedge costs more than a start."""
    memory, blocks = sample.memory, sample.large_blocks_bytes
    if memory is None:
        return "how much is free is not known"
    line = min(DRIVER_FREE_BYTES, round(memory.total_bytes * DRIVER_FREE_SHARE))
    if memory.free_bytes < line:
        return f"only {show_bytes(memory.free_bytes)} are free"
    if blocks is not None and blocks < MIN_LARGE_BLOCKS_BYTES:
        return f"only {show_bytes(blocks)} are free in blocks of 2 MiB or more"
    return None


def _floor(watch: MemoryWatch) -> GuardStop | None:
    """A single low reading may be page cache in motion. Two are not; nor is one far down."""
    floor, danger = watch.limits.floor_bytes, watch.limits.danger_bytes
    now, before = _available(watch)[-1], _available(watch)[-2:-1]
    if now is None or now >= floor:
        return None
    low_before = bool(before) and before[0] is not None and before[0] < floor
    if not low_before and now >= (floor + danger) / 2:
        return None
    words = f"{show_bytes(now)} were left on the host, the floor is {show_bytes(floor)}"
    return _stop("floor", words, now <= danger)


def _rate(watch: MemoryWatch) -> GuardStop | None:
    """By the slower of the last two seconds: one sudden step is an allocation, not a collapse."""
    fall, danger = _fall(watch), watch.limits.danger_bytes
    now = _available(watch)[-1]
    if not danger or fall is None or now is None or now - fall * HORIZON_S >= danger:
        return None
    return _stop(
        "rate",
        f"{show_bytes(now)} were left on the host and {show_bytes(round(fall))} went every second, more than "
        f"planned: {max(0.0, (now - danger) / fall):.1f} s to {show_bytes(danger)}, where hosts stop",
        True,
    )


def _fall(watch: MemoryWatch) -> float | None:
    """Bytes a second beyond the plan, in each of the last two steps at least; None when it was not both."""
    steps = [_step(watch.limits, old, new) for new, old in pairwise(_a_second_apart(watch.samples))]
    known = [fall for fall in steps[:2] if fall is not None and fall > 0]
    return min(known) if len(known) == 2 else None


def _a_second_apart(samples: Sequence[MemorySample]) -> list[MemorySample]:
    """Newest first; a supervisor that looks more often sees no more of a rate."""
    chosen = [samples[-1]]
    for sample in reversed(samples):
        if sample.at_s <= chosen[-1].at_s - STEP_S:
            chosen.append(sample)
    return chosen


def _step(limits: GuardLimits, old: MemorySample, new: MemorySample) -> float | None:
    if old.memory is None or new.memory is None or new.at_s <= old.at_s:
        return None
    top = _planned_end(limits)
    went = min(top, old.memory.available_bytes) - min(top, new.memory.available_bytes)
    return went / (new.at_s - old.at_s)


def _planned_end(limits: GuardLimits) -> int:
    """What is left when the engine has all that the plan gives it: so far memory may fall at any speed.

    The high end of a plan may lie below the floor, where nothing is as planned any more.
    """
    had = limits.available_bytes or 0
    end = had - limits.expected_bytes
    return end if end >= limits.floor_bytes else min(had, round(LOW_SHARE * limits.floor_bytes))


def _pressure(watch: MemoryWatch) -> GuardStop | None:
    waits = [sample.pressure.full_avg10 for sample in watch.samples[-2:] if sample.pressure]
    if len(waits) < 2 or min(waits) < FULL_PRESSURE or not _is_low(watch):
        return None
    words = f"nothing ran for {waits[-1]:.0f} % of the last ten seconds for want of memory, {_left(watch)}"
    return _stop("pressure", words, True)


def _swap(watch: MemoryWatch) -> GuardStop | None:
    since = [s for s in watch.samples if s.at_s >= watch.samples[-1].at_s - SWAP_WINDOW_S]
    used = [s.memory.swap_used_bytes for s in since if s.memory and s.memory.swap_used_bytes is not None]
    if len(used) < 2 or used[-1] - used[0] < SWAP_GROWTH_BYTES or not _is_low(watch):
        return None
    words = f"{show_bytes(used[-1] - used[0])} went to swap within {SWAP_WINDOW_S:.0f} s, {_left(watch)}"
    return _stop("swap", words, False)


def _available(watch: MemoryWatch) -> list[int | None]:
    return [sample.memory.available_bytes if sample.memory else None for sample in watch.samples]


def _is_low(watch: MemoryWatch) -> bool:
    now = _available(watch)[-1]
    return now is not None and now < LOW_SHARE * watch.limits.floor_bytes


def _left(watch: MemoryWatch) -> str:
    return f"and {show_bytes(_available(watch)[-1] or 0)} were left on the host"


def _stop(kind: StopKind, words: str, is_urgent: bool) -> GuardStop:
    return GuardStop(kind, f"the memory guard stopped it: {words}", is_urgent)


def _notes(watch: MemoryWatch) -> tuple[str, ...]:
    """Each kind is said once; a driver that goes on about it does not fill a log."""
    sample, said = watch.samples[-1], watch.notes
    new = []
    if sample.kernel is None:
        new.append(_NO_LOG)
    if sample.memory is None:
        new.append("the host's memory cannot be read: the guard sees nothing")
    if _of("no-memory", sample):
        new.append(
            "the NVIDIA driver logged NV_ERR_NO_MEMORY; with enough memory free that has been harmless"
        )
    new += [f"the GPU reports a fault: {event.text}" for event in _of("xid", sample)[:1]]
    if _of("oom-cgroup", sample):
        new.append("the kernel killed a process of a container that had reached its memory limit")
    heads = {note.partition(":")[0] for note in said}
    return (*said, *(note for note in new if note.partition(":")[0] not in heads))


_NO_LOG = (
    "the kernel's log cannot be read, so the guard does not hear the NVIDIA driver: "
    "sudo usermod -aG adm $USER, then log in again"
)


@dataclass(frozen=True, slots=True)
class LaunchMemory:
    """What a launch takes of this host, by its plan."""

    peak_bytes: int
    """Of the host's memory, at the worst moment. 0: it lives in a GPU's own."""
    keep_free_bytes: int
    floor_bytes: int
    is_unified: bool = False
    """CUDA counts MemFree there, and page cache as used."""
    shm_bytes: int | None = None
    """Shared memory it will use on the host's `/dev/shm`; None: it has its own, or nobody knows."""


@dataclass(frozen=True, slots=True)
class StartDecision:
    refusal: str | None = None
    next: str = ""
    """What to type, when it is refused."""
    warnings: tuple[str, ...] = ()


def decide_start(
    sample: MemorySample,
    need: LaunchMemory,
    others: Sequence[GpuProcess] | None = None,
    shm: Shm | None = None,
) -> StartDecision:
    """`others`: who computes on the GPU and is none of ours; None: not known."""
    memory = sample.memory
    if memory is None:
        words = "this machine's memory cannot be read, so nothing could guard it"
        return StartDecision(words, "cat /proc/meminfo")
    warnings = (
        *_memory_warnings(memory, need, sample.large_blocks_bytes),
        *_leftovers(memory, shm, need),
        *(_user_words(user) for user in others or ()),
        *((_NO_LOG,) if sample.kernel is None and need.is_unified else ()),
    )
    room = memory.available_bytes - need.floor_bytes
    if need.peak_bytes > room:
        refusal = (
            f"it takes {show_bytes(need.peak_bytes)} at its peak; {show_bytes(memory.available_bytes)} are "
            f"available and {show_bytes(need.floor_bytes)} must stay free, or the host stops"
        )
        return StartDecision(refusal, _make_room(others), warnings)
    return StartDecision(warnings=warnings)


def _make_room(others: Sequence[GpuProcess] | None) -> str:
    largest = max(others or (), key=lambda user: user.used_bytes or 0, default=None)
    return f"kill {largest.pid}   # {largest.name}" if largest else "firesteel ps, then firesteel down NAME"


def _user_words(user: GpuProcess) -> str:
    holds = f" and holds {show_bytes(user.used_bytes)}" if user.used_bytes is not None else ""
    return f"{user.name} (pid {user.pid}) uses the GPU too{holds}: kill {user.pid}, if it may go"


def _memory_warnings(memory: Meminfo, need: LaunchMemory, blocks: int | None) -> list[str]:
    found = []
    left = memory.available_bytes - need.peak_bytes
    if left < need.keep_free_bytes and need.peak_bytes:
        kept = show_bytes(need.keep_free_bytes)
        found.append(f"it will leave {show_bytes(max(0, left))}, and {kept} should stay free")
    if need.is_unified and memory.free_bytes < need.peak_bytes:
        found.append(
            f"only {show_bytes(memory.free_bytes)} are free, the rest of what is available is page cache: "
            "sync; echo 1 | sudo tee /proc/sys/vm/drop_caches"
        )
    if (
        need.is_unified
        and blocks is not None
        and blocks < min(MIN_LARGE_BLOCKS_BYTES, memory.free_bytes // 2)
    ):
        found.append(
            f"memory is in crumbs, {show_bytes(blocks)} are free in blocks of 2 MiB or more: "
            "echo 1 | sudo tee /proc/sys/vm/compact_memory"
        )
    return found


def _leftovers(memory: Meminfo, shm: Shm | None, need: LaunchMemory) -> list[str]:
    """What others left lying in memory that an engine will miss."""
    found = []
    if (swapped := memory.swap_used_bytes) and swapped > _LEFTOVER_BYTES:
        found.append(f"{show_bytes(swapped)} are in swap: sudo swapoff --all && sudo swapon --all")
    if memory.huge_pages_bytes and memory.huge_pages_bytes > _LEFTOVER_BYTES:
        size = show_bytes(memory.huge_pages_bytes)
        found.append(f"{size} are set aside as huge pages, used by no engine: sudo sysctl vm.nr_hugepages=0")
    if shm and shm.used_bytes > _LEFTOVER_BYTES:
        found.append(f"{show_bytes(shm.used_bytes)} lie in /dev/shm, which is memory: ls -l /dev/shm")
    if shm and need.shm_bytes and shm.free_bytes < need.shm_bytes:
        found.append(
            f"/dev/shm has {show_bytes(shm.free_bytes)} free and {show_bytes(need.shm_bytes)} are wanted: "
            f"sudo mount -o remount,size={need.shm_bytes} /dev/shm"
        )
    return found


def memory_is_back(before: Meminfo, after: Meminfo, held_bytes: int) -> bool:
    """`before`: when the engine still held it. An engine that is gone may leave 30 GiB for a while, and the
    next start into that makes it worse (https://github.com/MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks/issues/193,
    2026-11-15)."""
    return after.available_bytes >= before.available_bytes + held_bytes * RETURNED_SHARE
