"""`firesteel up [MODEL]`"""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from firesteel.cli.options import (
    adapter_option,
    cluster_options,
    complete_recipe,
    despite_option,
    file_option,
    json_option,
    print_json,
    runtime_options,
    size_options,
)
from firesteel.cli.output.invocation import typed
from firesteel.cli.output.progress import follow, report_view, told_on_interrupt
from firesteel.cli.output.show import err, out, plan_view
from firesteel.edge.host.signals import cancel_on_signals, interrupted_by_signals
from firesteel.errors import UsageError
from firesteel.launch import LOOPBACK, Ask, EngineName
from firesteel.library import documents, run
from firesteel.library.run import ServiceReady, UpPlan
from firesteel.units import show_bytes

if TYPE_CHECKING:
    from firesteel.library.run import NodeUp


@click.command("up")
@click.argument("models", metavar="[MODEL]", nargs=-1, shell_complete=complete_recipe)
@file_option("Start the models of a service file.")
@size_options
@click.option("--engine", type=click.Choice(get_args(EngineName)), help="Use only this engine.")
@click.option("--engine-version", "version", metavar="VERSION", help="Use this release of the engine.")
@runtime_options
@adapter_option
@despite_option
@click.option(
    "--listen",
    default=LOOPBACK,
    metavar="ADDRESS",
    help="Listen on this address; beyond this host, with a new key.",
)
@click.option(
    "--trust-remote-code", "trusts_code", is_flag=True, help="Run the code that comes with the weights."
)
@click.option("--boot", "at_boot", is_flag=True, help="Start it at boot, too.")
@cluster_options
@click.option(
    "--allow-tcp", "allows_tcp", is_flag=True, help="With --cluster: serve over TCP where RDMA is not used."
)
@click.option(
    "--fallback", metavar="RECIPE", help="With --cluster: what this host serves alone while a node is lost."
)
@click.option("--dry-run", is_flag=True, help="Print the commands and run none.")
@json_option
def command(
    models: tuple[str, ...],
    path: Path | None,
    listen: str,
    trusts_code: bool,
    at_boot: bool,
    is_cluster: bool,
    nodes: int | None,
    allows_tcp: bool,
    fallback: str | None,
    dry_run: bool,
    as_json: bool,
    **asked: Any,
) -> None:
    """Plan, check, launch and verify MODEL.

    Without MODEL on a host that has no GPU, downloads a small model and serves it on the CPU. With --file,
    MODEL is a name in that file; several may be given, and without one all of them are started.
    """
    plan = _plan(models, path, is_cluster or (nodes or 1) > 1, nodes, fallback, asked,
                 listen=listen, trusts_code=trusts_code, at_boot=at_boot, allows_tcp=allows_tcp)  # fmt: skip
    if dry_run:
        _print_steps(plan, path, as_json)
        return
    if plan.is_suggestion:
        best = plan.proposals[0]
        out.print(plan_view(best, plan.others))
        out.print(typed(f"\nnext: firesteel up {best.name}"), soft_wrap=True)
        return
    # Around everything: after an interruption, what runs must be looked up.
    with told_on_interrupt(lambda: run.what_is_left(plan.proposals)):
        started = asyncio.run(_start(plan))
        with interrupted_by_signals():  # `asyncio.run` has removed what handled them
            on_nodes = asyncio.run(run.start_on_nodes(plan)) if plan.on_nodes else {}
            if as_json:
                _print_json(plan, started, on_nodes, is_file=path is not None)
            else:
                _show(plan, started, on_nodes, is_file=path is not None)


def _plan(
    models: tuple[str, ...],
    path: Path | None,
    is_together: bool,
    nodes: int | None,
    fallback: str | None,
    asked: dict[str, Any],
    *,
    allows_tcp: bool,
    **options: Any,
) -> UpPlan:
    if path is not None:
        if any(asked.values()):
            raise UsageError("set sizes and engines in the service file", next=f"edit {path}")
        return run.plan_up_file(path, models, allows_tcp=allows_tcp, **options)
    if len(models) > 1:
        raise UsageError("give one MODEL; a service file can start several", next="firesteel up -f FILE")
    ask = Ask(models[0] if models else None, **asked)
    if is_together:
        return run.plan_up_together(ask, nodes, allows_tcp=allows_tcp, fallback=fallback, **options)
    if fallback:
        raise UsageError("--fallback is for a model over several hosts", next="give --cluster, too")
    return run.plan_up(ask, **options)


async def _start(plan: UpPlan) -> list[ServiceReady]:
    cancel_on_signals()
    return [event async for event in follow(run.start(plan)) if isinstance(event, ServiceReady)]


# --- showing ---


def _print_steps(plan: UpPlan, path: Path | None, as_json: bool) -> None:
    steps = run.steps_of(plan)
    if as_json:
        print_json(documents.run.steps_json(plan.proposals[0].name, steps))
        return
    for step in steps:
        click.echo(f"# on {step.host}: {step.why}" if plan.cluster else f"# {step.why}")
        click.echo(typed(str(step.command)))
        if step.undo and not plan.cluster:
            click.echo(f"# undo: {step.undo}")
    for model, node in plan.on_nodes:
        listen = model.addresses[node]
        click.echo(f"# on {node}: firesteel up {model.ask.name} of {path} --listen {listen}", err=True)


def _print_json(
    plan: UpPlan, started: list[ServiceReady], on_nodes: dict[str, tuple[NodeUp, ...]], *, is_file: bool
) -> None:
    if is_file:
        print_json(documents.run.up_file_json(started, plan.proposals, on_nodes))
    elif plan.cluster:
        ready = started[0]
        nodes = run.nodes_of(ready.report.name)
        print_json(documents.run.up_json(ready.report, ready.already, nodes=nodes))
    else:
        print_json(documents.run.up_json(started[0].report, started[0].already, plan.proposals[0]))


def _show(
    plan: UpPlan, started: list[ServiceReady], on_nodes: dict[str, tuple[NodeUp, ...]], *, is_file: bool
) -> None:
    for ready in started:
        _show_service(ready)
    for node, reports in on_nodes.items():
        for report in reports:
            out.print(f"{report.name} is up on {node}: {report.url}")
    if is_file:
        out.print(typed("\nnext: firesteel ps, and firesteel down --all when you are done"), soft_wrap=True)
        return
    name = started[0].report.name
    first = "firesteel ps; " if plan.cluster else ""
    out.print(typed(f"\nnext: {first}firesteel down {name}, when you are done"), soft_wrap=True)


def _show_service(ready: ServiceReady) -> None:
    name = ready.report.name
    if ready.already:
        err.print(f"{name} is already up; this is the report of its start")
    out.print(report_view(ready.report))
    for node in run.nodes_of(name):
        resident, available = show_bytes(node.resident_bytes), show_bytes(node.available_bytes)
        out.print(f"{node.host:<12} rank {node.rank}, {resident} resident, {available} available")
    if access := run.remote_access(name):
        # The line puts the key where clients look for it without showing it on the screen.
        secret = f"$(sed -n 's/^[A-Z]*_API_KEY=//p' {shlex.quote(access.secrets)})"
        click.echo(f'from other hosts  {access.url}, with the key: export FIRESTEEL_API_KEY="{secret}"')
