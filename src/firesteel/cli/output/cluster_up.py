"""`up --cluster` at the terminal: the same progress and report as `up`, and a line for each host."""

from __future__ import annotations

import asyncio

import click

from firesteel.cli.options import common
from firesteel.cli.output.invocation import typed
from firesteel.cli.output.progress import follow, told_on_interrupt
from firesteel.cli.output.proofs import report_view
from firesteel.cli.output.show import out
from firesteel.edge.files.home import find_home
from firesteel.edge.host.signals import cancel_on_signals, interrupted_by_signals
from firesteel.hosts.cluster.joined import JoinedHosts
from firesteel.hosts.cluster.nodes import local_name, require_nodes
from firesteel.hosts.cluster.steps import cluster_steps
from firesteel.hosts.cluster.up import propose_cluster, propose_fallback, read_cluster, up_cluster
from firesteel.launch import Ask
from firesteel.library import documents
from firesteel.library.services import what_is_left
from firesteel.proposals import Proposal, require_runnable
from firesteel.run.cluster_status import read_status
from firesteel.run.events import ServiceReady
from firesteel.run.service import folder_of
from firesteel.run.start.options import RunOptions
from firesteel.units import show_bytes
from firesteel.workspace import find_workspace


def up_over_hosts(
    ask: Ask,
    count: int | None,
    options: RunOptions,
    allows_tcp: bool,
    fallback: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """`count`: of hosts, this one included; None: all nodes."""
    home = find_home()
    nodes = require_nodes(home, count)
    cluster = asyncio.run(read_cluster(home, nodes, local_name(), allows_tcp))
    best = propose_cluster(find_workspace(), ask, cluster.size)[0]
    if dry_run:
        require_runnable(best)
        _print_steps(best, cluster, as_json)
        return
    with told_on_interrupt(lambda: what_is_left(home, [best])):
        alone = propose_fallback(find_workspace(), best, fallback)
        ready = asyncio.run(_up(best, options, cluster, alone))
    with interrupted_by_signals():  # `asyncio.run` has removed what handled them
        _show(ready, as_json)


async def _up(
    proposal: Proposal, options: RunOptions, cluster: JoinedHosts, fallback: Proposal | None
) -> ServiceReady:
    cancel_on_signals()
    events = follow(up_cluster(proposal, find_home(), options, cluster, fallback))
    return [event async for event in events if isinstance(event, ServiceReady)][-1]


def _show(ready: ServiceReady, as_json: bool) -> None:
    status = read_status(folder_of(find_home(), ready.report.name))
    if as_json:
        document = documents.run.up_json(ready.report, ready.already)
        common.print_json(document.model_copy(update={"nodes": status.nodes if status else ()}))
        return
    out.print(report_view(ready.report))
    for node in status.nodes if status else ():
        resident, available = show_bytes(node.resident_bytes), show_bytes(node.available_bytes)
        out.print(f"{node.host:<12} rank {node.rank}, {resident} resident, {available} available")
    name = ready.report.name
    out.print(typed(f"\nnext: firesteel ps; firesteel down {name}, when you are done"))


def _print_steps(proposal: Proposal, cluster: JoinedHosts, as_json: bool) -> None:
    steps = cluster_steps(proposal, find_home(), cluster)
    if as_json:
        common.print_json(documents.run.steps_json(proposal.name, steps))
        return
    for step in steps:
        click.echo(f"# on {step.host}: {step.why}")
        click.echo(typed(str(step.command)))
