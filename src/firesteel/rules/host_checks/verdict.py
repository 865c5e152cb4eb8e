"""What a check says about a host: a level, the line that was read, and the words for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from firesteel.facts.host.host_facts import HostFacts
from firesteel.values import Value

CheckLevel = Literal["good", "note", "warn", "stop", "unknown", "skipped"]
"""stop: a launch fails, hangs or runs at a fraction of its speed. warn: it may. note: worth knowing.
unknown: it could not be read. skipped: the host has nothing that the check is about."""
BAD: tuple[CheckLevel, ...] = ("stop", "warn", "note")
_MAX_EVIDENCE = 240


class CheckVerdict(Value):
    level: CheckLevel | Literal["bad"]
    """bad: the level that the check's data gives it."""
    evidence: str = ""
    """The line that was read."""
    needs: str = ""
    """Of an unknown: what would let it be read. Of a skipped one: why."""
    values: Mapping[str, str] = {}
    """For the check's texts."""


Judge = Callable[[HostFacts], CheckVerdict]


def good(evidence: str) -> CheckVerdict:
    return CheckVerdict("good", _short(evidence))


def bad(evidence: str, level: CheckLevel | Literal["bad"] = "bad", **values: object) -> CheckVerdict:
    return CheckVerdict(level, _short(evidence), values={name: str(value) for name, value in values.items()})


def unknown(needs: str, evidence: str = "") -> CheckVerdict:
    return CheckVerdict("unknown", _short(evidence), needs)


def skipped(why: str) -> CheckVerdict:
    return CheckVerdict("skipped", needs=why)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_EVIDENCE else f"{line[: _MAX_EVIDENCE - 3]}..."
