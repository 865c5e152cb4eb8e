"""The memory guard: must an engine stop? Pure: memory samples in, decisions out.

On unified memory an engine that takes too much does not fail: the host hangs, and has to be switched off.

    MemoryWatch(limits).after(sample)    -> the next MemoryWatch; `stop` is the reason   once a second
    memory_is_back(before, after, held)                                                 after a stop

No single figure separates a calm host from one about to hang, and all have raised false alarms: MemAvailable
was 22.5 GiB while the driver could not allocate; MemFree was 1.2 GiB on a host that served well; the driver
logged `NV_ERR_NO_MEMORY` during successful starts and on idle hosts. So the engine is stopped when

- less memory is available than the floor, twice in a row, or once far below it
- memory falls faster than planned, so fast that the danger line is seconds away
- all processes wait for memory (PSI `full`), or swap fills up, while little is available
- the driver is out of memory while little is free or free memory is fragmented: at once
- the kernel kills processes because the host is out of memory: at once

Weights load fast, which is normal: down to what the plan leaves, memory may fall at any speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from firesteel.facts.host.hardware import Meminfo
from firesteel.facts.host.memory import KernelEvent, MemorySample
from firesteel.units import GIB, MIB, show_bytes
from firesteel.values import Value, replace

HORIZON_S = 5.0
"""The engine is stopped if the danger line is nearer than that, at the speed of the last two seconds. A host
went from 29 to 2.5 GiB in 9 s (https://github.com/vllm-project/vllm/issues/54200, 2026-11-15), 2.9 GiB a
second; two samples and the end of a container take about five seconds. The five is our choice."""
STEP_S = 0.9
"""A second, less the jitter of a loop that runs once a second."""
DANGER_SHARE = 0.5
"""The danger line as a share of the floor. On a GB10 the floor is about 8 GiB and the danger line about 4.
Hosts hung with 7 and with 6.1 GiB left (https://github.com/vllm-project/vllm/issues/46307,
https://github.com/AEON-7/vllm-ultimate-dgx-spark/issues/9), others stay at 4.9 for days
(https://github.com/NousResearch/hermes-agent/issues/90713); all seen 2026-11-15."""
LOW_SHARE = 2.0
"""Times the floor. Below it memory is low, so that pressure and swap count."""
FULL_PRESSURE = 20.0
"""Percent of ten seconds in which all processes waited for memory. A tight host that serves well shows 0.00
(hermes-agent 90713, above); systemd-oomd waits for 60 over 30 s, too late for a Spark. Our choice."""
SWAP_GROWTH_BYTES, SWAP_WINDOW_S = 512 * MIB, 10.0
"""Hosts froze with 61, 316 and 572 MiB in swap (vllm-ultimate-dgx-spark 9, above): fast growth is already a
late sign. Our choice."""
DRIVER_FREE_BYTES, DRIVER_FREE_SHARE = 10 * GIB, 1 / 12
"""With less MemFree than that, or than that share of a smaller host, an out-of-memory message of the driver
counts. Seen with 2.5 GiB free (vllm 54200) and with 8.7 GiB free in fragments
(https://github.com/MiaAI-Lab/DeepSeek-v4.1-Flash-DGX-Sparks/issues/23). With plenty free it was logged in
three of three good starts, and 55 times in three idle days
(https://github.com/vllm-project/vllm/issues/56824). All seen 2026-11-15."""
MIN_LARGE_BLOCKS_BYTES = GIB
"""Less than that in blocks of 2 MiB or more: free memory is fragmented. Four nodes after such a hang had
nearly none (DeepSeek-v4.1-Flash-DGX-Sparks 23, above)."""
RETURNED_SHARE = 0.5
"""The share of an engine's memory that has to come back; the rest may go to other processes."""
_HISTORY_S = 15.0

StopKind = Literal["floor", "rate", "pressure", "swap", "driver", "oom"]


class GuardStop(Value):
    kind: StopKind
    why: str
    """With the figures that led to it."""
    is_urgent: bool
    """Kill at once: a graceful stop may take longer than the host has."""


class GuardLimits(Value):
    floor_bytes: int
    """The engine is stopped when less is available. 0: no limit."""
    expected_bytes: int = 0
    """What the plan expects the engine to take in total, including peaks of its loader."""
    available_bytes: int | None = None
    """What was available before the start; None: what the first sample shows."""
    driver_lines: int = 1
    """That many messages of the driver, while little is free, stop the engine."""

    @property
    def danger_bytes(self) -> int:
        return round(self.floor_bytes * DANGER_SHARE)


class MemoryWatch(Value):
    """The samples so far and the decision. `after` returns the next watch; the first `stop` stays."""

    limits: GuardLimits
    stop: GuardStop | None = None
    notes: tuple[str, ...] = ()
    """For the supervisor's log: each kind once; they stop nothing."""
    samples: tuple[MemorySample, ...] = ()
    """Of the last seconds, oldest first."""
    driver_lines: int = 0

    def after(self, sample: MemorySample) -> MemoryWatch:
        if self.stop:
            return self
        limits = self.limits
        if limits.available_bytes is None and sample.memory:
            limits = replace(limits, available_bytes=sample.memory.available_bytes)
        recent = tuple(old for old in self.samples if old.at_s > sample.at_s - _HISTORY_S)
        lines = self.driver_lines + len(_kernel_events("no-memory", sample))
        watch = replace(self, limits=limits, samples=(*recent, sample), driver_lines=lines)
        rules = (_killing, _driver, _floor, _rate, _pressure, _swap)
        stop = next((stop for rule in rules if (stop := rule(watch))), None)
        return replace(watch, stop=stop, notes=_notes(watch))

    def while_another_loads(self) -> MemoryWatch:
        """For a model that serves while another one loads: the other takes the memory, and its own supervisor
        stops it first. Below the danger line, or when the kernel already kills, every engine is stopped."""
        now = _available(self)[-1]
        if not self.stop or self.stop.kind == "oom" or now is None or now <= self.limits.danger_bytes:
            return self
        return replace(self, stop=None)


def _kernel_events(kind: str, sample: MemorySample) -> list[KernelEvent]:
    return [event for event in sample.kernel or () if event.kind == kind]


def _killing(watch: MemoryWatch) -> GuardStop | None:
    killed = _kernel_events("oom", watch.samples[-1])
    if not killed:
        return None
    return _stop("oom", f"the host is out of memory, and its kernel kills processes: {killed[-1].text}", True)


def _driver(watch: MemoryWatch) -> GuardStop | None:
    sample = watch.samples[-1]
    lines = _kernel_events("no-memory", sample)
    if not lines or watch.driver_lines < watch.limits.driver_lines:
        return None
    shortage = _shortage(sample)
    if shortage is None:
        return None
    times = f" ({watch.driver_lines} times so far)" if watch.driver_lines > 1 else ""
    return _stop(
        "driver", f"the NVIDIA driver could not allocate{times} and {shortage}: {lines[-1].text}", True
    )


def _shortage(sample: MemorySample) -> str | None:
    """Why the driver's message is credible. Unknown counts as short: a hung host costs more than a stop."""
    memory, blocks = sample.memory, sample.large_blocks_bytes
    if memory is None:
        return "the free memory is not known"
    if memory.free_bytes < min(DRIVER_FREE_BYTES, round(memory.total_bytes * DRIVER_FREE_SHARE)):
        return f"only {show_bytes(memory.free_bytes)} are free"
    if blocks is not None and blocks < MIN_LARGE_BLOCKS_BYTES:
        return f"only {show_bytes(blocks)} are free in blocks of 2 MiB or more"
    return None


def _floor(watch: MemoryWatch) -> GuardStop | None:
    """A single low sample may be page cache in motion; two, or one far below the floor, are not."""
    floor, danger = watch.limits.floor_bytes, watch.limits.danger_bytes
    now, before = _available(watch)[-1], _available(watch)[-2:-1]
    if now is None or now >= floor:
        return None
    low_before = bool(before) and before[0] is not None and before[0] < floor
    if not low_before and now >= (floor + danger) / 2:
        return None
    why = f"{show_bytes(now)} were left on the host, the floor is {show_bytes(floor)}"
    return _stop("floor", why, now <= danger)


def _rate(watch: MemoryWatch) -> GuardStop | None:
    """By the slower of the last two seconds: one sudden step is a single allocation, not a trend."""
    fall, danger = _fall(watch), watch.limits.danger_bytes
    now = _available(watch)[-1]
    if not danger or fall is None or now is None or now - fall * HORIZON_S >= danger:
        return None
    return _stop(
        "rate",
        f"{show_bytes(now)} were left on the host, falling by {show_bytes(round(fall))} a second, more than "
        f"planned: {max(0.0, (now - danger) / fall):.1f} s to {show_bytes(danger)}, where hosts hang",
        True,
    )


def _fall(watch: MemoryWatch) -> float | None:
    """Bytes per second beyond the plan: the smaller of the last two steps; None unless both fell."""
    steps = [_step(watch.limits, old, new) for new, old in pairwise(_a_second_apart(watch.samples))]
    known = [fall for fall in steps[:2] if fall is not None and fall > 0]
    return min(known) if len(known) == 2 else None


def _a_second_apart(samples: Sequence[MemorySample]) -> list[MemorySample]:
    """Newest first; closer samples would give a noisier rate."""
    chosen = [samples[-1]]
    for sample in reversed(samples):
        if sample.at_s <= chosen[-1].at_s - STEP_S:
            chosen.append(sample)
    return chosen


def _step(limits: GuardLimits, old: MemorySample, new: MemorySample) -> float | None:
    if old.memory is None or new.memory is None or new.at_s <= old.at_s:
        return None
    end = _planned_end(limits)
    fallen = min(end, old.memory.available_bytes) - min(end, new.memory.available_bytes)
    return fallen / (new.at_s - old.at_s)


def _planned_end(limits: GuardLimits) -> int:
    """What is left when the engine has taken all that was planned: down to here memory may fall at any speed.

    The end of a plan may lie below the floor; then a multiple of the floor takes its place.
    """
    had = limits.available_bytes or 0
    end = had - limits.expected_bytes
    return end if end >= limits.floor_bytes else min(had, round(LOW_SHARE * limits.floor_bytes))


def _pressure(watch: MemoryWatch) -> GuardStop | None:
    waits = [sample.pressure.full_avg10 for sample in watch.samples[-2:] if sample.pressure]
    if len(waits) < 2 or min(waits) < FULL_PRESSURE or not _is_low(watch):
        return None
    why = f"all processes waited for memory in {waits[-1]:.0f} % of the last ten seconds, {_left(watch)}"
    return _stop("pressure", why, True)


def _swap(watch: MemoryWatch) -> GuardStop | None:
    since = [s for s in watch.samples if s.at_s >= watch.samples[-1].at_s - SWAP_WINDOW_S]
    used = [s.memory.swap_used_bytes for s in since if s.memory and s.memory.swap_used_bytes is not None]
    if len(used) < 2 or used[-1] - used[0] < SWAP_GROWTH_BYTES or not _is_low(watch):
        return None
    why = f"{show_bytes(used[-1] - used[0])} went to swap within {SWAP_WINDOW_S:.0f} s, {_left(watch)}"
    return _stop("swap", why, False)


def _available(watch: MemoryWatch) -> list[int | None]:
    return [sample.memory.available_bytes if sample.memory else None for sample in watch.samples]


def _is_low(watch: MemoryWatch) -> bool:
    now = _available(watch)[-1]
    return now is not None and now < LOW_SHARE * watch.limits.floor_bytes


def _left(watch: MemoryWatch) -> str:
    return f"and {show_bytes(_available(watch)[-1] or 0)} were left on the host"


def _stop(kind: StopKind, why: str, is_urgent: bool) -> GuardStop:
    return GuardStop(kind, f"the memory guard stopped it: {why}", is_urgent)


def _notes(watch: MemoryWatch) -> tuple[str, ...]:
    """Each kind appears once, so that a driver that repeats itself does not fill the log."""
    sample, old = watch.samples[-1], watch.notes
    new = []
    if sample.kernel is None:
        new.append(NO_KERNEL_LOG)
    if sample.memory is None:
        new.append("the host's memory cannot be read, so the guard cannot work")
    if _kernel_events("no-memory", sample):
        new.append("the NVIDIA driver logged NV_ERR_NO_MEMORY; with enough free memory that is harmless")
    new += [f"the GPU reports a fault: {event.text}" for event in _kernel_events("xid", sample)[:1]]
    if _kernel_events("oom-cgroup", sample):
        new.append("the kernel killed a process of a container that had reached its memory limit")
    heads = {note.partition(":")[0] for note in old}
    return (*old, *(note for note in new if note.partition(":")[0] not in heads))


NO_KERNEL_LOG = (
    "the kernel's log cannot be read, so the guard misses messages of the NVIDIA driver: "
    "sudo usermod -aG adm $USER, then log in again"
)


def memory_is_back(before: Meminfo, after: Meminfo, held_bytes: int) -> bool:
    """`before`: while the engine held it. Its memory may stay occupied for a while after it has gone.

    30 GiB were seen, and a new start in that time makes it worse
    (https://github.com/MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks/issues/193, 2026-11-15).
    """
    return after.available_bytes >= before.available_bytes + held_bytes * RETURNED_SHARE
