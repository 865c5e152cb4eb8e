"""The checks of `verify` and the report of `up`, for people.

What a model answered is shown as plain text, whatever markup it holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from firesteel.cli.output.recipe_rows import speed_band
from firesteel.cli.output.show import bytes_band, grid, table
from firesteel.units import show_bytes, show_rate

if TYPE_CHECKING:
    from firesteel.run.report import Compared, Report
    from firesteel.run.verify.checks import CheckResult


def proofs_view(checks: Iterable[CheckResult]) -> Group:
    checks = tuple(checks)
    rows = [(Text(check.name), _status(check), Text(check.observed)) for check in checks]
    shown: list[RenderableType] = [table(("check", "", "result"), rows)]
    if any(not (check.passed or check.fails_launch) for check in checks):
        shown.append(Text("note: not as hoped for, as often with small models; nothing depends on it", "dim"))
    return Group(*shown)


def _status(check: CheckResult) -> Text:
    if check.passed:
        return Text("ok", style="green")
    return Text("FAILED", style="bold red") if check.fails_launch else Text("note", style="yellow")


def _position(row: Compared) -> Text:
    if row.is_within:
        return Text("within")
    above = row.measured > row.planned.high
    return Text("above the plan" if above else "below the plan", style="yellow")


def report_view(report: Report) -> Group:
    compared = [
        (
            row.what,
            bytes_band(row.planned) if row.unit == "bytes" else speed_band(row.planned),
            show_bytes(round(row.measured)) if row.unit == "bytes" else show_rate(row.measured),
            _position(row),
        )
        for row in report.compared
    ]
    ready = f"{report.start_s:.1f} s after the launch; first token after {report.first_token_ms:.0f} ms"
    service = grid([("url", report.url), ("model", report.model), ("ready", ready), ("log", report.log)])
    return Group(
        proofs_view(report.checks),
        Text(),
        table(("figure", "planned", "measured", ""), compared),
        Text(),
        service,
    )
