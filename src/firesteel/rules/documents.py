"""What `check` and `facts` print with `--json`."""

from __future__ import annotations

from typing import Literal

from firesteel.facts.documents import Document
from firesteel.facts.evidence import Evidence
from firesteel.rules.checker import Finding
from firesteel.rules.compatibility_tables import CompatibilityRow
from firesteel.rules.rule import Level


class FindingJson(Document):
    rule: str
    level: Level
    says: str
    instead: str | None
    saw: str
    file: str | None
    line: int | None
    column: int | None
    fixable: bool
    confidence: str
    sources: tuple[Evidence, ...]


class AllowedJson(Document):
    finding: FindingJson
    reason: str


class FixedJson(Document):
    file: str
    rules: tuple[str, ...]
    diff: str


class UnreadJson(Document):
    file: str
    why: str


class CheckJson(Document):
    """`firesteel check WHAT --json`"""

    document: Literal["firesteel.check/1"] = "firesteel.check/1"
    launches: int
    hardware: str | None
    files: tuple[str, ...]
    findings: tuple[FindingJson, ...]
    allowed: tuple[AllowedJson, ...]
    """Findings that an allow-comment permits."""
    fixed: tuple[FixedJson, ...]
    """What --fix changed, or what --diff would change."""
    unread: tuple[UnreadJson, ...]


class RuleJson(Document):
    """`firesteel check --explain RULE --json`"""

    document: Literal["firesteel.check-explain/1"] = "firesteel.check-explain/1"
    rule: str
    level: Level
    says: str
    instead: str | None
    confidence: str
    hits: tuple[str, ...]
    misses: tuple[str, ...]
    sources: tuple[Evidence, ...]


class FactsJson(Document):
    """`firesteel facts TABLE --json`; a `level` of null: no rule objects"""

    document: Literal["firesteel.facts/1"] = "firesteel.facts/1"
    table: str
    title: str
    rows: tuple[CompatibilityRow, ...]


def finding_json(finding: Finding) -> FindingJson:
    spot = finding.spot
    return FindingJson(
        rule=finding.rule,
        level=finding.level,
        says=finding.says,
        instead=finding.instead,
        saw=finding.saw,
        file=spot.path if spot else None,
        line=spot.line if spot else None,
        column=spot.column if spot else None,
        fixable=finding.fix is not None,
        confidence=finding.confidence,
        sources=finding.sources,
    )
