"""Options of `check` that leave findings out: `--baseline` and `--changed-since`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from firesteel.cli.options import common
from firesteel.edge.files import text_files
from firesteel.edge.files.git_changes import GitChanges
from firesteel.rules import Finding, LintResult
from firesteel.rules.baseline import new_findings, parse_baseline

filter_options = common.together(
    click.option(
        "--baseline",
        type=common.PATH,
        metavar="FILE",
        help="Leave out findings that FILE, printed by an earlier --json, already has.",
    ),
    click.option(
        "--changed-since", metavar="REF", help="Report only lines that git says have changed since REF."
    ),
    click.option(
        "--strict", is_flag=True, help="Exit 2 if a file or what looks like a launch could not be read."
    ),
)


def filtered(
    linted: Sequence[LintResult], baseline: Path | None, changed_since: str | None
) -> tuple[LintResult, ...]:
    """The results without what is known, and without what stands on lines that have not changed."""
    if changed_since is not None:
        changes = GitChanges(changed_since)
        linted = tuple(_on_changed_lines(result, changes) for result in linted)
    if baseline is not None:
        known = parse_baseline(
            text_files.read_text(baseline, next=f"firesteel check --json ... > {baseline}"), str(baseline)
        )
        findings = [finding for result in linted for finding in result.findings]
        new = set(map(id, new_findings(findings, known)))
        linted = tuple(
            replace(result, findings=tuple(finding for finding in result.findings if id(finding) in new))
            for result in linted
        )
    return tuple(linted)


def _on_changed_lines(result: LintResult, changes: GitChanges) -> LintResult:
    lines = changes.lines(Path(result.path).resolve())

    def is_changed(finding: Finding) -> bool:
        line = finding.spot.line if finding.spot else 0
        return lines is None or any(line in changed for changed in lines)

    return replace(result, findings=tuple(filter(is_changed, result.findings)))
