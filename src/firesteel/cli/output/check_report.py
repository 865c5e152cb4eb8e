"""What `check` found, as a Markdown report that can be sent to the authors of the texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from firesteel.cli.output.ci_annotations import filled

if TYPE_CHECKING:
    from firesteel.rules.checker import Finding
    from firesteel.rules.linter import LintResult

_TITLES = {"stop": "Does not start, or does harm", "warn": "Has no effect, or is likely to do harm"}
"""Notes are for whoever runs the launch, not for its author."""


def markdown(linted: Sequence[LintResult]) -> str:
    """Every stop and warning by file and line, with what was seen, the fix and the sources."""
    findings = [finding for result in linted for finding in result.findings]
    launches = sum(len(result.readings) for result in linted)
    counts = ", ".join(f"{sum(each.level == level for each in findings)} {level}" for level in _TITLES)
    lines = ["# Launches that do not do what they say", ""]
    lines.append(f"{launches} launches in {len(linted)} files: {counts}{other_machines(linted)}.")
    for level, title in _TITLES.items():
        of_level = [finding for finding in findings if finding.level == level]
        lines += ["", f"## {title}"] if of_level else []
        for rule in dict.fromkeys(finding.rule for finding in of_level):
            lines += ["", f"### {rule}", ""]
            same = [finding for finding in of_level if finding.rule == rule]
            for finding in same:
                lines += _entry(finding)
            urls = dict.fromkeys(f"{source.url} ({source.seen})" for source in same[0].sources)
            lines += ["", f"Sources: {', '.join(urls)}"]
    return "\n".join(lines)


def _entry(finding: Finding) -> Iterator[str]:
    spot = finding.spot
    where = f"`{spot.path}:{spot.line}`" if spot else "a launch"
    yield f"- {where}: {filled(finding.says)}"
    if finding.saw:
        yield f"  - seen: {_code(finding.saw)}"
    if finding.instead:
        yield f"  - fix: {filled(finding.instead)}"


def _code(text: str) -> str:
    fence = "``" if "`" in text else "`"
    return f"{fence}{' '.join(text.split())}{fence}"


def other_machines(linted: Sequence[LintResult]) -> str:
    """Launches for another machine are not held against a Spark; how many, and what says so."""
    machines = [machine for result in linted for machine in result.machines if machine.kind == "other"]
    if not machines:
        return ""
    launches = sum(len(result.readings) for result in linted)
    first = machines[0]
    where = f", {first.spot.path}:{first.spot.line}" if first.spot else ""
    count = "" if launches == 1 else f"{len(machines)} of them " if len(machines) < launches else "all "
    return f", {count}for another machine ({first.what}{where}); --host gb10 checks for a Spark"
