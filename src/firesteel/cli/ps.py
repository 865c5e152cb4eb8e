"""`firesteel ps`"""

from __future__ import annotations

import click

from firesteel import library
from firesteel.cli import words
from firesteel.cli.documents import PsJson
from firesteel.cli.fill import service_json
from firesteel.cli.show import out, table
from firesteel.cli.typed import typed


@click.command("ps")
@words.json_option
def command(as_json: bool) -> None:
    """What runs."""
    rows = [service_json(service) for service in library.services()]
    if as_json:
        words.print_json(PsJson(services=rows))
        return
    if not rows:
        out.print(typed("nothing is running; next: firesteel up"))
        return
    out.print(
        table(
            ("name", "phase", "url", "pid"),
            [(row.name, row.phase, row.url, str(row.pid or "-")) for row in rows],
        )
    )
    for row in rows:
        if row.why:
            out.print(typed(f"{row.name}: {row.why}; next: {row.next}"))
