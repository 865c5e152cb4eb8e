"""`firesteel client NAME [MODEL]`"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import click

from firesteel.cli.options import common
from firesteel.edge.files import client_files
from firesteel.edge.files.home import find_home
from firesteel.errors import UsageError
from firesteel.gateway.address import read_address
from firesteel.gateway.client_target import KEY_VARIABLE, ClientTarget, find_target
from firesteel.library import documents, run
from firesteel.render import clients
from firesteel.render.clients import ClientSettings, KnownClient
from firesteel.run.endpoints import base_url
from firesteel.workspace import find_workspace

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}\Z", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}\Z", re.ASCII)


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
@click.option("--file", type=common.FILE, help="With --write: write to this file.")
@common.json_option
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
    as_json: bool,
) -> None:
    """Print the configuration that points a client at a model, or write it to the client's file.

    MODEL is a model of the gateway while `firesteel serve` runs, a running service, or anything that
    `firesteel plan` takes; without it, what runs. Only the name of the key's variable is written, never the
    key.
    """
    for value, pattern, option in (
        (provider, _NAME, "--provider"),
        (key or KEY_VARIABLE, _VARIABLE, "--key"),
    ):
        if not pattern.match(value):
            raise UsageError(
                f"`{value}` cannot be used for {option}", next=f"{option} {KEY_VARIABLE.lower()}"
            )
    gateway = None if direct else read_address(find_home())
    target = find_target(find_workspace(), run.services(), gateway, model, context)
    endpoint = replace(target.endpoint, provider=provider, key=key or target.endpoint.key)
    if url:
        base = base_url(url)
        endpoint = replace(endpoint, url=f"{base}/v1" if not urlsplit(base).path else url.rstrip("/"))
    client = clients.load_client(name)
    settings = clients.settings(name, endpoint)
    path = file or _config_path(client)
    written, backup = _write(name, client, settings, path) if write else (False, None)
    if as_json:
        _print_json(name, client, replace(target, endpoint=endpoint), settings, path, written, backup)
    elif write:
        click.echo(f"wrote {path}" if written else f"{path} is up to date already", err=True)
        if backup:
            click.echo(f"the old file is kept as {backup}", err=True)
    else:
        click.echo(clients.render_settings(settings, client.format), nl=False)
        if path:
            click.echo(f"this belongs in {path}; --write puts it there", err=True)
    for note in (*settings.notes, target.note):
        click.echo(f"note: {note}", err=True)


# --- the client's file ---


def _config_path(client: KnownClient) -> Path | None:
    if client.folder is None or client.new_file is None:
        return None
    folder = client.folder
    return client_files.settings_path(folder.variable, folder.default, client.files, client.new_file)


def _write(
    name: str, client: KnownClient, settings: ClientSettings, path: Path | None
) -> tuple[bool, Path | None]:
    if path is None or client.format == "env":
        raise UsageError(
            f"{client.title} is configured by environment variables and has no file of its own",
            next=f"firesteel client {name}",
        )
    before = client_files.read(path)
    after = clients.merge_settings(before, settings, client.format, str(path))
    return (True, client_files.replace(path, after)) if after != before else (False, None)


def _print_json(
    name: str,
    client: KnownClient,
    target: ClientTarget,
    settings: ClientSettings,
    path: Path | None,
    written: bool,
    backup: Path | None,
) -> None:
    common.print_json(
        documents.client.ClientJson.of(
            client,
            target.endpoint,
            client=name,
            key_variable=target.endpoint.key,
            text=clients.render_settings(settings, client.format),
            path=str(path) if path else None,
            written=written,
            backup=str(backup) if backup else None,
            taken=target.kind,
            notes=(*settings.notes, target.note),
        )
    )
