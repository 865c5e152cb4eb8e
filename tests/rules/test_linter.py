"""Whole texts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from firesteel import catalog
from firesteel.errors import UsageError
from firesteel.rules import LintOptions, engine_version, known_patterns, lint

ASKED = LintOptions(catalog.shipped().images)
LINE = "vllm serve org/m --gpu-memory-utilization 0.7 --moe-backend b12x"


def rules_of(text: str, asked: LintOptions = ASKED) -> set[str]:
    return {finding.rule for finding in lint(text, "run.sh", asked).findings}


def test_the_version_that_the_text_does_not_tell() -> None:
    assert "value-refused" not in rules_of(LINE)
    assert "value-refused" in rules_of(LINE, replace(ASKED, versions={"vllm": "0.18.0"}))
    image = (
        "docker run --gpus all vllm/vllm-openai:v0.32.0 org/m --gpu-memory-utilization 0.7 --moe-backend b12x"
    )
    assert "value-refused" not in rules_of(image, replace(ASKED, versions={"vllm": "0.18.0"}))


def test_select_ignore_and_level() -> None:
    text = "vllm serve org/m --speculative-disable-by-batch-size 32 --gpu-memory-utilization 0.95"
    everything = rules_of(text)
    assert "spec-disable-flag-gone" in everything and len(everything) > 1
    assert rules_of(text, replace(ASKED, select=("spec-*",))) == {"spec-disable-flag-gone"}
    assert rules_of(text, replace(ASKED, ignore=("spec-*",))) == everything - {"spec-disable-flag-gone"}
    stops = lint(text, "run.sh", replace(ASKED, level="stop")).findings
    assert stops and all(finding.level == "stop" for finding in stops)


def test_a_pattern_must_fit_a_rule() -> None:
    assert known_patterns(("spec-*",)) == ("spec-*",)
    with pytest.raises(UsageError, match="there is no rule `specc-"):
        known_patterns(("specc-*",))


def test_a_text_without_a_launch() -> None:
    found = lint("echo hello", "run.sh", ASKED)
    assert (found.readings, found.findings, found.problem) == ((), (), None)
    broken = lint("vllm serve 'm", "run.sh", ASKED)
    assert broken.problem and "never closed" in broken.problem.what


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.28.0", ("vllm", "0.28.0")),
        ("v0.28", ("vllm", "0.28")),
        ("0.5.9", ("sglang", "0.5.9")),
        ("b11549", ("llamacpp", "11549")),
        ("5000", ("llamacpp", "5000")),
    ],
)
def test_versions_as_people_write_them(text: str, expected: tuple[str, str]) -> None:
    assert engine_version(text) == expected


def test_text_that_is_not_a_version() -> None:
    with pytest.raises(UsageError, match="`banana` is not an engine version"):
        engine_version("banana")
