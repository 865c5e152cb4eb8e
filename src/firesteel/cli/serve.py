"""`firesteel serve [MODEL]...`: the gateway, in the foreground until it is told to end.

Nothing here may load pydantic, rich or the planner: this process carries bytes, for weeks.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from firesteel.cli.options import common
from firesteel.cli.output.invocation import typed
from firesteel.edge.files.home import Home, find_home, write_text
from firesteel.errors import UsageError
from firesteel.gateway import (
    ServeEvent,
    ServeOptions,
    freeze_startup_objects,
    new_loop,
    release_free_memory,
    retain_free_memory,
    serve_file,
)
from firesteel.run.service import load

_FILE = "firesteel.yaml"
_TIDY_S = 5.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
"""As the service file has it: what is not is refused there, and has no folder to look into."""


@click.command("serve")
@click.argument("models", metavar="[MODEL]...", nargs=-1)
@click.option("-f", "--file", "path", type=click.Path(path_type=Path), help=f"Service file ({_FILE}).")
@click.option("--listen", metavar="ADDRESS:PORT", help="Instead of what the file says.")
@click.option("--cert", type=click.Path(path_type=Path), help="TLS: the certificate with its chain, PEM.")
@click.option("--cert-key", type=click.Path(path_type=Path), help="TLS: its key, where it is another file.")
@click.option("--keep", is_flag=True, help="Leave the models running when this ends.")
@click.option("--log-prompts", is_flag=True, help="Write what is asked into the request log, too.")
@common.json_option
def command(
    models: tuple[str, ...],
    path: Path | None,
    listen: str | None,
    cert: Path | None,
    cert_key: Path | None,
    keep: bool,
    log_prompts: bool,
    as_json: bool,
) -> None:
    """One URL over all models of a service file: loaded when asked for, evicted by their bytes.

    With names of models in place of a file, each is served as `firesteel up` would start it. Without either,
    firesteel.yaml of this folder is read.
    """
    if models and path:
        raise UsageError("a service file or names, not both", next=f"firesteel serve -f {path}")
    if listen is not None:
        _insist_address(listen)
    file = _written(models, find_home()) if models else path or _found()
    manner = ServeOptions(file, listen, cert, cert_key, keep_models=keep, logs_prompts=log_prompts)
    retain_free_memory()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_serve(manner, as_json))


def _insist_address(listen: str) -> None:
    """As the service file's `listen`, whose own parser brings pydantic."""
    host, _, port = listen.rpartition(":")
    try:
        ip_address(host.removeprefix("[").removesuffix("]"))
        good = port.isascii() and port.isdigit() and 0 < int(port) < 65536
    except ValueError:
        good = False
    if not good:
        raise UsageError(
            f"--listen `{listen[:80]}` is not an address and a port; write it like 127.0.0.1:8080",
            next="--listen 127.0.0.1:8080",
        )


def _found() -> Path:
    file = Path(_FILE)
    if not file.exists():
        raise UsageError(f"there is no {_FILE} here, and no MODEL was named", next="firesteel serve smollm2")
    return file


def _written(models: tuple[str, ...], home: Home) -> Path:
    """Names as a service file; JSON is YAML too, and quotes what must be."""
    named = {_plain(each): _entry(each, home) for each in models}
    if len(named) < len(models):
        raise UsageError("two of these have one name", next="write a service file with a name for each")
    path = home.root / "serve.yaml"
    write_text(path, json.dumps({"models": named}, indent=1))
    return path


def _entry(model: str, home: Home) -> dict[str, Any]:
    """What runs by that name stays where it is: on another port it would be another launch, and stopped."""
    name = _plain(model)
    service = load(home, name) if _NAME.match(name) else None
    if service is None or service.phase == "dead":
        return {"recipe": model}
    try:
        port = urlsplit(service.spec.url).port
    except ValueError:  # a file that something else has written over
        port = None
    return {"recipe": model, "port": port} if port else {"recipe": model}


def _plain(model: str) -> str:
    """`org/Repo` is served as `Repo`."""
    return model.rpartition("/")[2]


async def _serve(manner: ServeOptions, as_json: bool) -> None:
    ends = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, ends.set)
    async for told in serve_file(manner, find_home(), ends):
        _show(told, as_json)
        if told.kind == "listening":
            freeze_startup_objects()
            _tidy()


def _tidy() -> None:
    release_free_memory()
    asyncio.get_running_loop().call_later(_TIDY_S, _tidy)


def _show(told: ServeEvent, as_json: bool) -> None:
    if as_json and told.kind == "listening":
        click.echo(json.dumps({"kind": "serve", "url": told.url, "models": list(told.models)}))
    click.echo(f"{told.kind:<9} {typed(told.text)}", err=True)
