"""What engines print while they start: how far they are, what they took, and what they complain of.

`log_marks` knows the way, `log_taken` the figures, `diagnosis` the failures; the words themselves are data.
"""

from __future__ import annotations

from collections.abc import Iterable

from firesteel.engines.diagnosis import diagnose
from firesteel.engines.log_marks import mark
from firesteel.engines.log_taken import Taken, taken
from firesteel.launch import EngineName

__all__ = ["Taken", "complaint", "phase", "taken"]


def phase(engine: EngineName, line: str) -> str | None:
    """What the engine is doing, if this line tells."""
    found = mark(engine, line)
    return found.words if found else None


def complaint(lines: Iterable[str]) -> str | None:
    """The line that says why an engine did not start: a known one, else the first error that is none."""
    found = diagnose("\n".join(lines))
    if found.cause:
        return found.cause.text
    return found.suspect[1] if found.suspect else None
