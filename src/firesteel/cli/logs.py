"""`firesteel logs [NAME]`"""

from __future__ import annotations

from pathlib import Path

import click

from firesteel import library
from firesteel.cli.options import common
from firesteel.errors import FiresteelError, UsageError
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
    path = _find(name)
    lines = last_lines(path, count)
    if as_json:
        from firesteel.run.documents import LogsJson

        common.print_json(LogsJson(name=path.parent.name, path=str(path), lines=tuple(lines)))
        return
    for line in lines:
        click.echo(line)
    click.echo(f"# {path}", err=True)


def _find(name: str | None) -> Path:
    logs = {path.parent.name: path for path in library.home().services.glob("*/engine.log")}
    if name in logs:
        return logs[name]
    if name is not None:
        known = f"; there are logs of {', '.join(sorted(logs))}" if logs else ""
        raise UsageError(f"there is no log of `{name}`{known}", next="firesteel ps")
    if not logs:
        raise FiresteelError("nothing has run yet, so there is no log", next="firesteel up")
    return max(logs.values(), key=lambda path: path.stat().st_mtime)
