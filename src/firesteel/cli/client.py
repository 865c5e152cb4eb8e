"""`firesteel client NAME [MODEL]`"""

from __future__ import annotations

from pathlib import Path

import click

from firesteel.cli import options
from firesteel.library import clients, documents


@click.command("client")
@click.argument("name", type=click.Choice(clients.client_names()))
@click.argument("model", required=False)
@click.option("--url", help="Point the client at this URL.")
@click.option("--direct", is_flag=True, help="Bypass the gateway and use the engine's own port.")
@click.option(
    "--context", type=click.IntRange(1, 2**30), help="Set the context length in tokens (default: the plan's)."
)
@click.option("--key", metavar="VARIABLE", help="Configure a key that is in this environment variable.")
@click.option(
    "--provider", default="firesteel", show_default=True, help="Call the service this in the client."
)
@click.option(
    "--write", is_flag=True, help="Write it to the client's own file, and keep a copy of the old one."
)
@click.option("--file", type=options.FILE, help="With --write: write to this file.")
@click.option("--quiet", is_flag=True, help="Turn off telemetry, update checks and the like.")
@click.option(
    "--stable-prompt", is_flag=True, help="Leave out what changes in the prompt from session to session."
)
@options.json_option
def command(
    name: str,
    model: str | None,
    url: str | None,
    direct: bool,
    context: int | None,
    key: str | None,
    provider: str,
    write: bool,
    file: Path | None,
    quiet: bool,
    stable_prompt: bool,
    as_json: bool,
) -> None:
    """Print the configuration that points a client at a model, or write it to the client's file.

    MODEL is a model of the gateway while `firesteel serve` runs, a running service, or anything that
    `firesteel plan` takes; without it, what runs. Only the name of the key's variable is written, never the
    key.
    """
    found = clients.configure_client(
        name, model, url=url, direct=direct, context=context, key=key, provider=provider, file=file,
        options=clients.offered(quiet=quiet, stable_prompt=stable_prompt),
    )  # fmt: skip
    written, backup = clients.write_client(found) if write else (False, None)
    if as_json:
        options.print_json(documents.serve.client_json(found, written, backup))
    elif write:
        click.echo(f"wrote {found.path}" if written else f"{found.path} is up to date already", err=True)
        if backup:
            click.echo(f"the old file is kept as {backup}", err=True)
    else:
        click.echo(found.text, nl=False)
        if found.path:
            click.echo(f"this belongs in {found.path}; --write puts it there", err=True)
    for note in found.notes:
        click.echo(f"note: {note}", err=True)
