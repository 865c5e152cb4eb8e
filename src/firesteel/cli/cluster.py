"""`firesteel cluster add | list | check | stage | remove`"""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path

import click

from firesteel.cli import options
from firesteel.cli.output.doctor import show_cluster
from firesteel.cli.output.invocation import typed
from firesteel.cli.output.progress import done_texts
from firesteel.cli.output.show import err, out, table
from firesteel.errors import HostNotReady
from firesteel.launch import Ask, Runtime
from firesteel.library import cluster, documents
from firesteel.library.cluster import CheckedCluster
from firesteel.units import show_bytes

_MARKS = {"good": "good", "note": "note", "warn": "warn", "stop": "STOP"}


@click.group("cluster")
def command() -> None:
    """Join two to eight Sparks over ssh, so that they serve one model together.

    This host is the head. Nothing is installed on a node but three small files, and what a launch needs.
    """


@command.command("add")
@click.argument("name")
@click.option(
    "--host", "address", metavar="ADDRESS", help="Reach it by this name or address (default: NAME)."
)
@click.option("--user", help="Log in as this user (default: as ssh's configuration says).")
@click.option("--port", type=click.IntRange(1, 65535), help="Use this ssh port.")
@click.option("--yes", "is_sure", is_flag=True, help="Accept its host key without asking.")
@options.json_option
def add(
    name: str, address: str | None, user: str | None, port: int | None, is_sure: bool, as_json: bool
) -> None:
    """Add the host NAME as a node."""

    def accepts(digest: str) -> bool:
        if is_sure:
            return True
        return click.confirm(f"the host key of {name} is {digest}; is that right?", err=True)

    added = asyncio.run(cluster.add_node(name, address=address, user=user, port=port, accepts=accepts))
    if as_json:
        options.print_json(documents.hosts.ClusterAddJson.of(node=added.node, facts=added.facts))
        return
    rails = [rail for rail in added.facts.rails if rail.has_carrier]
    joined = ", ".join(f"{rail.name} {rail.address or 'without an address'}" for rail in rails) or "no rail"
    out.print(
        f"{name} is {added.facts.hostname}, {added.facts.machine}, "
        f"{show_bytes(added.facts.memory_total_bytes)} of memory; {joined}"
    )
    err.print(f"copied to it: {show_bytes(added.sent_bytes)} of scripts, in {added.folder}; nothing else")
    out.print(typed("next: firesteel cluster check"), soft_wrap=True)


@command.command("list")
@options.json_option
def list_nodes(as_json: bool) -> None:
    """List the nodes."""
    nodes = cluster.all_nodes()
    if as_json:
        options.print_json(documents.hosts.ClusterListJson.of(nodes=nodes))
        return
    if not nodes:
        out.print(typed("there are no nodes; next: firesteel cluster add spark2"), soft_wrap=True)
        return
    rows = [(node.name, node.host, node.user or "-", str(node.port or "-")) for node in nodes]
    out.print(table(("name", "host", "user", "port"), rows))


@command.command("check")
@click.option("--svg", "svg", type=options.PATH, help="Draw the topology into this file.")
@click.option("--propose", is_flag=True, help="Print addresses for rails that have none, and their undo.")
@click.option("--no-measure", "is_quick", is_flag=True, help="Leave out the bandwidth.")
@options.json_option
def check(svg: Path | None, propose: bool, is_quick: bool, as_json: bool) -> int:
    """Examine every node as `doctor` does, and try every link both ways."""
    checked = asyncio.run(cluster.check_nodes(measures=not is_quick))
    found, examined = checked.links, checked.hosts
    if svg:
        svg.write_text(checked.svg_drawing)
    if as_json:
        options.print_json(documents.hosts.cluster_check_json(found, examined))
    else:
        _show(checked)
        show_cluster(examined)
        if propose:
            _propose(checked)
    if found.stops:
        first = found.stops[0]
        raise HostNotReady(f"{' and '.join(first.hosts)}: {first.text}", next=first.next)
    return HostNotReady.exit_code if examined.level == "stop" else 0


def _show(checked: CheckedCluster) -> None:
    click.echo(checked.text_drawing)
    for finding in checked.links.findings:
        where = " ".join(finding.hosts)
        click.echo(f"{_MARKS[finding.level]:<5} {finding.check:<16} {where}: {finding.text}")
        if finding.level in ("warn", "stop"):
            for label, text in (("read", finding.evidence), ("next", finding.next), ("seen", finding.source)):
                if text:
                    click.echo(f"      {label:<5} {text}")


def _propose(checked: CheckedCluster) -> None:
    files = checked.proposed_addresses
    if not files:
        click.echo("every cabled rail has an address; nothing to propose")
    for name, text in files.items():
        path = "/etc/netplan/41-firesteel-rails.yaml"
        write = f"printf %s {shlex.quote(text)} | sudo tee {path} && sudo chmod 600 {path}"
        click.echo(f"# on {name}: {write} && sudo netplan apply")
        click.echo(f"# undo on {name}: sudo rm {path} && sudo netplan apply")
        click.echo(text, nl=False)


@command.command("remove")
@click.argument("name")
@options.json_option
def remove(name: str, as_json: bool) -> None:
    """Remove the node NAME, and what was copied to it."""
    left = asyncio.run(cluster.remove_node(name))
    if as_json:
        options.print_json(documents.hosts.ClusterRemoveJson.of(name=name, left=left or None))
        return
    out.print(f"{name} is no longer a node" + (f"; {left}" if left else ""))


@command.command("stage")
@click.argument("model")
@click.option("--nodes", "count", type=click.IntRange(2, 8), help="For this many hosts (default: all).")
@options.runtime_options
@options.json_option
def stage_model(
    model: str, count: int | None, runtime: Runtime | None, engine_path: str | None, as_json: bool
) -> None:
    """Fetch MODEL here, and copy its weights and its image to the nodes."""
    plan = cluster.plan_stage(Ask(model, runtime=runtime, engine_path=engine_path), count)
    done = asyncio.run(done_texts(cluster.stage_model(plan)))
    if as_json:
        options.print_json(documents.hosts.ClusterStageJson.of(name=plan.proposal.name, done=tuple(done)))
        return
    how = f" --engine-path {shlex.quote(engine_path)}" if engine_path else " --native" if runtime else ""
    out.print(typed(f"next: firesteel up {shlex.quote(model)} --cluster{how}"), soft_wrap=True)
