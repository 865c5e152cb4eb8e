"""`firesteel serve [MODEL]...`: the gateway, in the foreground until a signal ends it.

Nothing here may load pydantic, rich or the planner: this process runs for weeks, and its memory counts.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Coroutine
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import click

from firesteel.cli.options import common
from firesteel.cli.output.invocation import typed
from firesteel.edge.files.home import find_home
from firesteel.errors import UsageError
from firesteel.gateway.allocator import freeze_startup_objects, release_free_memory, retain_free_memory
from firesteel.gateway.http.server import new_loop
from firesteel.gateway.model_list import write_service_file
from firesteel.gateway.serve import ServeEvent, ServeOptions, serve_file
from firesteel.screens.grafana import write_grafana_files
from firesteel.screens.page.files import read_files
from firesteel.screens.page.run_command import run_command
from firesteel.web_origin import parse_origins

_FILE = "firesteel.yaml"
_RELEASE_PAGES_S = 5.0


@click.command("serve")
@click.argument("models", metavar="[MODEL]...", nargs=-1)
@common.file_option(f"Read this service file (default {_FILE}).")
@click.option("--listen", metavar="ADDRESS:PORT", help="Listen here, whatever the file says.")
@click.option("--port", type=click.IntRange(1, 65535), help="Short for --listen 127.0.0.1:PORT.")
@click.option("--cert", type=common.PATH, help="Use TLS with this certificate and its chain (PEM).")
@click.option("--cert-key", type=common.PATH, help="Read the certificate's key from this file.")
@click.option(
    "--cors",
    metavar="ORIGIN",
    multiple=True,
    help="Let web pages of this origin use the models, whatever the file says: https://chat.example.org,"
    " `loopback` (pages of this machine), `any` (needs keys) or `off`. May be repeated.",
)
@click.option("--keep", is_flag=True, help="Leave the models running when the gateway ends.")
@click.option(
    "--grafana",
    "grafana_folder",
    metavar="FOLDER",
    type=common.PATH,
    help="Write a Grafana dashboard and Prometheus alert rules here, and exit.",
)
@click.option("--log-prompts", is_flag=True, help="Write prompts to the request log, too.")
@common.json_option
def command(
    models: tuple[str, ...],
    path: Path | None,
    listen: str | None,
    port: int | None,
    cert: Path | None,
    cert_key: Path | None,
    cors: tuple[str, ...],
    keep: bool,
    log_prompts: bool,
    grafana_folder: Path | None,
    as_json: bool,
) -> None:
    """Serve all models of a service file at one URL.

    Models are loaded when a request asks for them, and evicted when others need their memory. With MODELs
    instead of a file, each is served as `firesteel up` would start it. Without either, firesteel.yaml in this
    folder is read.
    """
    if models and path:
        raise UsageError("give a service file or MODELs, not both", next=f"firesteel serve -f {path}")
    if listen is not None and port is not None:
        raise UsageError("--listen has a port already; give one of them", next=f"--listen {listen}")
    listen = f"127.0.0.1:{port}" if port is not None else listen
    if listen is not None:
        require_address(listen)
    if grafana_folder is not None:
        for written in write_grafana_files(grafana_folder, listen):
            click.echo(written)
        return
    file = write_service_file(models, find_home()) if models else path or _default_file()
    serve(
        ServeOptions(
            file,
            listen,
            cert,
            cert_key,
            _origins(cors),
            keep_models=keep,
            logs_prompts=log_prompts,
            page_files=read_files(),
            run_command=run_command,
        ),
        as_json,
    )


def serve(options: ServeOptions, as_json: bool, beside: Coroutine[Any, Any, None] | None = None) -> None:
    """Until a signal ends it. `beside` runs as long."""
    retain_free_memory()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_serve(options, as_json, beside))


def require_address(listen: str) -> None:
    """Repeats the check of the service file's `listen`, whose own parser would load pydantic."""
    host, _, port = listen.rpartition(":")
    try:
        ip_address(host.removeprefix("[").removesuffix("]"))
        is_valid = port.isascii() and port.isdigit() and 0 < int(port) < 65536
    except ValueError:
        is_valid = False
    if not is_valid:
        raise UsageError(
            f"--listen `{listen[:80]}` is not an address and a port; write it like 127.0.0.1:8080",
            next="--listen 127.0.0.1:8080",
        )


def _origins(words: tuple[str, ...]) -> tuple[str, ...] | None:
    """None: as the file says."""
    try:
        return parse_origins([word for word in words if word != "off"]) if words else None
    except ValueError as error:
        raise UsageError(f"--cors {error}", next="--cors loopback") from None


def _default_file() -> Path:
    file = Path(_FILE)
    if not file.exists():
        raise UsageError(f"there is no {_FILE} here, and no MODEL was given", next="firesteel serve smollm2")
    return file


async def _serve(options: ServeOptions, as_json: bool, beside: Coroutine[Any, Any, None] | None) -> None:
    ends = asyncio.Event()
    task = asyncio.ensure_future(beside) if beside else None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, ends.set)
    async for event in serve_file(options, find_home(), ends):
        _show(event, as_json)
        if event.kind == "listening":
            freeze_startup_objects()
            _release_pages()
    if task:
        task.cancel()


def _release_pages() -> None:
    release_free_memory()
    asyncio.get_running_loop().call_later(_RELEASE_PAGES_S, _release_pages)


def _show(event: ServeEvent, as_json: bool) -> None:
    if as_json and event.kind == "listening":
        # By hand, without the document's class: that would load pydantic.
        document = {"document": "firesteel.serve/1", "url": event.url, "models": list(event.models)}
        click.echo(json.dumps(document))
    click.echo(f"{event.kind:<9} {typed(event.text)}", err=True)
