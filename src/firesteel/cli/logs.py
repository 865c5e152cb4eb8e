"""`firesteel logs [NAME]`"""

from __future__ import annotations

import click

from firesteel.cli import options
from firesteel.library import documents, run


@click.command("logs")
@click.argument("name", required=False, shell_complete=options.complete_service)
@click.option(
    "-n",
    "--lines",
    "count",
    type=click.IntRange(1),
    default=50,
    show_default=True,
    help="Print this many lines from the end.",
)
@click.option("--node", metavar="NAME", help="Print what its rank on this node wrote.")
@options.json_option
def command(name: str | None, count: int, node: str | None, as_json: bool) -> None:
    """Print what the engine of NAME wrote to its log.

    Without NAME, the log that was written to last. Logs are kept after `firesteel down`.
    """
    log = run.read_log(name, count, node=node)
    if as_json:
        options.print_json(documents.run.LogsJson.of(name=log.name, path=str(log.path), lines=log.lines))
        return
    for line in log.lines:
        click.echo(line)
    click.echo(f"# {log.path}", err=True)
