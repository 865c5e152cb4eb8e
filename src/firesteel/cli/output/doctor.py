"""Findings about a host, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.text import Text

from firesteel.cli.output.invocation import typed
from firesteel.cli.output.show import grid, out
from firesteel.errors import escape_unprintable

if TYPE_CHECKING:
    from firesteel.hosts.doctor.examine import Examination
    from firesteel.hosts.doctor.nodes import ClusterExamination
    from firesteel.rules.host.findings import HostFinding

_STYLE = {"stop": "bold red", "warn": "yellow", "note": "cyan", "unknown": "magenta", "good": "green"}


def show_examination(examination: Examination, *, everything: bool, is_here: bool) -> None:
    """A host that is not here, but in a bundle, is not fixed by a command that is typed here."""
    findings = examination.findings
    counts = Counter(finding.level for finding in findings)
    parts = [
        f"{counts[level]} {level}" for level in ("stop", "warn", "note", "good", "unknown") if counts[level]
    ]
    out.print(Text(escape_unprintable(f"{_host_line(examination)}: {', '.join(parts)}")))
    for finding in findings:
        if finding.is_bad:
            _show_bad(finding, can_fix=finding.fixable)
    if everything:
        _show_rows(findings)
        return
    unknown = [finding for finding in findings if finding.level == "unknown"]
    for finding in unknown:
        row = Text.assemble(("not known  ", _STYLE["unknown"]), f"{finding.check}: ", typed(finding.says))
        out.print(row)
    good = [finding.check for finding in findings if finding.level == "good"]
    out.print(Text.assemble(("good  ", _STYLE["good"]), ", ".join(good) or "nothing"))
    if figures := examination.facts.measured.values():
        rows = [f"{figure.name} {figure}" for figure in figures]
        out.print(Text(f"measured  {', '.join(rows)}; last on {max(figure.day for figure in figures)}"))
    fixes = [finding.check for finding in findings if finding.fixable]
    if fixes and is_here:
        out.print(Text(typed(f"next: firesteel doctor --fix {' '.join(fixes)}")), soft_wrap=True)


def show_cluster(found: ClusterExamination) -> None:
    for name, examination in found.hosts.items():
        bad = [finding for finding in examination.findings if finding.is_bad]
        good = sum(finding.level == "good" for finding in examination.findings)
        out.print(
            Text.assemble((name, "bold"), escape_unprintable(f": {_host_line(examination)}; {good} good"))
        )
        for finding in bad:
            _show_bad(finding, can_fix=False)
    for name, why in found.unreachable.items():
        out.print(Text.assemble(("stop  ", _STYLE["stop"]), (name, "bold"), escape_unprintable(f": {why}")))
    for difference in found.differences:
        values = ", ".join(f"{name} {value}" for name, value in difference.values.items())
        text = escape_unprintable(f"{difference.what} differs: {values}; {difference.do}")
        out.print(Text.assemble(("warn  ", _STYLE["warn"]), text))
    if not found.differences and len(found.hosts) > 1:
        out.print(Text.assemble(("good  ", _STYLE["good"]), "nothing differs that should be equal"))


def _host_line(examination: Examination) -> str:
    facts = examination.facts
    return f"{facts.product}, kernel {facts.kernel or 'unknown'}, driver {facts.driver or 'none'}"


def _show_bad(finding: HostFinding, can_fix: bool) -> None:
    head = Text.assemble(
        (f"{finding.level}  ", _STYLE[finding.level]), (finding.check, "bold"), ": ", finding.says
    )
    out.print(head)
    source = finding.sources[0]
    rows = [("read", finding.evidence), ("costs", finding.costs or ""), ("do", typed(finding.do or ""))]
    if can_fix and (fix := f"firesteel doctor --fix {finding.check}") not in (finding.do or ""):
        rows.append(("fix", typed(fix)))
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
