"""Was an engine that ended by SIGKILL killed by the kernel, because memory ran out? Pure.

    OomCounts.of(sample, cgroup_kills)                    before and after
    killed_for_memory(before, after, held, memory)        -> a sentence, or None: something else killed it

The kernel counts such kills, in each cgroup and for the whole machine, also for users who may not read its
log. A log that can be read tells more: what the process held at the end.
"""

from __future__ import annotations

import re

from firesteel.facts.host.hardware import Meminfo
from firesteel.facts.host.memory import MemorySample
from firesteel.units import KIB, show_bytes
from firesteel.values import Value

_KILLED = re.compile(r"Killed process \d+ .*anon-rss:(\d{1,15})kB")


class OomCounts(Value):
    """Processes that the kernel has killed so far; None: not counted."""

    in_cgroup: int | None = None
    on_host: int | None = None
    logged_bytes: int | None = None
    """What the last one held, by the kernel's log."""

    @classmethod
    def of(cls, sample: MemorySample, in_cgroup: int | None) -> OomCounts:
        texts = [event.text for event in sample.kernel or () if event.kind in ("oom", "oom-cgroup")]
        held = [int(found[1]) * KIB for text in texts if (found := _KILLED.search(text))]
        on_host = sample.stalls.oom_kills if sample.stalls else None
        return cls(in_cgroup, on_host, held[-1] if held else None)


def killed_for_memory(
    before: OomCounts,
    after: OomCounts,
    held_bytes: int | None,
    memory: Meminfo | None,
    *,
    is_container: bool = False,
) -> str | None:
    """`held_bytes`: what the engine held when it was last looked at. A container has a cgroup of its own."""
    in_cgroup = _rose(before.in_cgroup, after.in_cgroup)
    if not in_cgroup and after.in_cgroup is not None and not is_container:
        return None  # whoever was killed elsewhere on the host, it was not the engine
    if not in_cgroup and not _rose(before.on_host, after.on_host) and after.logged_bytes is None:
        return None
    held = after.logged_bytes or held_bytes
    what = f"it held {show_bytes(held)}" if held else "what it held is not known"
    if in_cgroup and memory and memory.limit_bytes:
        limit = f"the limit of its cgroup is {show_bytes(memory.limit_bytes)}"
    else:
        limit = f"the host has {show_bytes(memory.total_bytes)}" if memory else "the host was out of memory"
    return f"the kernel killed it because memory ran out: {what}, and {limit}"


def _rose(before: int | None, after: int | None) -> bool:
    return before is not None and after is not None and after > before
