"""`firesteel facts TABLE`"""

from __future__ import annotations

import click

from firesteel.cli.options import common
from firesteel.cli.output.show import out, table
from firesteel.rules import SupportRange, compatibility

_EFFECTS = {"stop": "stops", "warn": "hurts", "note": "note", None: "no known problem"}


@click.command("facts")
@click.argument("name", metavar="TABLE", default="sm121")
@common.json_option
def command(name: str, as_json: bool) -> None:
    """Show what works on a machine, release by release, according to the rules.

    TABLE is sm121: kernels, formats and flags of vLLM on a GB10.
    """
    support = compatibility(name)
    if as_json:
        from firesteel.rules.documents import FactsJson

        common.print_json(FactsJson(table=name, title=support.title, rows=support.rows))
        return
    out.print(support.title)
    rows = [
        (row.what, row.guides, "\n".join(_span(span) for span in row.spans), row.now) for row in support.rows
    ]
    out.print(table(("what", "guides say", "vLLM releases", "now"), rows))
    out.print("`firesteel check --explain RULE` shows the sources of a rule")


def _span(span: SupportRange) -> str:
    until = f"to {span.last}" if span.last else "and later"
    releases = span.first if span.first == span.last else f"{span.first} {until}"
    return f"{releases}: {_EFFECTS[span.level]}" + (f" ({', '.join(span.rules)})" if span.rules else "")
