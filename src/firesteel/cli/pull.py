"""`firesteel pull MODEL`"""

from __future__ import annotations

import asyncio

import click

from firesteel import library
from firesteel.cli import words
from firesteel.cli.documents import DoneJson
from firesteel.cli.progress import follow
from firesteel.rules import Proposal
from firesteel.run import Done, pull


@click.command("pull")
@click.argument("model")
@words.json_option
def command(model: str, as_json: bool) -> None:
    """Fetch the engine and the weights of MODEL now. A container's engine fetches its weights itself."""
    best = library.plan(model)[0]
    done = asyncio.run(_pull(best)) or [f"{best.name} was there already"]
    if as_json:
        words.print_json(DoneJson(done=done))
    else:
        click.echo("\n".join(done))


async def _pull(proposal: Proposal) -> list[str]:
    return [event.text async for event in follow(pull(proposal, library.home())) if isinstance(event, Done)]
