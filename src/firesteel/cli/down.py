"""`firesteel down [NAME]`"""

from __future__ import annotations

import asyncio

import click

from firesteel import library
from firesteel.cli import words
from firesteel.cli.documents import DoneJson
from firesteel.cli.progress import follow
from firesteel.run import Done, Service, pick


@click.command("down")
@click.argument("name", required=False)
@click.option("--all", "everything", is_flag=True, help="Stop all that run.")
@words.json_option
def command(name: str | None, everything: bool, as_json: bool) -> None:
    """Stop NAME, and wait until its processes are gone and its memory is back."""
    running = library.services()
    services = running if everything or not (name or running) else [pick(library.home(), name)]
    done = asyncio.run(_stop(services))
    if as_json:
        words.print_json(DoneJson(done=done))
    elif not services:
        click.echo("nothing is running")


async def _stop(services: list[Service]) -> list[str]:
    done = []
    for service in services:
        async for event in follow(library.down(service)):
            if isinstance(event, Done):
                done.append(event.text)
    return done
