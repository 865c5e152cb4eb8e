"""`firesteel ps`"""

from __future__ import annotations

from pathlib import Path

import click

from firesteel import library
from firesteel.cli import words
from firesteel.cli.documents import PsJson, ServiceJson
from firesteel.cli.fill import service_json
from firesteel.cli.show import out, table
from firesteel.cli.typed import typed
from firesteel.edge import texts
from firesteel.service_file import asks, read_service_file


@click.command("ps")
@click.option(
    "-f", "--file", "path", type=click.Path(path_type=Path), help="What of a service file runs, and what not."
)
@words.json_option
def command(path: Path | None, as_json: bool) -> None:
    """What runs."""
    rows = [service_json(service) for service in library.services()]
    if path:
        rows = _beside(path, rows)
    if as_json:
        words.print_json(PsJson(services=rows))
        return
    if not rows:
        out.print(typed("nothing is running; next: firesteel up"))
        return
    out.print(
        table(
            ("name", "phase", "url", "pid", "restarts"),
            [(row.name, row.phase, row.url, str(row.pid or "-"), str(row.restarts or "-")) for row in rows],
        )
    )
    for row in rows:
        if row.why:
            out.print(typed(f"{row.name}: {row.why}; next: {row.next}"))


def _beside(path: Path, rows: list[ServiceJson]) -> list[ServiceJson]:
    """In the file's order; what runs and is not in it comes last."""
    file = read_service_file(str(path), texts.open_text(path))
    ports = {name: ask.port for name, ask in asks(file).items()}
    running = {row.name: row for row in rows}
    idle = {
        name: _not_running(name, entry.url or f"http://127.0.0.1:{ports[name]}/v1", path)
        for name, entry in file.models.items()
    }
    return list({**idle, **running}.values())


def _not_running(name: str, url: str, path: Path) -> ServiceJson:
    return ServiceJson(
        name=name,
        phase="not running",
        url=url,
        pid=None,
        started_at=None,
        restarts=0,
        at_boot=False,
        why=None,
        next=f"firesteel up -f {path} {name}",
        log=None,
    )
