"""What `check` and `logs --why` print with `--json`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from firesteel.engines.diagnosis import Cause, Folded, PhaseMark, State
from firesteel.facts.evidence import Evidence
from firesteel.library.documents.document import Document
from firesteel.reads.stated import MachineKind
from firesteel.rules.rule import Level

if TYPE_CHECKING:
    from firesteel.engines.diagnosis import Diagnosis
    from firesteel.launch import Location
    from firesteel.rules.linter import CheckReport


class _Placed(Document):
    """Made from something that knows its `location` in the user's text."""

    @classmethod
    def of(cls, *values: object, **others: object) -> Self:
        found: Location | None = getattr(values[0], "location", None)
        file, line, column = (found.path, found.line, found.column) if found else (None, None, None)
        return super().of(*values, **{"file": file, "line": line, "column": column, **others})


class FindingJson(_Placed):
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

    @classmethod
    def of(cls, *values: object, **others: object) -> Self:
        return super().of(*values, fixable=getattr(values[0], "fix", None) is not None, **others)


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


class MachineJson(_Placed):
    """The machine that a launch is for."""

    kind: MachineKind
    what: str
    """What the text calls it; empty: it names none."""
    file: str | None
    line: int | None


class CheckJson(Document, tag_field="document", tag="firesteel.check/1"):
    """`firesteel check WHAT --json`"""

    launches: int
    hardware: str | None
    """The machine that all were checked for; `stated`: the one that each text speaks of, or else a Spark."""
    machines: tuple[MachineJson, ...]
    """Of each launch, in the order of the text, where `hardware` is `stated`."""
    files: tuple[str, ...]
    findings: tuple[FindingJson, ...]
    allowed: tuple[AllowedJson, ...]
    """Findings that an allow-comment permits."""
    fixed: tuple[FixedJson, ...]
    """What --fix changed, or what --diff would change."""
    unread: tuple[UnreadJson, ...]


class RuleJson(Document, tag_field="document", tag="firesteel.check-explain/1"):
    """`firesteel check --explain RULE --json`"""

    rule: str
    level: Level
    says: str
    instead: str | None
    confidence: str
    hits: tuple[str, ...]
    misses: tuple[str, ...]
    sources: tuple[Evidence, ...]


def check_json(result: CheckReport) -> CheckJson:
    return CheckJson.of(
        result,
        launches=len(result.launches),
        fixed=tuple(
            FixedJson.of(
                file=fixed.name,
                rules=tuple(finding.rule for finding in fixed.findings),
                diff=fixed.diff,
            )
            for fixed in result.fixed
        ),
        unread=tuple((name, error.what) for name, error in result.unread),
    )


# --- logs ---


class SuspectJson(Document):
    """The first error of an unknown kind."""

    line: int
    text: str


class DiagnosisJson(Document, tag_field="document", tag="firesteel.diagnose/1"):
    """`firesteel logs LOG --why --json`; `causes` has the likeliest first"""

    log: str
    engine: str | None
    version: str | None
    state: State
    stage: str | None
    lines: int
    causes: tuple[Cause, ...]
    follows: tuple[Cause, ...]
    notes: tuple[Cause, ...]
    folded: tuple[Folded, ...]
    """Harmless lines that look bad."""
    suspect: SuspectJson | None
    phases: tuple[PhaseMark, ...]
    """Where the stages of the start begin."""


def diagnosis_json(log: str, diagnosis: Diagnosis) -> DiagnosisJson:
    stage = diagnosis.reached.stage if diagnosis.reached else None
    return DiagnosisJson.of(diagnosis, log=log, stage=stage)
