"""`firesteel render MODEL --as docker`"""

from __future__ import annotations

import click

from firesteel import library
from firesteel.cli import words
from firesteel.cli.documents import RenderJson
from firesteel.launch import Ask
from firesteel.render import docker


@click.command("render")
@click.argument("model")
@click.option("--as", "form", type=click.Choice(["docker"]), default="docker", show_default=True)
@words.host_option
@words.size_options
@words.json_option
def command(
    model: str,
    form: str,
    host_name: str | None,
    context: int | None,
    users: int | None,
    port: int | None,
    as_json: bool,
) -> None:
    """The launch of MODEL as a command to paste."""
    host = library.host(host_name or "gb10")
    best = library.propose(Ask(model, context, users, port), host)[0]
    text = docker(best.plan.launch)
    if as_json:
        words.print_json(RenderJson(name=best.name, format=form, text=text))
    else:
        click.echo(text)
