"""`firesteel up [MODEL]`"""

from __future__ import annotations

import asyncio
import shlex
import socket
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args
from urllib.parse import urlsplit

import click

from firesteel.cli.options import common, complete
from firesteel.cli.output.invocation import typed
from firesteel.cli.output.progress import follow, told_on_interrupt
from firesteel.cli.output.proofs import report_view
from firesteel.cli.output.show import err, out, plan_view
from firesteel.edge.files import text_files
from firesteel.edge.files.home import find_home
from firesteel.edge.host.signals import cancel_on_signals, interrupted_by_signals
from firesteel.errors import UsageError
from firesteel.launch import Ask, EngineName
from firesteel.library import documents, plans, run
from firesteel.library.services import what_is_left
from firesteel.proposals import Proposal, require_runnable
from firesteel.run.events import Event, ServiceReady
from firesteel.run.service import pick
from firesteel.run.service_plans import plan_all
from firesteel.run.start.listen import LOOPBACK, listening
from firesteel.run.start.options import RunOptions
from firesteel.run.start.steps import make_steps
from firesteel.run.up import bring_up
from firesteel.service_file import NodeModel, ServiceFile, asks, on_nodes, read_service_file
from firesteel.workspace import find_workspace


@click.command("up")
@click.argument("models", metavar="[MODEL]", nargs=-1, shell_complete=complete.recipes)
@common.file_option("Start the models of a service file.")
@common.size_options
@click.option("--engine", type=click.Choice(get_args(EngineName)), help="Use only this engine.")
@click.option("--engine-version", "version", metavar="VERSION", help="Use this release of the engine.")
@common.runtime_options
@common.adapter_option
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
@common.cluster_options
@click.option(
    "--allow-tcp", "allows_tcp", is_flag=True, help="With --cluster: serve over TCP where RDMA is not used."
)
@click.option(
    "--fallback", metavar="RECIPE", help="With --cluster: what this host serves alone while a node is lost."
)
@click.option("--dry-run", is_flag=True, help="Print the commands and run none.")
@common.json_option
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
    if path is not None:
        if any(asked.values()):
            raise UsageError("set sizes and engines in the service file", next=f"edit {path}")
        options = RunOptions(listen, trusts_code, at_boot, str(path.absolute()))
        _up_file(path, models, options, allows_tcp, dry_run, as_json)
        return
    if len(models) > 1:
        raise UsageError("give one MODEL; a service file can start several", next="firesteel up -f FILE")
    ask = Ask(models[0] if models else None, **asked)
    if is_cluster or (nodes or 1) > 1:
        from firesteel.cli.output.cluster_up import up_over_hosts  # loads asyncio's processes and ssh

        options = RunOptions(listen, trusts_code, at_boot)
        up_over_hosts(ask, nodes, options, allows_tcp, fallback, dry_run, as_json)
        return
    if fallback:
        raise UsageError("--fallback is for a model over several hosts", next="give --cluster, too")
    best, *others = plans.propose(ask, plans.host())
    if dry_run:
        _print_steps([best], listen, as_json)
        return
    if ask.model is None and best.plan.host.gpus:
        out.print(plan_view(best, tuple(other for other in others if other.can_run)))
        out.print(typed(f"\nnext: firesteel up {best.name}"))
        return
    with told_on_interrupt(lambda: what_is_left(find_home(), [best])):
        ready = asyncio.run(_up([best], RunOptions(listen, trusts_code, at_boot)))[0]
        with interrupted_by_signals():  # `asyncio.run` has removed what handled them
            if as_json:
                common.print_json(documents.run.up_json(ready.report, ready.already, best))
            else:
                _show(ready)
                out.print(typed(f"\nnext: firesteel down {ready.report.name}, when you are done"))


def _up_file(
    path: Path, names: tuple[str, ...], options: RunOptions, allows_tcp: bool, dry_run: bool, as_json: bool
) -> None:
    """Plans all models together before the first is started."""
    file = read_service_file(str(path), text_files.read_text(path))
    proposals, elsewhere = _planned(file, names)
    if dry_run:
        _print_steps(proposals, options.listen, as_json)
        for model, node in elsewhere:
            address = model.addresses[node]
            click.echo(f"# on {node}: firesteel up {model.ask.name} of {path} --listen {address}", err=True)
        return
    # Before the first start and after the last, too: only a look tells what runs now.
    with told_on_interrupt(lambda: what_is_left(find_home(), proposals)):
        fallbacks = {name: entry.fallback_recipe for name, entry in file.models.items()}
        services = asyncio.run(_up(proposals, options, allows_tcp, fallbacks))
        others = _run_on_nodes(elsewhere)
        if as_json:
            reports = tuple(
                documents.run.up_json(ready.report, ready.already, proposal)
                for ready, proposal in zip(services, proposals, strict=True)
            )
            common.print_json(documents.run.UpFileJson(reports=reports, nodes=others))
            return
        for ready in services:
            _show(ready)
        for node, report in others.items():
            for each in report:
                out.print(f"{each.name} is up on {node}: {each.url}")
        out.print(typed("\nnext: firesteel ps, and firesteel down --all when you are done"))


def _planned(file: ServiceFile, names: tuple[str, ...]) -> tuple[list[Proposal], list[tuple[NodeModel, str]]]:
    """What this host starts, and what others do: a model with the name of its node."""
    workspace, there = find_workspace(), on_nodes(file)
    here = tuple(name for name in names if name not in there)
    proposals = []
    if asks(file) if not names else here:
        proposals = plan_all(file, here, workspace, run.services())
    wanted = [model for name, model in there.items() if not names or name in names]
    others = []
    for model in wanted:
        for node, address in model.addresses.items():
            if address == LOOPBACK:
                proposals.append(workspace.propose(model.ask, workspace.host())[0])
            else:
                others.append((model, node))
    return proposals, others


def _run_on_nodes(models: list[tuple[NodeModel, str]]) -> dict[str, tuple[documents.run.NodeUpJson, ...]]:
    from firesteel.hosts.cluster.on_nodes import up_on_node  # ssh

    reports: dict[str, tuple[documents.run.NodeUpJson, ...]] = {}
    for model, node in models:
        report = asyncio.run(up_on_node(find_home(), model, node))
        shown = documents.run.NodeUpJson(name=report["name"], url=report["url"], verified=report["verified"])
        reports[node] = (*reports.get(node, ()), shown)
    return reports


def _show(ready: ServiceReady) -> None:
    if ready.already:
        err.print(f"{ready.report.name} is already up; this is the report of its start")
    out.print(report_view(ready.report))
    spec = pick(find_home(), ready.report.name).spec
    if spec.is_guarded_by_key:
        url = f"http://{socket.gethostname()}:{urlsplit(spec.url).port}/v1"
        # The line puts the key where clients look for it without showing it on the screen.
        secret = f"$(sed -n 's/^[A-Z]*_API_KEY=//p' {shlex.quote(spec.secrets)})"
        click.echo(f'from elsewhere  {url}, with the key: export FIRESTEEL_API_KEY="{secret}"')


async def _up(
    proposals: Iterable[Proposal],
    options: RunOptions,
    allows_tcp: bool = False,
    fallbacks: Mapping[str, str | None] = MappingProxyType({}),
) -> list[ServiceReady]:
    cancel_on_signals()
    return [
        event
        for proposal in proposals
        async for event in follow(_start(proposal, options, allows_tcp, fallbacks.get(proposal.name)))
        if isinstance(event, ServiceReady)
    ]


def _start(
    proposal: Proposal, options: RunOptions, allows_tcp: bool, fallback: str | None
) -> AsyncIterator[Event]:
    if proposal.plan.launch.sparks == 1 or proposal.plan.host.joined_hosts == 1:
        return bring_up(proposal, find_home(), options)
    from firesteel.hosts.cluster.up import bring_up_joined  # ssh

    return bring_up_joined(proposal, find_home(), options, allows_tcp, fallback)


def _print_steps(proposals: list[Proposal], listen: str, as_json: bool) -> None:
    for proposal in proposals:
        require_runnable(proposal)
    bound = [listening(proposal, listen) for proposal in proposals]
    steps = [step for proposal in bound for step in make_steps(proposal, find_home())]
    if as_json:
        common.print_json(documents.run.steps_json(proposals[0].name, steps))
        return
    for step in steps:
        click.echo(f"# {step.why}")
        click.echo(typed(str(step.command)))
        if step.undo:
            click.echo(f"# undo: {step.undo}")
