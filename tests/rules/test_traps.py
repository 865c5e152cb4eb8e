"""Launches with one trap each, and launches without: the traps are seen, and nothing else raises an alarm."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from firesteel.catalog.catalog import shipped
from firesteel.rules.checker import Finding
from firesteel.rules.linter import LintOptions, lint

SETS = {
    name: yaml.safe_load((Path(__file__).parent / "traps" / f"{name}.yaml").read_text())
    for name in ("traps", "second", "third")
}
GOOD = [case for each in SETS.values() for case in each["good"]]
MISSED: dict[str, set[str]] = {
    "traps": set(),
    # The context of a model outside the catalog is not known. Several GPUs give a note only where the
    # release is not known: before 0.11.1 vLLM took them from a Ray cluster without being told.
    "second": {"context-beyond-the-model", "two-gpus-in-one-spark"},
    # NVIDIA's image is a fork, which may have flags of its own.
    "third": {"ngc-too-old-for-the-backend"},
}


def findings(case: dict[str, Any]) -> tuple[Finding, ...]:
    return lint(case["text"], case.get("file", "line"), LintOptions(shipped().images)).findings


def is_seen(case: dict[str, Any]) -> bool:
    loud = {"stop", "warn", case.get("level", "stop")}
    about = case["about"].lower()
    return any(
        about in f"{finding.key} {finding.saw} {finding.says}".lower()
        for finding in findings(case)
        if finding.level in loud
    )


@pytest.mark.parametrize(("name", "count"), [("traps", 40), ("second", 20), ("third", 20)])
def test_the_traps_are_seen(name: str, count: int) -> None:
    bad = SETS[name]["bad"]
    assert len(bad) == count
    assert {case["id"] for case in bad if not is_seen(case)} == MISSED[name]


@pytest.mark.parametrize("case", GOOD, ids=lambda case: case["id"])
def test_no_alarm_on_a_good_launch(case: dict[str, Any]) -> None:
    alarms = [finding for finding in findings(case) if finding.level == "stop"]
    warnings = [finding.rule for finding in findings(case) if finding.level == "warn"]
    assert (alarms, warnings) == ([], []), case["id"]
