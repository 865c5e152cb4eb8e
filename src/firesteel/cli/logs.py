"""`firesteel logs [NAME]`"""

from __future__ import annotations

import click

from firesteel import library
from firesteel.cli.options import common
from firesteel.run import last_lines


@click.command("logs")
@click.argument("name", required=False)
@click.option(
    "-n",
    "--lines",
    "count",
    type=click.IntRange(1),
    default=50,
    show_default=True,
    help="Print this many lines from the end.",
)
@common.json_option
def command(name: str | None, count: int, as_json: bool) -> None:
    """Print what the engine of NAME wrote to its log.

    Without NAME, the log that was written to last. Logs are kept after `firesteel down`.
    """
    path = library.log_file(name)
    lines = last_lines(path, count)
    if as_json:
        from firesteel.run.documents import LogsJson

        common.print_json(LogsJson(name=path.parent.name, path=str(path), lines=tuple(lines)))
        return
    for line in lines:
        click.echo(line)
    click.echo(f"# {path}", err=True)
