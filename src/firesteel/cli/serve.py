"""`firesteel serve [MODEL]...`: the gateway, in the foreground until a signal ends it. `keys` has its keys.

Nothing here may load pydantic, rich or the planner: this process runs for weeks, and its memory counts.
"""

from __future__ import annotations

import json
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from firesteel.cli.groups import CommandGroup, or_subcommand
from firesteel.cli.options import PATH, complete_recipe, file_option, json_option
from firesteel.cli.output.invocation import typed
from firesteel.errors import UsageError
from firesteel.library import serve as library

if TYPE_CHECKING:
    from firesteel.gateway.serve import ServeEvent


_PAGE_ADDRESS = "127.0.0.1:8080"


@click.command(
    "serve",
    cls=CommandGroup,
    subcommands={"key": "firesteel.cli.keys:key", "usage": "firesteel.cli.keys:usage"},
)
@click.argument("models", metavar="[MODEL]...", nargs=-1, shell_complete=or_subcommand(complete_recipe))
@file_option(f"Read this service file (default {library.SERVICE_FILE}).")
@click.option("--listen", metavar="ADDRESS:PORT", help="Listen here, whatever the file says.")
@click.option("--port", type=click.IntRange(1, 65535), help="Short for --listen 127.0.0.1:PORT.")
@click.option("--cert", type=PATH, help="Use TLS with this certificate and its chain (PEM).")
@click.option("--cert-key", type=PATH, help="Read the certificate's key from this file.")
@click.option(
    "--cors",
    metavar="ORIGIN",
    multiple=True,
    help="Let web pages of this origin use the models, whatever the file says: https://chat.example.org,"
    " `loopback` (pages of this machine), `any` (needs keys) or `off`. May be repeated.",
)
@click.option(
    "--running",
    is_flag=True,
    help="Show the web page over the services that run, without a service file; start and stop none.",
)
@click.option("--keep", is_flag=True, help="Leave the models running when the gateway ends.")
@click.option(
    "--grafana",
    "grafana_folder",
    metavar="FOLDER",
    type=PATH,
    help="Write a Grafana dashboard and Prometheus alert rules here, and exit.",
)
@click.option("--log-prompts", is_flag=True, help="Write prompts to the request log, too.")
@json_option
def command(
    models: tuple[str, ...],
    path: Path | None,
    listen: str | None,
    port: int | None,
    cert: Path | None,
    cert_key: Path | None,
    cors: tuple[str, ...],
    running: bool,
    keep: bool,
    log_prompts: bool,
    grafana_folder: Path | None,
    as_json: bool,
) -> None:
    """Serve all models of a service file at one URL.

    Models are loaded when a request asks for them, and evicted when others need their memory. With MODELs
    instead of a file, each is served as `firesteel up` would start it. Without either, firesteel.yaml in this
    folder is read.

    `firesteel serve` has a web page at its own URL. With --running nothing is loaded: the page shows what
    `firesteel up` started, until Ctrl-C; services that start or stop meanwhile come and go. Where a gateway
    runs, its address is printed instead.
    """
    if models and path:
        raise UsageError(
            "give a service file or MODELs, not both", next=f"firesteel serve -f {shlex.quote(str(path))}"
        )
    if listen is not None and port is not None:
        raise UsageError("--listen has a port already; give one of them", next=f"--listen {listen}")
    listen = f"127.0.0.1:{port}" if port is not None else listen
    if running:
        others: dict[str, object] = {
            "a MODEL": models,
            "--file": path,
            "--cert": cert,
            "--cert-key": cert_key,
            "--cors": cors,
        }
        others |= {"--keep": keep, "--grafana": grafana_folder, "--log-prompts": log_prompts}
        if wrong := [name for name, value in others.items() if value]:
            what = f"--running only shows what runs, and does not go with {', '.join(wrong)}"
            raise UsageError(what, next="firesteel serve --running")
        _serve_page(listen or _PAGE_ADDRESS, as_json)
        return
    if grafana_folder is not None:
        for written in library.write_grafana_files(grafana_folder, listen):
            click.echo(written)
        return
    options = library.serve_options(
        models, path, listen=listen, cert=cert, cert_key=cert_key, cors=cors, keep_models=keep,
        logs_prompts=log_prompts,
    )  # fmt: skip
    library.run_gateway(options, partial(_show, as_json=as_json))


def _serve_page(listen: str, as_json: bool) -> None:
    if gateway := library.gateway():
        document = {"document": "firesteel.serve/1", "url": gateway.url, "models": gateway.models}
        click.echo(json.dumps(document) if as_json else typed(f"the gateway has the page: {gateway.url}/"))
        return
    library.run_page(library.plan_page(listen), partial(_show, as_json=as_json))


def _show(event: ServeEvent, *, as_json: bool) -> None:
    if as_json and event.kind == "listening":
        # By hand, without the document's class: that would load pydantic.
        document = {"document": "firesteel.serve/1", "url": event.url, "models": list(event.models)}
        click.echo(json.dumps(document))
    click.echo(f"{event.kind:<9} {typed(event.text)}", err=True)
