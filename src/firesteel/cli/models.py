"""`firesteel models`"""

from __future__ import annotations

import click

from firesteel import library
from firesteel.cli import words
from firesteel.cli.documents import ModelsJson
from firesteel.cli.fill import host_json, model_row
from firesteel.cli.show import models_view, out
from firesteel.cli.typed import typed
from firesteel.launch import Ask


@click.command("models")
@words.host_option
@words.json_option
def command(host_name: str | None, as_json: bool) -> None:
    """What there is, does it fit, how fast it would be."""
    host = library.host(host_name)
    proposals = library.propose(Ask(), host)
    if as_json:
        words.print_json(ModelsJson(host=host_json(host), models=[model_row(each) for each in proposals]))
        return
    out.print(models_view(proposals))
    where = f" --host {host_name}" if host_name else ""
    out.print(typed(f"\nfor {host.title}, best first; next: firesteel plan {proposals[0].name}{where}"))
