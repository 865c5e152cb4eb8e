"""`firesteel logs [NAME]`"""

from __future__ import annotations

import socket
from pathlib import Path

import click

from firesteel.cli.options import common, complete
from firesteel.errors import UsageError
from firesteel.library import documents, run
from firesteel.run.service import last_lines


@click.command("logs")
@click.argument("name", required=False, shell_complete=complete.services)
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
@common.json_option
def command(name: str | None, count: int, node: str | None, as_json: bool) -> None:
    """Print what the engine of NAME wrote to its log.

    Without NAME, the log that was written to last. Logs are kept after `firesteel down`.
    """
    path = run.log_file(name)
    if node:
        path = _of_node(path.parent, node)
    lines = last_lines(path, count)
    if as_json:
        service = path.parent.parent if node and path.parent.name == "ranks" else path.parent
        common.print_json(documents.run.LogsJson(name=service.name, path=str(path), lines=tuple(lines)))
        return
    for line in lines:
        click.echo(line)
    click.echo(f"# {path}", err=True)


def _of_node(folder: Path, node: str) -> Path:
    """The copy that is kept here: it is there when the node is not. The head's log is the service's own."""
    logs = {path.stem: path for path in sorted((folder / "ranks").glob("*.log"))}
    if node in logs:
        return logs[node]
    if node == socket.gethostname().partition(".")[0]:
        return folder / "engine.log"
    there = f"; there are logs of {', '.join(logs)}" if logs else "; it runs on this host alone"
    raise UsageError(f"{folder.name} has no rank on `{node}`{there}", next=f"firesteel logs {folder.name}")
