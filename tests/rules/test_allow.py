"""Comments that allow."""

from __future__ import annotations

import pytest

from firesteel.catalog.catalog import shipped
from firesteel.errors import UsageError
from firesteel.rules.linter import LintOptions, lint

ASKED = LintOptions(shipped().images)
BAD = "vllm serve org/m --gpu-memory-utilization 0.7 --speculative-disable-by-batch-size 32\n"
CONTINUED = BAD.replace(" --sp", " \\\n  --sp")
RULE = "spec-disable-flag-gone"


def told(text: str, path: str = "run.sh") -> tuple[list[int], list[int]]:
    """The lines on which the rule is told, and those on which it is allowed."""
    found = lint(text, path, ASKED)
    return (
        [finding.spot.line for finding in found.findings if finding.rule == RULE and finding.spot],
        [finding.spot.line for finding, reason in found.allowed if finding.spot and reason],
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BAD, ([1], [])),
        (f"{BAD.rstrip()} # firesteel: allow {RULE} because it is old\n", ([], [1])),
        (f"# firesteel: allow {RULE} because it is old\n{BAD}{BAD}", ([3], [2])),
        (f"# firesteel: allow spec-*: it is old\n{BAD}", ([], [2])),
        (f"# firesteel: allow other because it is old\n{BAD}", ([2], [])),
        (f"# firesteel: allow a, {RULE} - old\n\n{BAD}", ([], [3])),
        (f"# firesteel: allow-file {RULE} because it is old\necho\necho\n\n\n\n\n\n{BAD}", ([], [9])),
        (f"# firesteel: allow {RULE} because it is old\necho\necho\n\n\n\n\n\n{BAD}", ([9], [])),
        (f"# firesteel: allow {RULE} because old\n{CONTINUED}", ([], [3])),
    ],
)
def test_scope(text: str, expected: tuple[list[int], list[int]]) -> None:
    assert told(text) == expected


def test_in_markdown() -> None:
    text = f"<!-- firesteel: allow {RULE} because it is history -->\n```bash\n{BAD}```\n"
    assert told(text, "guide.md") == ([], [3])


@pytest.mark.parametrize("reason", ["", " because", ":", " -->", " because ..."])
def test_a_reason_is_needed(reason: str) -> None:
    with pytest.raises(UsageError, match=r"run.sh:1: .* without a reason"):
        told(f"# firesteel: allow {RULE}{reason}\n{BAD}")
