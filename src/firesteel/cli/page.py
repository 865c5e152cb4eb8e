"""`firesteel page`: the web page over services that `firesteel up` started, without a service file.

A gateway that only looks: each service is a model at a URL of its own, so nothing is loaded, unloaded or
stopped. Nothing here may load pydantic, as in `serve`.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import click

from firesteel.cli.options import common
from firesteel.cli.output.invocation import typed
from firesteel.cli.serve import require_address, serve
from firesteel.edge.files.home import Home, find_home, write_text
from firesteel.errors import UsageError
from firesteel.gateway.address import read_address
from firesteel.gateway.serve import ServeOptions
from firesteel.run.service import Service, all_services
from firesteel.screens.page.files import read_files
from firesteel.screens.page.run_command import run_command

_LOOK_S = 2.0
_PHASES = ("starting", "ready", "hung", "unkept")


@click.command("page")
@click.option("--listen", metavar="ADDRESS:PORT", default="127.0.0.1:8080", help="Listen here.")
@common.json_option
def command(listen: str, as_json: bool) -> None:
    """Show the web page over the services that run.

    `firesteel serve` has the page at its own URL; this command prints it then, and ends. Otherwise it serves
    the page over what `firesteel up` started, until Ctrl-C; services that start or stop meanwhile come and
    go. It never starts or stops one.
    """
    home = find_home()
    if gateway := read_address(home):
        click.echo(json.dumps({"document": "firesteel.serve/1", "url": gateway.url, "models": gateway.models})
                   if as_json else typed(f"the gateway has the page: {gateway.url}/"))  # fmt: skip
        return
    require_address(listen)
    entries = _entries(home)
    if not entries:
        raise UsageError(
            "nothing runs, so there is nothing to show", next="firesteel up, or firesteel serve smollm2"
        )
    file = home.root / "page.yaml"
    _write(file, entries)
    options = ServeOptions(file, listen, keep_models=True, page_files=read_files(), run_command=run_command)
    serve(options, as_json, beside=_follow(home, file, entries))


def _entries(home: Home) -> dict[str, Any]:
    """The services that run, as models of a service file."""
    return {service.name: _entry(service) for service in all_services(home) if service.phase in _PHASES}


def _entry(service: Service) -> dict[str, Any]:
    spec = service.spec
    size = spec.expected_bytes or spec.container_bytes
    memory = {"memory": f"{size}B"} if size else {}
    return {"url": spec.url.removesuffix("/v1"), "model": spec.model, **memory}


def _write(file: Path, entries: dict[str, Any]) -> None:
    """As JSON, which is YAML too and quotes what must be quoted."""
    write_text(file, json.dumps({"models": entries}, indent=1))


async def _follow(home: Home, file: Path, entries: dict[str, Any]) -> None:
    """The gateway reads the file again when it changes. It needs one model: the last one stays."""
    while True:
        await asyncio.sleep(_LOOK_S)
        found = await asyncio.to_thread(_entries, home)
        if found and found != entries:
            entries = found
            _write(file, entries)
