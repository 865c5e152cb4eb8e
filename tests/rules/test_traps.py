"""Forty launches with one trap each, twenty without: the traps are seen, and nothing else raises an alarm."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from firesteel import catalog
from firesteel.rules import Finding, LintOptions, lint

TRAPS = yaml.safe_load((Path(__file__).parent / "traps" / "traps.yaml").read_text())
NEEDED = 36


def findings(case: dict[str, Any]) -> tuple[Finding, ...]:
    return lint(case["text"], case.get("file", "line"), LintOptions(catalog.shipped().images)).findings


def is_seen(case: dict[str, Any]) -> bool:
    loud = {"stop", "warn", case.get("level", "stop")}
    about = case["about"].lower()
    return any(
        about in f"{finding.key} {finding.saw} {finding.says}".lower()
        for finding in findings(case)
        if finding.level in loud
    )


def test_at_least_36_of_40_traps_are_seen() -> None:
    assert len(TRAPS["bad"]) == 40
    missed = [case["id"] for case in TRAPS["bad"] if not is_seen(case)]
    assert len(missed) <= len(TRAPS["bad"]) - NEEDED, missed


@pytest.mark.parametrize("case", TRAPS["good"], ids=lambda case: case["id"])
def test_no_alarm_on_a_good_launch(case: dict[str, Any]) -> None:
    alarms = [finding for finding in findings(case) if finding.level == "stop"]
    warnings = [finding.rule for finding in findings(case) if finding.level == "warn"]
    assert (alarms, warnings) == ([], []), case["id"]
