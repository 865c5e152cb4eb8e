"""Guides in circulation, held against what is true of them: every command, by hand.

`seeds/NNN.md` has the commands, flags and variables of five documents of 2025 and 2026 (a guide to vLLM on a
Spark of June 2026 is 003). The table says what must be told of each command, stops and warnings, no more and
no less; of the sentences, which names must be noted.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from firesteel.catalog.catalog import shipped
from firesteel.rules.checker import Finding
from firesteel.rules.linter import CheckReport, LintOptions, lint

FOLDER = Path(__file__).parent / "seeds"
RESTART = "warn restart-policy-unproven"
TWICE = "stop vllm-entrypoint-twice"
FROZEN = "warn image-frozen-cu130-nightly"
UNSET = "warn utilization-unset"

TRUE_OF_003 = {
    "vllm": {RESTART},
    "qwen36-35b": {
        TWICE,
        RESTART,
        "warn vllm-kernel-env-gone",  # VLLM_USE_FLASHINFER_MOE_FP4, dead in a nightly of today
        "warn vllm-env-never-existed",  # VLLM_FP8_MOE_BACKEND
    },
    "qwen36-27b": {TWICE, RESTART},
    "": set(),  # the YaRN fragment, which says `...`
    "qwen35": {RESTART, FROZEN, "warn utilization-over-0.85"},
    "gemma4-31b": {TWICE, RESTART},
    "gemma4-26b": {TWICE, RESTART},
    "gemma4-coder": {RESTART, "warn utilization-over-0.90"},
    "diffgemma": {TWICE, RESTART, UNSET},
    "nemotron-nano": {RESTART, UNSET},  # its image is old enough to read both variables
    "nemotron": {TWICE, RESTART, FROZEN},
    "mistral-small4": {TWICE, RESTART, FROZEN},
    "gptoss": {RESTART},
    "llama70": {RESTART},
    "phi4mm": {RESTART},
    "mtp": {RESTART, "warn nemotron-mtp-relu2"},  # vLLM 0.19.0
    "vllm-dflash": {RESTART, "warn aeon-batch-hangs"},  # 65536 tokens a step hung Sparks
    "vllm --version": {TWICE},
    "laguna": {TWICE, RESTART, UNSET, "warn dflash-default-users"},
}


def linted(name: str) -> CheckReport:
    return lint((FOLDER / f"{name}.md").read_text(), f"{name}.md", LintOptions(shipped().images))


@pytest.fixture(scope="module")
def guide() -> CheckReport:
    return linted("003")


def graves(findings: tuple[Finding, ...]) -> set[str]:
    return {f"{finding.level} {finding.rule}" for finding in findings if finding.level != "note"}


def of_each(found: CheckReport) -> dict[str, set[str]]:
    """Container name -> what is told of its lines."""
    told = {}
    for reading in found.launches:
        container = reading.launch.container
        name = dict(container.options).get("name") if container else ""
        name = "vllm --version" if container and container.program == ("vllm",) else name
        own = {word.line for key, words in reading.words.items() if key[:4] != "env:" for word in words}
        lines = range(min(own), max(own) + 1)
        told[name or ""] = graves(tuple(f for f in found.findings if f.location and f.location.line in lines))
    return told


def test_every_command_of_the_guide(guide: CheckReport) -> None:
    assert of_each(guide) == TRUE_OF_003


def test_nine_commands_repeat_the_entrypoint(guide: CheckReport) -> None:
    assert sum(finding.rule == "vllm-entrypoint-twice" for finding in guide.findings) == 9


def test_the_dead_flag_in_the_sentences_is_noted_each_time(guide: CheckReport) -> None:
    dead = [finding for finding in guide.findings if finding.rule == "spec-disable-flag-gone"]
    assert len(dead) == 4 and {finding.level for finding in dead} == {"note"}


@pytest.mark.parametrize(
    ("name", "launches", "told", "noted"),
    [
        (
            "000",
            2,
            {"warn fastsafetensors-missing"},
            {"chunked-prefill-redundant", "llamacpp-jinja-redundant"},
        ),
        ("001", 0, set(), {"flag-unknown"}),
        ("002", 0, set(), set()),
        ("004", 1, {"warn gid-index-pinned", "warn utilization-over-0.85"}, {"cudagraph-capture-size-large"}),
    ],
)
def test_the_other_documents(name: str, launches: int, told: set[str], noted: set[str]) -> None:
    found = linted(name)
    assert len(found.launches) == launches
    assert graves(found.findings) == told
    assert noted <= {finding.rule for finding in found.findings if finding.level == "note"}
