"""`firesteel logs [NAME]`"""

from __future__ import annotations

from pathlib import Path

import click

from firesteel import library
from firesteel.cli.options import common
from firesteel.cli.output.documents import LogsJson
from firesteel.errors import FiresteelError, UsageError
from firesteel.run import last_lines


@click.command("logs")
@click.argument("name", required=False)
@click.option(
    "-n", "--lines", "count", type=click.IntRange(1), default=50, show_default=True, help="From the end."
)
@common.json_option
def command(name: str | None, count: int, as_json: bool) -> None:
    """What the engine of NAME printed; without a name, the one that wrote last. Kept after `down`."""
    path = _find(name)
    lines = last_lines(path, count)
    if as_json:
        common.print_json(LogsJson(name=path.parent.name, path=str(path), lines=lines))
        return
    for line in lines:
        click.echo(line)
    click.echo(f"# {path}", err=True)


def _find(name: str | None) -> Path:
    kept = {path.parent.name: path for path in library.home().services.glob("*/engine.log")}
    if name in kept:
        return kept[name]
    if name is not None:
        known = f"; there is {', '.join(sorted(kept))}" if kept else ""
        raise UsageError(f"no log is kept of `{name}`{known}", next="firesteel ps")
    if not kept:
        raise FiresteelError("nothing has run yet, so there is no log", next="firesteel up")
    return max(kept.values(), key=lambda path: path.stat().st_mtime)
