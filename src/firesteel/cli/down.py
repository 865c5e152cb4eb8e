"""`firesteel down [NAME]`"""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from firesteel.cli import options
from firesteel.cli.output.progress import done_texts, told_on_interrupt
from firesteel.errors import UsageError
from firesteel.library import documents, run, serve


@click.command("down")
@click.argument("name", required=False, shell_complete=options.complete_service)
@click.option("--all", "everything", is_flag=True, help="Stop every service.")
@options.file_option("Stop the models of a service file.")
@options.json_option
def command(name: str | None, everything: bool, path: Path | None, as_json: bool) -> None:
    """Stop NAME, or all models of a service file.

    Waits until the processes have ended and their memory is free again.
    """
    if path and everything:
        raise UsageError(
            "--all also stops services that are in no file; give --all or --file", next="firesteel down --all"
        )
    plan = run.plan_down_file(path, name) if path else run.plan_down(name, everything=everything)
    with told_on_interrupt(lambda: run.left_of(plan)):
        done = asyncio.run(done_texts(run.stop(plan)))
    if as_json:
        options.print_json(documents.run.DownJson.of(done=tuple(done)))
    elif not done:
        click.echo(f"nothing of {path} is running" if path else "nothing is running")
    if everything and (gateway := serve.gateway()):
        ends = f"it ends by Ctrl-C where it was started, or by kill {gateway.pid}"
        click.echo(
            f"the gateway {gateway.url} keeps running, and loads what it is asked for; {ends}", err=True
        )
