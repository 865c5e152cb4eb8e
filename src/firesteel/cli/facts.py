"""`firesteel facts TABLE`"""

from __future__ import annotations

import click

from firesteel.cli.options import common
from firesteel.cli.output.documents import FactsJson, FactsRowJson, FactsSpanJson
from firesteel.cli.output.show import out, table
from firesteel.rules import CompatibilityRow, CompatibilityTable, SupportRange, compatibility

_FARES = {"stop": "stops", "warn": "hurts", "note": "see", None: "no objection"}


@click.command("facts")
@click.argument("name", metavar="TABLE", default="sm121")
@common.json_option
def command(name: str, as_json: bool) -> int:
    """What works on a machine, release by release, as the rules see it.

    TABLE is sm121: kernels, formats and flags of vLLM on a GB10.
    """
    found = compatibility(name)
    if as_json:
        common.print_json(_document(name, found))
        return 0
    out.print(found.title)
    rows = [
        (row.what, row.guides, "\n".join(_span(span) for span in row.spans), row.now) for row in found.rows
    ]
    out.print(table(("what", "guides say", "vLLM releases", "now"), rows))
    out.print("firesteel check --explain RULE tells who saw it, and when")
    return 0


def _span(span: SupportRange) -> str:
    until = f"to {span.last}" if span.last else "on"
    which = span.first if span.first == span.last else f"{span.first} {until}"
    return f"{which}: {_FARES[span.level]}" + (f" ({', '.join(span.rules)})" if span.rules else "")


def _document(name: str, found: CompatibilityTable) -> FactsJson:
    return FactsJson(table=name, title=found.title, rows=[_row(row) for row in found.rows])


def _row(row: CompatibilityRow) -> FactsRowJson:
    spans = [
        FactsSpanJson(first=span.first, last=span.last, level=span.level, rules=list(span.rules))
        for span in row.spans
    ]
    return FactsRowJson(what=row.what, guides=row.guides, now=row.now, spans=spans)
