"""`firesteel facts TABLE`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from firesteel.cli import options
from firesteel.cli.output.show import out, table
from firesteel.library import check, documents

if TYPE_CHECKING:
    from firesteel.rules.tables import CompatibilityTable, FactTable, SupportRange

_EFFECTS = {"stop": "stops", "warn": "hurts", "note": "note", None: "no known problem"}


@click.command("facts")
@click.argument("name", metavar="TABLE", default="sm121")
@options.json_option
def command(name: str, as_json: bool) -> None:
    """Show what is known about a DGX Spark, with source and day.

    \b
    TABLE is sm121      kernels, formats and flags of vLLM on a GB10, release by release
             hardware   the chip beside a B200
             drivers    drivers and kernels
             images     container images
             variables  environment variables, by release
    """
    if name == "sm121":
        _show_support(name, check.compatibility(name), as_json)
    else:
        _show(name, check.fact_table(name), as_json)


def _show_support(name: str, support: CompatibilityTable, as_json: bool) -> None:
    if as_json:
        options.print_json(documents.check.FactsJson.of(support, table=name))
        return
    out.print(support.title)
    rows = [
        (row.what, row.guides, "\n".join(_span(span) for span in row.spans), row.now) for row in support.rows
    ]
    out.print(table(("what", "guides say", "vLLM releases", "now"), rows))
    out.print("`firesteel check --explain RULE` shows the sources of a rule")
    out.print(f"more tables: {', '.join(check.fact_tables())}")


def _show(name: str, found: FactTable, as_json: bool) -> None:
    if as_json:
        options.print_json(documents.check.FactTableJson.of(found, table=name))
        return
    out.print(found.title)
    rows = [
        (row.what, *row.values, row.note or "", f"{row.confidence} {row.source.seen}\n{row.source.url}")
        for row in found.rows
    ]
    out.print(table((*found.columns, "note", "source"), rows))


def _span(span: SupportRange) -> str:
    until = f"to {span.last}" if span.last else "and later"
    releases = span.first if span.first == span.last else f"{span.first} {until}"
    return f"{releases}: {_EFFECTS[span.level]}" + (f" ({', '.join(span.rules)})" if span.rules else "")
