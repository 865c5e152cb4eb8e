"""Findings for other programs: SARIF for code scanning, annotations for GitHub Actions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

from firesteel import __version__
from firesteel.errors import FiresteelError, escape_unprintable
from firesteel.library.check import explain

if TYPE_CHECKING:
    from firesteel.rules.checker import Finding
    from firesteel.rules.checkpoint.checks import CheckpointFinding
    from firesteel.rules.rule import Rule

_SARIF_LEVELS = {"stop": "error", "warn": "warning", "note": "note"}
_GITHUB_LEVELS = {"stop": "error", "warn": "warning", "note": "notice"}


Unread = Sequence[tuple[str, FiresteelError]]
"""Files that could not be read, and why."""


def filled(text: str) -> str:
    """A rule's text with its placeholders named: `{value}` -> VALUE."""
    return re.sub(r"\{(name|value|image|model)\}", lambda match: match[1].upper(), text)


def sarif(findings: Iterable[Finding], unread: Unread = ()) -> str:
    """One SARIF 2.1.0 log."""
    findings = list(findings)
    rules = sorted({finding.rule for finding in findings})
    described = [_sarif_rule(explain(rule)[0]) for rule in rules]
    return _log(described, [_result(finding, rules) for finding in findings], unread)


def checkpoint_sarif(model: str, findings: Sequence[CheckpointFinding]) -> str:
    """The findings of an audit; a place is the checkpoint and the tensor in it."""
    from firesteel.library.weights import known_checks  # `check` judges no checkpoint

    known = known_checks()
    checks = sorted({finding.check for finding in findings})
    described: list[dict[str, object]] = [
        {
            "id": check,
            "shortDescription": {"text": known[check].effect},
            "defaultConfiguration": {"level": _SARIF_LEVELS[known[check].level]},
            "helpUri": known[check].source,
        }
        for check in checks
    ]
    results: list[dict[str, object]] = [
        {
            "ruleId": finding.check,
            "ruleIndex": checks.index(finding.check),
            "level": _SARIF_LEVELS[finding.level],
            "message": {"text": f"{finding.says}. {finding.evidence}. Then {finding.effect}."},
            "locations": [
                {
                    "physicalLocation": {"artifactLocation": {"uri": quote(model)}},
                    "logicalLocations": [{"fullyQualifiedName": finding.tensor or model, "kind": "member"}],
                }
            ],
        }
        for finding in findings
    ]
    return _log(described, results)


def _log(described: list[dict[str, object]], results: list[dict[str, object]], unread: Unread = ()) -> str:
    driver = {"name": "firesteel", "version": __version__, "rules": described}
    notifications = [{"level": "error", "message": {"text": error.what}} for _, error in unread]
    run = {
        "tool": {"driver": driver},
        "invocations": [{"executionSuccessful": not unread, "toolExecutionNotifications": notifications}],
        "results": results,
    }
    schema = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
    return json.dumps({"$schema": schema, "version": "2.1.0", "runs": [run]}, indent=1)


def _sarif_rule(rule: Rule) -> dict[str, object]:
    descriptor: dict[str, object] = {
        "id": rule.id,
        "shortDescription": {"text": filled(rule.says)},
        "defaultConfiguration": {"level": _SARIF_LEVELS[rule.level]},
        "helpUri": str(rule.sources[0].url),
        "properties": {"confidence": rule.confidence},
    }
    return descriptor | ({"help": {"text": filled(rule.instead)}} if rule.instead else {})


def _result(finding: Finding, rules: list[str]) -> dict[str, object]:
    use = f" Use: {finding.instead}" if finding.instead else ""
    result: dict[str, object] = {
        "ruleId": finding.rule,
        "ruleIndex": rules.index(finding.rule),
        "level": _SARIF_LEVELS[finding.level],
        "message": {"text": f"{finding.says}.{use}"},
    }
    if finding.location:
        physical = {
            "artifactLocation": {"uri": quote(finding.location.path)},
            "region": {"startLine": finding.location.line, "startColumn": finding.location.column},
        }
        result["locations"] = [{"physicalLocation": physical}]
    return result


def github(findings: Iterable[Finding], unread: Unread = ()) -> Iterator[str]:
    """One workflow command per finding; GitHub shows it next to the line."""
    for name, error in unread:
        yield f"::warning file={_property(name)},title=not read::{_data(error.what)}"
    for finding in findings:
        location = finding.location
        properties = (
            f"file={_property(location.path)},line={location.line},col={location.column}," if location else ""
        )
        use = f". Use: {finding.instead}" if finding.instead else ""
        message = _data(f"{finding.says}{use}")
        yield f"::{_GITHUB_LEVELS[finding.level]} {properties}title={_property(finding.rule)}::{message}"


def _data(text: str) -> str:
    return escape_unprintable(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
