"""What follows when an engine has ended: was it killed because memory ran out, and is it restarted? Pure.

    killed_for_memory(before, after, held, memory)        -> a sentence, or None: something else killed it
    decide(exits)      `exits`: oldest first, the last one just now -> RestartAfter or GiveUp

Restarts are for engines that were serving and crashed. Every failed start on a GB10 leaks a little memory
that only a reboot brings back; after about 35 of them both hosts of a pair were lost
(https://github.com/eugr/spark-vllm-docker/issues/257, seen 2026-11-15). So restarts are few, with growing
pauses, and there is none where the next start would end in the same way: after a stop by the guard, a
requested stop, arguments that the engine does not understand, a missing program.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from firesteel.facts.host.hardware import Meminfo
from firesteel.facts.host.memory import MemorySample
from firesteel.run.service import STOP_REQUESTED
from firesteel.units import KIB, show_bytes, show_seconds
from firesteel.values import Value

ExitKind = Literal["died", "stuck", "guard", "requested"]
"""died: by itself. stuck: killed after a hang. guard: stopped by the guard. requested: stopped by a user."""

PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
"""Before the first restart, the second and so on; there is no eighth."""
CONTAINER_PAUSES_S = (10.0, 30.0, 60.0)
"""Of an engine in a container: a GPU driver frees its memory over seconds, and a failed start leaks some."""
UNVERIFIED_STARTS = 1
"""Restarts of an engine that was never ready: the memory of the last one may not have been free yet."""
GOOD_RUN_S = 1800.0
"""After half an hour of serving, earlier exits no longer count: they had another cause."""
AGAIN_CODE = 75
"""EX_TEMPFAIL of sysexits.h. The runner of a cluster asks to be started again when nodes are back that its
fallback stood in for: nothing failed, and it is not counted."""
_FINAL_CODES = {
    2: "the engine refused its arguments (exit code 2)",
    126: "its program is not executable (exit code 126)",
    127: "its program was not found (exit code 127)",
}


class EngineExit(Value):
    kind: ExitKind
    ran_s: float
    exit_code: int | None = None
    """As in `subprocess`: negative for a signal."""
    was_ready: bool = False
    is_fatal: bool = False
    """A restart cannot help: its answers are wrong, a flag is unknown, weights are missing."""


class RestartAfter(Value):
    seconds: float
    number: int
    """Of this restart since the last good run: 1, 2, 3."""
    of: int


class GiveUp(Value):
    reason: str


def decide(
    exits: Sequence[EngineExit], *, is_container: bool = False, is_cluster: bool = False
) -> RestartAfter | GiveUp:
    if is_cluster:
        if _asks_again(exits[-1]):
            return RestartAfter((CONTAINER_PAUSES_S if is_container else PAUSES_S)[0], 1, 1)
        exits = [exit_ for exit_ in exits if not _asks_again(exit_)]
    if reason := _final(exits[-1]):
        return GiveUp(reason)
    recent = _since_good_run(exits)
    was_ready = any(exit_.was_ready for exit_ in recent)
    pauses_s = CONTAINER_PAUSES_S if is_container else PAUSES_S
    allowed = len(pauses_s) if was_ready else UNVERIFIED_STARTS
    if len(recent) <= allowed:
        return RestartAfter(pauses_s[len(recent) - 1], len(recent), allowed)
    if was_ready:
        ran = show_seconds(recent[-1].ran_s)
        return GiveUp(f"it ended {len(recent)} times, the last time after {ran}")
    return GiveUp(f"it was never ready in {len(recent)} starts")


def _asks_again(last: EngineExit) -> bool:
    return last.kind == "died" and last.exit_code == AGAIN_CODE


def _final(last: EngineExit) -> str | None:
    if last.kind == "requested":
        return STOP_REQUESTED
    if last.kind == "guard":
        return "the memory guard stopped it, and would do so again"
    if last.is_fatal:
        return "a restart cannot help"
    return _FINAL_CODES.get(last.exit_code or 0)


def _since_good_run(exits: Sequence[EngineExit]) -> list[EngineExit]:
    """The exits from the one that ended the last long good run on."""
    recent: list[EngineExit] = []
    for exit_ in reversed(exits):
        recent.append(exit_)
        if exit_.was_ready and exit_.ran_s >= GOOD_RUN_S:
            break
    return recent[::-1]


# --- killed by the kernel? ---

# The kernel counts such kills, in each cgroup and for the whole machine, also for users who may not read its
# log. A log that can be read tells more: what the process held at the end.
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
        return cls(in_cgroup, sample.oom_kills, held[-1] if held else None)


def killed_for_memory(
    before: OomCounts,
    after: OomCounts,
    held_bytes: int | None,
    memory: Meminfo | None,
    *,
    is_container: bool = False,
) -> str | None:
    """`held_bytes`: what the engine held when it was last looked at. A container has its own cgroup."""
    in_cgroup = _rose(before.in_cgroup, after.in_cgroup)
    if not in_cgroup and after.in_cgroup is not None and not is_container:
        return None  # the process that was killed was not the engine
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
