"""`firesteel serve [MODEL]...`: the gateway, in the foreground until it is told to end.

Nothing here may load pydantic, rich or the planner: this process carries bytes, for weeks.
"""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import click

from firesteel.cli import words
from firesteel.cli.typed import typed
from firesteel.edge.home import find_home, write_text
from firesteel.errors import UsageError
from firesteel.gateway import Manner, Told, new_loop, serve_file

_FILE = "firesteel.yaml"


@click.command("serve")
@click.argument("models", metavar="[MODEL]...", nargs=-1)
@click.option("-f", "--file", "path", type=click.Path(path_type=Path), help=f"Service file ({_FILE}).")
@click.option("--listen", metavar="ADDRESS:PORT", help="Instead of what the file says.")
@click.option("--cert", type=click.Path(path_type=Path), help="TLS: the certificate with its chain, PEM.")
@click.option("--cert-key", type=click.Path(path_type=Path), help="TLS: its key, where it is another file.")
@click.option("--keep", is_flag=True, help="Leave the models running when this ends.")
@click.option("--log-prompts", is_flag=True, help="Write what is asked into the request log, too.")
@words.json_option
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
    file = _written(models) if models else path or _found()
    manner = Manner(file, listen, cert, cert_key, keeps=keep, logs_prompts=log_prompts)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_serve(manner, as_json))


def _found() -> Path:
    file = Path(_FILE)
    if not file.exists():
        raise UsageError(f"there is no {_FILE} here, and no MODEL was named", next="firesteel serve smollm2")
    return file


def _written(models: tuple[str, ...]) -> Path:
    """Names as a service file; JSON is YAML too, and quotes what must be."""
    named = {_plain(each): {"recipe": each} for each in models}
    if len(named) < len(models):
        raise UsageError("two of these have one name", next="write a service file with a name for each")
    path = find_home().root / "serve.yaml"
    write_text(path, json.dumps({"models": named}, indent=1))
    return path


def _plain(model: str) -> str:
    """`org/Repo` is served as `Repo`."""
    return model.rpartition("/")[2]


async def _serve(manner: Manner, as_json: bool) -> None:
    ends = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, ends.set)
    async for told in serve_file(manner, find_home(), ends):
        _show(told, as_json)


def _show(told: Told, as_json: bool) -> None:
    if as_json and told.what == "listening":
        click.echo(json.dumps({"kind": "serve", "url": told.url, "models": list(told.models)}))
    click.echo(f"{told.what:<9} {typed(told.words)}", err=True)
