"""Known findings: what an earlier `check --json` found is not reported again.

A finding is known by its file, its rule and the text that it saw, not by its line: lines move. It is known as
often as it was found.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from posixpath import normpath

from firesteel.errors import UsageError
from firesteel.rules.checker import Finding
from firesteel.values import Value, from_json

_Identity = tuple[str, str, str]


class KnownFinding(Value):
    """The part of a finding in JSON by which it is known again."""

    file: str | None
    rule: str
    saw: str


class Baseline(Value):
    document: str
    findings: tuple[KnownFinding, ...]


def parse_baseline(text: str, path: str) -> Baseline:
    next = f"firesteel check --json ... > {path}"
    try:
        baseline = from_json(Baseline, json.loads(text))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not what `check --json` prints: {error}", next=next) from None
    if not baseline.document.startswith("firesteel.check/"):
        raise UsageError(f"{path} is a {baseline.document:.40}, not a firesteel.check", next=next)
    return baseline


def new_findings(findings: Iterable[Finding], baseline: Baseline) -> tuple[Finding, ...]:
    """The findings that the baseline does not have, or not as often."""
    left: Counter[_Identity] = Counter(
        (normpath(known.file or ""), known.rule, known.saw) for known in baseline.findings
    )
    new = []
    for finding in findings:
        identity = (normpath(finding.spot.path if finding.spot else ""), finding.rule, finding.saw)
        if left[identity] > 0:
            left[identity] -= 1
        else:
            new.append(finding)
    return tuple(new)
