"""The findings of an audit as findings about a launch, so that `plan` and `up` show and obey them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date

from firesteel.facts.evidence import Evidence
from firesteel.rules.checker import Finding
from firesteel.rules.checkpoint.checks import SEEN, CheckpointFinding

PREFIX = "audit-"


def launch_findings(model: str, findings: Iterable[CheckpointFinding]) -> tuple[Finding, ...]:
    """Without notes: they say nothing about whether the launch will work."""
    return tuple(
        Finding(
            rule=f"{PREFIX}{found.check}",
            level=found.level,
            says=f"{found.says}: {found.effect}",
            instead=_instead(model, found),
            spot=None,
            saw=found.evidence,
            confidence="reported",
            sources=(Evidence(url=found.source, seen=date.fromisoformat(SEEN)),),
            scope="checkpoint",
        )
        for found in findings
        if found.level != "note"
    )


def is_audit(finding: Finding) -> bool:
    return finding.rule.startswith(PREFIX)


def audit_note(findings: Iterable[CheckpointFinding] | None, model: str) -> str:
    """What a plan says about it."""
    if findings is None:
        return f"not audited, because it is not on this disk: firesteel audit {model}"
    wrong = [found for found in findings if found.level != "note"]
    result = f"{len(wrong)} findings, see below" if wrong else "nothing is wrong"
    return f"audited from its headers and scales: {result}"


def _instead(model: str, found: CheckpointFinding) -> str:
    return f"firesteel repair {model}" if found.mend else f"firesteel audit {model}"
