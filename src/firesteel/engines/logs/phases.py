"""What engines print while they start: how far they are, what they took, and what they complain of.

`log_marks` knows the way, `log_taken` the figures, `diagnosis` the failures; the words themselves are data.
"""

from __future__ import annotations

from collections.abc import Iterable

from firesteel.engines.logs.diagnosis import diagnose
from firesteel.engines.logs.memory import ReportedMemory, reported_memory
from firesteel.engines.logs.progress import start_progress
from firesteel.launch import EngineName

__all__ = ["ReportedMemory", "failure_line", "phase", "reported_memory"]


def phase(engine: EngineName, line: str) -> str | None:
    """What the engine is doing, if this line tells."""
    found = start_progress(engine, line)
    return found.words if found else None


def failure_line(lines: Iterable[str]) -> str | None:
    """The line that says why an engine did not start: a known one, else the first error that is none."""
    found = diagnose("\n".join(lines))
    if found.cause:
        return found.cause.text
    return found.suspect[1] if found.suspect else None
