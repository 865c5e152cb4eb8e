"""Findings about a host, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rich.text import Text

from firesteel.cli.output.invocation import typed
from firesteel.cli.output.show import grid, out
from firesteel.hosts.doctor.examine import Examination
from firesteel.printable import escape_unprintable
from firesteel.rules.host_checks import HostFinding

_STYLE = {"stop": "bold red", "warn": "yellow", "note": "cyan", "unknown": "magenta", "good": "green"}


def show_examination(examination: Examination, *, everything: bool, fixable: frozenset[str]) -> None:
    facts, findings = examination.facts, examination.findings
    counts = Counter(finding.level for finding in findings)
    parts = [
        f"{counts[level]} {level}" for level in ("stop", "warn", "note", "good", "unknown") if counts[level]
    ]
    host = f"{facts.product}, kernel {facts.kernel or 'unknown'}, driver {facts.driver or 'none'}"
    out.print(Text(escape_unprintable(f"{host}: {', '.join(parts)}")))
    for finding in findings:
        if finding.is_bad:
            _show_bad(finding, finding.check in fixable)
    if everything:
        _show_rows(findings)
        return
    unknown = [finding for finding in findings if finding.level == "unknown"]
    for finding in unknown:
        row = Text.assemble(("not known  ", _STYLE["unknown"]), f"{finding.check}: ", finding.says)
        out.print(row)
    good = [finding.check for finding in findings if finding.level == "good"]
    out.print(Text.assemble(("good  ", _STYLE["good"]), ", ".join(good) or "nothing"))
    fixes = [finding.check for finding in findings if finding.is_bad and finding.check in fixable]
    if fixes:
        out.print(Text(typed(f"next: firesteel doctor --fix {' '.join(fixes)}")))


def _show_bad(finding: HostFinding, can_fix: bool) -> None:
    head = Text.assemble(
        (f"{finding.level}  ", _STYLE[finding.level]), (finding.check, "bold"), ": ", finding.says
    )
    out.print(head)
    source = finding.sources[0]
    rows = [("read", finding.evidence), ("costs", finding.costs or ""), ("do", typed(finding.do or ""))]
    if can_fix:
        rows.append(("fix", typed(f"firesteel doctor --fix {finding.check}")))
    if finding.undo:
        rows.append(("undo", typed(finding.undo)))
    rows.append(("seen", f"{source.seen}, {finding.confidence}, {source.url}"))
    out.print(grid((f"      {name}", Text(escape_unprintable(text))) for name, text in rows))


def _show_rows(findings: Iterable[HostFinding]) -> None:
    rest = [finding for finding in findings if not finding.is_bad]
    out.print(
        grid(
            (
                f"{finding.level:<8} {finding.check}",
                Text(escape_unprintable(finding.evidence or finding.says)),
            )
            for finding in rest
        )
    )
