"""Whether an engine that ended is started again, and when. Pure: how it ended before -> Wait or GiveUp.

    after(ends) -> Wait(seconds, ...) | GiveUp(reason)        `ends`: oldest first, the last one just now

A restart is for an engine that had been serving and fell over. Every failed start of a GB10 leaves a little
memory behind that only a reboot brings back; after about 35 of them both hosts of a pair were lost
(https://github.com/eugr/spark-vllm-docker/issues/257, seen 2026-11-15). So starts are few and further and
further apart, and what will end the same way again is not tried again: a stop by the guard, a stop that
somebody asked for, words that the engine does not understand, a program that is not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from firesteel.units import show_seconds

ExitKind = Literal["died", "stuck", "guard", "told"]
"""died: by itself. stuck: ended by the hang watch. guard: by the memory guard. told: somebody asked."""

PAUSES_S = (10.0, 60.0, 300.0)
"""Before the first, second and third start again; then it is given up. Long enough for memory to settle."""
UNVERIFIED_STARTS = 1
"""Of an engine that never got ready, so many more: it may have met memory that was not back yet."""
GOOD_RUN_S = 1800.0
"""After half an hour of serving, earlier ends are forgotten: they had another cause."""
_FINAL_CODES = {
    2: "the engine refused its words (exit code 2)",
    126: "its program may not be run (exit code 126)",
    127: "its program is not there (exit code 127)",
}


@dataclass(frozen=True, slots=True)
class EngineExit:
    kind: ExitKind
    ran_s: float
    exit_code: int | None = None
    """As subprocess has it: negative for a signal."""
    was_ready: bool = False
    is_fatal: bool = False
    """Its log says what no restart mends: a flag it does not know, weights that are not there."""


@dataclass(frozen=True, slots=True)
class RestartAfter:
    seconds: float
    number: int
    """Of this start, since the last good run: 1, 2, 3."""
    of: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    reason: str


def decide(ends: Sequence[EngineExit]) -> RestartAfter | GiveUp:
    last = ends[-1]
    if reason := _final(last):
        return GiveUp(reason)
    recent = _since_good_run(ends)
    allowed = len(PAUSES_S) if any(end.was_ready for end in recent) else UNVERIFIED_STARTS
    if len(recent) > allowed:
        return GiveUp(_too_often(recent))
    return RestartAfter(PAUSES_S[len(recent) - 1], len(recent), allowed)


def _final(end: EngineExit) -> str | None:
    if end.kind == "told":
        return "it was told to stop"
    if end.kind == "guard":
        return "the memory guard stopped it, and would again"
    if end.is_fatal:
        return "its log names what no restart mends"
    return _FINAL_CODES.get(end.exit_code or 0)


def _since_good_run(ends: Sequence[EngineExit]) -> list[EngineExit]:
    """The ends that count: from the last long good run on, whose own end is the first of them."""
    recent: list[EngineExit] = []
    for end in reversed(ends):
        recent.append(end)
        if end.was_ready and end.ran_s >= GOOD_RUN_S:
            break
    return recent[::-1]


def _too_often(recent: Sequence[EngineExit]) -> str:
    if not any(end.was_ready for end in recent):
        return f"it never got ready in {len(recent)} starts"
    return f"it ended {len(recent)} times, the last time after {show_seconds(recent[-1].ran_s)}"
