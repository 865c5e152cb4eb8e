"""`firesteel logs [NAME]`"""

from __future__ import annotations

import click

from firesteel import library
from firesteel.cli import words
from firesteel.cli.documents import LogsJson
from firesteel.errors import FiresteelError, UsageError
from firesteel.run import all_services, pick


@click.command("logs")
@click.argument("name", required=False)
@click.option(
    "-n",
    "--lines",
    "count",
    type=click.IntRange(1),
    default=50,
    show_default=True,
    help="Lines from the end.",
)
@words.json_option
def command(name: str | None, count: int, as_json: bool) -> None:
    """What the engine of NAME printed; it stays readable after `down`."""
    home = library.home()
    running = [service.name for service in all_services(home)]
    kept = (
        sorted(path.parent.name for path in home.services.glob("*/engine.log"))
        if home.services.is_dir()
        else []
    )
    if name is None and not running and len(kept) == 1:
        name = kept[0]
    if name is None or name not in kept:
        if name is not None and name not in running:
            known = f"; there is {', '.join(kept)}" if kept else ""
            raise UsageError(f"no log is kept of `{name}`{known}", next="firesteel ps")
        name = pick(home, name).name
    path = home.services / name / "engine.log"
    if not path.exists():
        raise FiresteelError(f"{name} has printed nothing yet", next="firesteel ps")
    lines = path.read_text(errors="replace").splitlines()[-count:]
    if as_json:
        words.print_json(LogsJson(name=name, path=str(path), lines=lines))
        return
    for line in lines:
        click.echo(line)
    click.echo(f"# {path}", err=True)
