"""Comments that suppress a finding, each with a reason.

    # firesteel: allow utilization-high because this host serves nothing else
    # firesteel: allow-file image-floating, restart-loops because it is a test rig

At the end of a line it applies to that line; on a line of its own, to the launch that begins below it, or
inside a launch to the next line. `allow-file` applies to the whole file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from firesteel.errors import UsageError
from firesteel.reads.reader import ReadLaunch
from firesteel.rules.checker import Finding
from firesteel.values import Value

_COMMENT = re.compile(
    r"firesteel:\s*allow(?P<file>-file)?\s+(?P<rules>[\w.*-]+(?:\s*,\s*[\w.*-]+)*)(?P<reason>[^\n]*)"
)
_OWN_LINE = re.compile(r"\s*(#|//|;|<!--)")
_MAX_DISTANCE = 5
"""Lines between a comment and its launch: a fence, `services:`, a name."""


class NoReason(UsageError):
    """An allow comment without a reason: the file is not checked until it has one."""


class Allowed(Value):
    rules: tuple[str, ...]
    reason: str
    first: int
    last: int
    """The lines that it applies to."""

    def covers(self, finding: Finding) -> bool:
        line = finding.spot.line if finding.spot else 0
        return self.first <= line <= self.last and any(fnmatchcase(finding.rule, rule) for rule in self.rules)


def allowed(text: str, path: str, readings: Sequence[ReadLaunch]) -> tuple[Allowed, ...]:
    """Every allow comment of a text."""
    if "firesteel:" not in text:
        return ()
    lines = [[spot.line for spot in reading.spots.values()] or [0] for reading in readings]
    ranges = sorted((min(own), max(own)) for own in lines)
    return tuple(
        _allowed(comment, number, bool(_OWN_LINE.match(line)), ranges, path)
        for number, line in enumerate(text.split("\n"), start=1)
        if (comment := _COMMENT.search(line))
    )


def _allowed(
    comment: re.Match[str], number: int, is_own_line: bool, ranges: Iterable[tuple[int, int]], path: str
) -> Allowed:
    reason = re.sub(r"(-->|\))\s*$", "", comment["reason"])
    reason = re.sub(r"^[\s:(-]*(because\b)?", "", reason).strip()
    if not reason.strip("."):
        raise NoReason(
            f"{path}:{number}: this allows `{comment['rules']}` without a reason",
            next=f"firesteel: allow {comment['rules']} because ...",
        )
    rules = tuple(rule.strip() for rule in comment["rules"].split(","))
    first, last = (1, 2**31) if comment["file"] else _affected_lines(number, is_own_line, ranges)
    return Allowed(rules, reason, first, last)


def _affected_lines(number: int, is_own_line: bool, ranges: Iterable[tuple[int, int]]) -> tuple[int, int]:
    if not is_own_line:
        return number, number
    for first, last in ranges:
        if number < first <= number + _MAX_DISTANCE:
            return first, last
        if first <= number <= last:
            break
    return number + 1, number + 1
