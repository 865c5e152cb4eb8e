"""`firesteel up [MODEL]`"""

from __future__ import annotations

import asyncio
import shlex
import signal
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import get_args
from urllib.parse import urlsplit

import click

from firesteel import library
from firesteel.cli.options import common
from firesteel.cli.output.documents import ReportsJson, StepJson, StepsJson
from firesteel.cli.output.fill import report_json
from firesteel.cli.output.invocation import typed
from firesteel.cli.output.progress import follow
from firesteel.cli.output.proofs import report_view
from firesteel.cli.output.show import err, out, plan_view
from firesteel.edge.files import text_files
from firesteel.errors import UsageError
from firesteel.launch import Ask, EngineName
from firesteel.rules import Proposal, insist, release
from firesteel.run import (
    LOOPBACK,
    RunOptions,
    ServiceReady,
    ServiceSpec,
    bring_up,
    listening,
    make_steps,
    pick,
    plan_all,
)
from firesteel.service_file import read_service_file


@click.command("up")
@click.argument("models", metavar="[MODEL]", nargs=-1)
@click.option(
    "-f", "--file", "path", type=click.Path(path_type=Path), help="Start the models of a service file."
)
@common.size_options
@click.option("--engine", type=click.Choice(get_args(EngineName)), help="Only ways through this engine.")
@click.option("--engine-version", "version", metavar="VERSION", help="This release of it.")
@click.option("--listen", default=LOOPBACK, metavar="ADDRESS", help="Beyond this host: with a new key.")
@click.option("--trust-remote-code", "trusts_code", is_flag=True, help="Run the code beside the weights.")
@click.option("--boot", "at_boot", is_flag=True, help="Start it with the machine, too.")
@click.option("--dry-run", is_flag=True, help="Print the commands and run none.")
@common.json_option
@click.pass_context
def command(
    ctx: click.Context,
    models: tuple[str, ...],
    path: Path | None,
    context: int | None,
    users: int | None,
    port: int | None,
    engine: EngineName | None,
    version: str | None,
    listen: str,
    trusts_code: bool,
    at_boot: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Plan, check, launch and verify MODEL: a model that answers.

    With no name and no GPU, fetches a small model and serves it on the CPU, for real. With --file MODEL is a
    name of the file, or several; without one all of them are started.
    """
    if path is not None:
        if context or users or port or engine or version:
            raise UsageError("sizes and engines stand in the service file", next=f"edit {path}")
        _up_file(path, models, RunOptions(listen, trusts_code, at_boot), dry_run, as_json)
        return
    if len(models) > 1:
        raise UsageError("one MODEL at a time, or several by a service file", next="firesteel up -f FILE")
    release_ = release(engine, version) if version else None
    model = models[0] if models else None
    ask = Ask(model, context, users, port, engine=engine, version=release_)
    proposals = library.propose(ask, library.host())
    best = proposals[0]
    manner = RunOptions(listen, trusts_code, at_boot, _again(ctx, best))
    if dry_run:
        _print_steps([best], listen, as_json)
        return
    if model is None and best.plan.host.gpus:
        out.print(plan_view(best, tuple(each for each in proposals[1:] if each.can_run)))
        out.print(typed(f"\nnext: firesteel up {best.name}"))
        return
    ready = _run([best], manner)[0]
    if as_json:
        common.print_json(report_json(ready.report, ready.already))
    else:
        _show(ready)
        out.print(typed(f"\nnext: firesteel down {ready.report.name}, when you are done"))


def _again(ctx: click.Context, best: Proposal) -> tuple[str, ...]:
    """The words that start the same again, whatever the defaults will be then."""
    named = best.recipe.name if best.recipe else best.asked
    given = {
        param.opts[-1]: ctx.params[param.name]
        for param in ctx.command.params
        if isinstance(param, click.Option) and param.name not in ("dry_run", "as_json", "path", "port")
    }
    plain = [(name, str(value)) for name, value in given.items() if value not in (None, False, LOOPBACK)]
    flags = [(name,) if value == "True" else (name, value) for name, value in plain]
    port = ("--port", str(best.plan.launch.port))
    return (named, *port, *(word for group in flags for word in group))


def _up_file(path: Path, names: tuple[str, ...], manner: RunOptions, dry_run: bool, as_json: bool) -> None:
    """All are planned together before the first is started."""
    file = read_service_file(str(path), text_files.read_text(path))
    proposals = plan_all(file, names, library.workspace(), library.services())
    if dry_run:
        _print_steps(proposals, manner.listen, as_json)
        return
    done = _run(proposals, manner)
    if as_json:
        common.print_json(ReportsJson(reports=[report_json(each.report, each.already) for each in done]))
        return
    for each in done:
        _show(each)
    out.print(typed("\nnext: firesteel ps, and firesteel down --all when you are done"))


def _show(ready: ServiceReady) -> None:
    if ready.already:
        err.print(f"{ready.report.name} is already up; this is the report of its start")
    out.print(report_view(ready.report))
    spec = pick(library.home(), ready.report.name).spec
    if spec.is_guarded_by_key:
        port = urlsplit(spec.url).port
        click.echo(f"from elsewhere  http://{socket.gethostname()}:{port}/v1, with the key: {_export(spec)}")


def _export(spec: ServiceSpec) -> str:
    """A line to paste that puts the key where clients look for it, and shows it to nobody."""
    return f"export FIRESTEEL_API_KEY=\"$(sed -n 's/^[A-Z]*_API_KEY=//p' {shlex.quote(spec.secrets)})\""


def _run(proposals: Iterable[Proposal], manner: RunOptions) -> list[ServiceReady]:
    try:
        return asyncio.run(_up(proposals, manner))
    except (asyncio.CancelledError, KeyboardInterrupt):
        # click would turn a KeyboardInterrupt into an Abort without words
        raise click.Abort("what was started is stopped again, and its memory is back") from None


async def _up(proposals: Iterable[Proposal], manner: RunOptions) -> list[ServiceReady]:
    # Whatever ends us, a closed terminal or a service manager, takes back what was started, like Ctrl-C.
    task = asyncio.current_task()
    assert task is not None
    is_told: list[bool] = []

    def cancel_once() -> None:  # an impatient second Ctrl-C must not cut the taking back short
        if not is_told:
            is_told.append(True)
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, cancel_once)
    found = []
    for proposal in proposals:
        async for event in follow(bring_up(proposal, library.home(), manner)):
            if isinstance(event, ServiceReady):
                found.append(event)
    return found


def _print_steps(proposals: list[Proposal], listen: str, as_json: bool) -> None:
    for proposal in proposals:
        insist(proposal)
    bound = [listening(proposal, listen) for proposal in proposals]
    todo = [step for proposal in bound for step in make_steps(proposal, library.home())]
    if as_json:
        rows = [
            StepJson(
                host=step.host,
                command=list(step.command.argv),
                env=dict(step.command.env),
                why=step.why,
                undo=list(step.undo.argv) if step.undo else None,
                expects=step.expects,
            )
            for step in todo
        ]
        common.print_json(StepsJson(name=proposals[0].name, steps=rows))
        return
    for step in todo:
        click.echo(f"# {step.why}")
        click.echo(typed(str(step.command)))
        if step.undo:
            click.echo(f"# undo: {step.undo}")
