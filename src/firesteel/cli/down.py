"""`firesteel down [NAME]`"""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from firesteel.cli.options import common, complete
from firesteel.cli.output.progress import done_texts, told_on_interrupt
from firesteel.edge.files import text_files
from firesteel.edge.files.home import find_home
from firesteel.errors import UsageError
from firesteel.gateway.address import read_address
from firesteel.library import documents, run
from firesteel.run.service import Service, load, pick
from firesteel.service_file import asks, on_nodes, read_service_file


@click.command("down")
@click.argument("name", required=False, shell_complete=complete.services)
@click.option("--all", "everything", is_flag=True, help="Stop every service.")
@common.file_option("Stop the models of a service file.")
@common.json_option
def command(name: str | None, everything: bool, path: Path | None, as_json: bool) -> None:
    """Stop NAME, or all models of a service file.

    Waits until the processes have ended and their memory is free again.
    """
    if path and everything:
        raise UsageError(
            "--all also stops services that are in no file; give --all or --file", next="firesteel down --all"
        )
    services = _in_file(path, name) if path else _named(name, everything)
    with told_on_interrupt(lambda: _what_is_left(services)):
        done = asyncio.run(done_texts(*map(run.down, services)))
        done += _stop_on_nodes(path, name) if path else []
    if as_json:
        common.print_json(documents.run.DownJson(done=tuple(done)))
    elif not done:
        click.echo(f"nothing of {path} is running" if path else "nothing is running")
    if everything and (gateway := read_address(find_home())):
        ends = f"it ends by Ctrl-C where it was started, or by kill {gateway.pid}"
        click.echo(f"the gateway {gateway.url} goes on, and loads what it is asked for; {ends}", err=True)


def _named(name: str | None, everything: bool) -> list[Service]:
    running = run.services()
    return running if everything or not (name or running) else [pick(find_home(), name)]


def _in_file(path: Path, name: str | None) -> list[Service]:
    """Only what the file starts; firesteel cannot stop a server that the file names by `url`."""
    hint = "firesteel ps, to list what runs"
    file = read_service_file(str(path), text_files.read_text(path, next=hint))
    known = asks(file)
    there = on_nodes(file)
    if name and name not in known and name not in there:
        starts = ", ".join((*known, *there))
        raise UsageError(f"{path} does not start `{name}`; it starts {starts}", next=hint)
    known = {**known, **{each: model.ask for each, model in there.items()}}
    return [service for service in run.services() if service.name in ([name] if name else known)]


def _stop_on_nodes(path: Path, name: str | None) -> list[str]:
    """What the file starts on other hosts."""
    from firesteel.hosts.cluster.on_nodes import down_on_node, is_here  # ssh

    done = []
    for each, model in on_nodes(read_service_file(str(path), text_files.read_text(path))).items():
        for node, address in model.addresses.items() if name in (None, each) else ():
            if not is_here(address):
                asyncio.run(down_on_node(find_home(), model, node))
                done.append(f"{each} has stopped on {node}")
                click.echo(done[-1], err=True)
    return done


def _what_is_left(services: list[Service]) -> str:
    """As a look shows: a supervisor that was told to stop goes on stopping without us."""
    now = {service.name: load(find_home(), service.name) for service in services}
    return "; ".join(
        f"{name} is {left.phase}" if left and left.phase != "dead" else f"{name} does not run"
        for name, left in now.items()
    )
