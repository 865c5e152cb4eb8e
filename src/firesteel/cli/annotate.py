"""Findings for other programs: SARIF for code scanning, annotations for GitHub Actions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from importlib.metadata import version

from firesteel.rules import Finding, Rule, explain

_SARIF_LEVELS = {"stop": "error", "warn": "warning", "note": "note"}
_GITHUB_LEVELS = {"stop": "error", "warn": "warning", "note": "notice"}


def sarif(findings: Iterable[Finding]) -> str:
    """One SARIF 2.1.0 log."""
    found = list(findings)
    rules = sorted({finding.rule for finding in found})
    driver = {
        "name": "firesteel",
        "version": version("firesteel"),
        "rules": [_sarif_rule(explain(rule)) for rule in rules],
    }
    run = {"tool": {"driver": driver}, "results": [_result(each, rules) for each in found]}
    schema = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
    return json.dumps({"$schema": schema, "version": "2.1.0", "runs": [run]}, indent=1)


def _sarif_rule(rule: Rule) -> dict[str, object]:
    about: dict[str, object] = {
        "id": rule.id,
        "shortDescription": {"text": rule.says},
        "defaultConfiguration": {"level": _SARIF_LEVELS[rule.level]},
        "helpUri": str(rule.sources[0].url),
        "properties": {"confidence": rule.confidence},
    }
    return about | ({"help": {"text": rule.instead}} if rule.instead else {})


def _result(finding: Finding, rules: list[str]) -> dict[str, object]:
    use = f" Use: {finding.instead}" if finding.instead else ""
    result: dict[str, object] = {
        "ruleId": finding.rule,
        "ruleIndex": rules.index(finding.rule),
        "level": _SARIF_LEVELS[finding.level],
        "message": {"text": f"{finding.says}.{use}"},
    }
    if finding.spot:
        place = {
            "artifactLocation": {"uri": finding.spot.path.replace("\\", "/")},
            "region": {"startLine": finding.spot.line, "startColumn": finding.spot.column},
        }
        result["locations"] = [{"physicalLocation": place}]
    return result


def github(findings: Iterable[Finding]) -> Iterator[str]:
    """A workflow command a finding, which GitHub shows beside the line."""
    for finding in findings:
        spot = finding.spot
        place = f"file={_property(spot.path)},line={spot.line},col={spot.column}," if spot else ""
        use = f". Use: {finding.instead}" if finding.instead else ""
        said = _data(f"{finding.says}{use}")
        yield f"::{_GITHUB_LEVELS[finding.level]} {place}title={_property(finding.rule)}::{said}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
