"""`firesteel usage`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from firesteel.cli import options
from firesteel.cli.output.invocation import typed
from firesteel.library import documents, serve

if TYPE_CHECKING:
    from firesteel.gateway.admin.usage import UsageReport, UsageRow


@click.command("usage")
@click.option("--since", metavar="DAY", help="Begin with this day, 2026-11-01 (default: 30 days).")
@click.option("--until", metavar="DAY", help="End with this day.")
@click.option("--key", metavar="NAME", help="Show only this key.")
@click.option("--model", metavar="NAME", help="Show only this model.")
@click.option("--by", metavar="day,key,model", help="Add up by these: `--by key`, `--by day,model`.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, for a spreadsheet.")
@options.json_option
def command(
    since: str | None,
    until: str | None,
    key: str | None,
    model: str | None,
    by: str | None,
    as_csv: bool,
    as_json: bool,
) -> None:
    """Show requests and tokens by key, model and day, and what is left of budgets.

    From the gateway's own counts, also of streams that were cut. Days are those of this host's time zone.
    """
    if as_csv and as_json:
        raise click.UsageError("--csv and --json exclude each other")
    grouped = {"by": by.split(",")} if by is not None else {}
    report = serve.usage(since, until, key=key, model=model, **grouped)
    if as_json:
        options.print_json(documents.serve.UsageJson.of(report))
    elif as_csv:
        click.echo(serve.usage_as_csv(report), nl=False)
    else:
        _show(report)


def _show(report: UsageReport) -> None:
    from firesteel.cli.output.show import out, table  # slow to load, and CSV needs no table

    click.echo(f"{report.since} to {report.until}, days in {report.timezone}")
    if report.rows:
        columns = (*report.by, "requests", "prompt tokens", "answer tokens", "cached")
        rows = [_row(row, [getattr(row, name) or "(no key)" for name in report.by]) for row in report.rows]
        out.print(table(columns, [*rows, _row(report.total, ["total", *("" for _ in report.by[1:])])]))
    else:
        click.echo(typed("nothing was used; next: firesteel serve"))
    for budget in report.budgets:
        share = f"{budget.spent:,} of {budget.tokens:,} tokens this {budget.period}"
        rest = f"{budget.left:,} left; the next {budget.period} begins {budget.ends}"
        click.echo(f"{budget.key}: {share}, {rest}")


def _row(row: UsageRow, names: list[str]) -> list[str]:
    counts = (row.requests, row.prompt_tokens, row.completion_tokens, row.cached_tokens)
    return [*names, *(f"{count:,}" for count in counts)]
