"""Comments that allow what a rule forbids, each with its reason.

    # firesteel: allow utilization-high because this box serves nothing else
    # firesteel: allow-file image-floating, restart-loops because it is a test rig

Behind something on a line it holds for that line; on a line of its own, for the launch that begins below it,
or inside a launch for the line below. `allow-file` holds for the whole file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from firesteel.errors import UsageError
from firesteel.reads import ReadLaunch
from firesteel.rules.check import Finding

_COMMENT = re.compile(
    r"firesteel:\s*allow(?P<file>-file)?\s+(?P<rules>[\w.*-]+(?:\s*,\s*[\w.*-]+)*)(?P<reason>[^\n]*)"
)
_ALONE = re.compile(r"\s*(#|//|;|<!--)")
_NEAR = 5
"""Lines between a comment and the launch that it speaks of: a fence, `services:`, a name."""


class NoReason(UsageError):
    """An allow-comment that does not say why: the file is not judged until it does."""


@dataclass(frozen=True, slots=True)
class Allowed:
    rules: tuple[str, ...]
    reason: str
    first: int
    last: int
    """The lines that it holds for."""

    def covers(self, finding: Finding) -> bool:
        line = finding.spot.line if finding.spot else 0
        return self.first <= line <= self.last and any(fnmatchcase(finding.rule, rule) for rule in self.rules)


def allowed(text: str, path: str, readings: Sequence[ReadLaunch]) -> tuple[Allowed, ...]:
    """Every allow-comment of a text."""
    if "firesteel:" not in text:
        return ()
    ranges = sorted(_lines(reading) for reading in readings)
    found = []
    for number, line in enumerate(text.split("\n"), start=1):
        comment = _COMMENT.search(line)
        if comment:
            found.append(_allowed(comment, number, bool(_ALONE.match(line)), ranges, path))
    return tuple(found)


def _allowed(
    comment: re.Match[str], number: int, alone: bool, ranges: Iterable[tuple[int, int]], path: str
) -> Allowed:
    reason = re.sub(r"(-->|\))\s*$", "", comment["reason"])
    reason = re.sub(r"^[\s:(-]*(because\b)?", "", reason).strip()
    if not reason.strip("."):
        raise NoReason(
            f"{path}:{number}: this allows `{comment['rules']}` without a reason",
            next=f"firesteel: allow {comment['rules']} because ...",
        )
    rules = tuple(rule.strip() for rule in comment["rules"].split(","))
    first, last = (1, 2**31) if comment["file"] else _held(number, alone, ranges)
    return Allowed(rules, reason, first, last)


def _held(number: int, alone: bool, ranges: Iterable[tuple[int, int]]) -> tuple[int, int]:
    if not alone:
        return number, number
    for first, last in ranges:
        if number < first <= number + _NEAR:
            return first, last
        if first <= number <= last:
            break
    return number + 1, number + 1


def _lines(reading: ReadLaunch) -> tuple[int, int]:
    lines = [spot.line for spot in reading.spots.values()] or [0]
    return min(lines), max(lines)
