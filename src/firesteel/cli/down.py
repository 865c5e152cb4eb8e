"""`firesteel down [NAME]`"""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from firesteel import library
from firesteel.cli.options import common
from firesteel.cli.output.documents import DoneJson
from firesteel.cli.output.progress import follow
from firesteel.edge.files import text_files
from firesteel.errors import UsageError
from firesteel.run import PhaseDone, Service, pick
from firesteel.service_file import asks, read_service_file


@click.command("down")
@click.argument("name", required=False)
@click.option("--all", "everything", is_flag=True, help="Stop all that run.")
@click.option(
    "-f", "--file", "path", type=click.Path(path_type=Path), help="Stop the models of a service file."
)
@common.json_option
def command(name: str | None, everything: bool, path: Path | None, as_json: bool) -> None:
    """Stop NAME, or all of a service file, and wait until the processes are gone and their memory is back."""
    if path and everything:
        raise UsageError("--all stops what is in no file, too", next="firesteel down --all")
    services = _of_file(path, name) if path else _of_all(name, everything)
    done = asyncio.run(_stop(services))
    if as_json:
        common.print_json(DoneJson(done=done))
    elif not services:
        click.echo(f"nothing of {path} is running" if path else "nothing is running")


def _of_all(name: str | None, everything: bool) -> list[Service]:
    running = library.services()
    return running if everything or not (name or running) else [pick(library.home(), name)]


def _of_file(path: Path, name: str | None) -> list[Service]:
    """What the file starts and nothing else; what is at a `url` is not ours to stop."""
    known = asks(
        read_service_file(str(path), text_files.read_text(path, next="firesteel ps, for all that runs"))
    )
    if name and name not in known:
        raise UsageError(
            f"{path} starts no `{name}`; it has {', '.join(known)}", next="firesteel ps, for all that runs"
        )
    return [each for each in library.services() if each.name in ([name] if name else known)]


async def _stop(services: list[Service]) -> list[str]:
    done = []
    for service in services:
        async for event in follow(library.down(service)):
            if isinstance(event, PhaseDone):
                done.append(event.text)
    return done
