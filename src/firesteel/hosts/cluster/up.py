"""`up --cluster`: check the hosts and their links, plan, stage what workers need, then `up` with a runner.

The service is an ordinary one on this host, the head: the stages of `run.up` fetch, start, verify and report,
and two more run between them.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing

from firesteel.edge.home import Home, write_state
from firesteel.edge.host import process
from firesteel.errors import DoesNotFit, FiresteelError, HostNotReady, Stopped, UsageError
from firesteel.facts.host.hardware import keep_free_bytes
from firesteel.hosts.cluster.add import all_channels
from firesteel.hosts.cluster.check import JoinedHosts, check_cluster
from firesteel.hosts.cluster.nodes import ClusterNode, all_nodes, local_name, require_nodes, target_of
from firesteel.hosts.cluster.rank_specs import cluster_spec, fallback_spec, on_cluster
from firesteel.hosts.cluster.ranks import (
    NCCL_BY_TCP,
    RankHost,
    find_rpc_program,
    rank_hosts,
    require_transport,
    stage_rpc,
    transport_of,
)
from firesteel.hosts.cluster.rendered import usual_hosts
from firesteel.hosts.cluster.stage import require_equal_files
from firesteel.launch import Ask, Runtime
from firesteel.planner.advice import require_runnable
from firesteel.planner.propose import Proposal
from firesteel.run.endpoints import listening
from firesteel.run.events import Event, PhaseDone, PhaseProgress
from firesteel.run.pull import pull_launch
from firesteel.run.service import folder_of, last_lines, load, read_status
from firesteel.run.spec import RunOptions
from firesteel.run.up import Startup, fetch, ready, run_stages, start, stopped_on_failure, verify
from firesteel.units import show_bytes
from firesteel.values import replace
from firesteel.workspace import Workspace

_LOG_LINES = 20_000
_PROOF_S = 15.0


async def read_cluster(
    home: Home, nodes: tuple[ClusterNode, ...], head: str, allows_tcp: bool = False
) -> JoinedHosts:
    """Raises HostNotReady where a host does not answer or a link is broken."""
    if head in {node.name for node in nodes}:
        raise UsageError(
            f"this host is {head} itself, and also a node", next=f"firesteel cluster remove {head}"
        )
    found = await check_cluster(all_channels(home, nodes, head), measures=False)
    if found.stops:
        first = found.stops[0]
        whose = "" if first.text.startswith(first.hosts) else f"{' and '.join(first.hosts)}: "
        raise HostNotReady(f"{whose}{first.text}", next=first.next)
    return JoinedHosts(head, nodes, found, rank_hosts(head, found.facts, found.links), allows_tcp)


async def rank_hosts_for(home: Home, count: int) -> tuple[RankHost, ...]:
    """For a launch that is only written down: this host and its nodes, or the usual ones."""
    nodes = all_nodes(home)[: count - 1]
    if len(nodes) < count - 1:
        return usual_hosts(count)
    return (await read_cluster(home, nodes, local_name(), allows_tcp=True)).rank_hosts


def propose_cluster(workspace: Workspace, ask: Ask, hosts: int) -> tuple[Proposal, ...]:
    """The ways to serve it over this many hosts, best first."""
    return workspace.propose_joined(replace(ask, sparks=hosts), workspace.host())


async def bring_up_joined(
    proposal: Proposal,
    home: Home,
    options: RunOptions,
    allows_tcp: bool = False,
    fallback: str | None = None,
) -> AsyncGenerator[Event]:
    """`bring_up` of a proposal over as many hosts as its launch has."""
    nodes = require_nodes(home, proposal.plan.launch.sparks)
    cluster = await read_cluster(home, nodes, local_name(), allows_tcp)
    alone = await asyncio.to_thread(propose_fallback, Workspace(home), proposal, fallback)
    async with aclosing(up_cluster(proposal, home, options, cluster, alone)) as events:
        async for event in events:
            yield event


def propose_fallback(workspace: Workspace, best: Proposal, name: str | None) -> Proposal | None:
    """What this host serves alone while the cluster is lost: the recipe that was named, or that the cluster's
    own recipe names, if this host can serve it."""
    wanted = name or (best.recipe.fallback if best.recipe else None)
    if wanted is None:
        return None
    runtime: Runtime | None = "native" if best.plan.launch.program else None
    ask = Ask(wanted, port=best.plan.launch.port, name=best.name, runtime=runtime)
    try:
        found = workspace.propose(ask, workspace.host())[0]
        require_runnable(found)
    except FiresteelError:
        if name:
            raise
        return None
    return found


async def up_cluster(
    proposal: Proposal,
    home: Home,
    options: RunOptions,
    cluster: JoinedHosts,
    fallback: Proposal | None = None,
) -> AsyncGenerator[Event]:
    """The last event is `ServiceReady`."""
    planned, proposal = proposal, on_cluster(proposal, cluster)
    launch, folder = proposal.plan.launch, folder_of(home, proposal.name)
    yield PhaseDone("check", _describe(cluster))
    running = load(home, proposal.name)
    if not (running and running.phase == "ready"):
        _require_memory(proposal, cluster)
    rpc = None
    if launch.engine == "llamacpp":
        assert launch.program is not None
        rpc = find_rpc_program(launch.program)
        yield PhaseProgress("pull", "copying llama.cpp's RPC server to the nodes")
        sizes = await asyncio.gather(*(stage_rpc(target_of(home, node), rpc) for node in cluster.nodes))
        for node, sent in zip(cluster.nodes, sizes, strict=True):
            if sent:
                yield PhaseDone("pull", f"{node.name}: {show_bytes(sent)} of llama.cpp's RPC server copied")

    if fallback:
        async for event in pull_launch(fallback, home):
            yield event

    async def with_runner(startup: Startup) -> AsyncGenerator[Event]:
        """What the ranks need is written, and the head's command becomes that of the runner of all hosts."""
        yield PhaseProgress("launch", "comparing the files on all hosts")
        spec = cluster_spec(planned, home, cluster, rpc)
        if fallback:
            spec = replace(spec, fallback=fallback_spec(listening(fallback, options.listen), home))
        await require_equal_files(proposal, home, cluster)
        write_state(folder / "ranks.json", spec)
        runner = (sys.executable, "-P", "-m", "firesteel.hosts.cluster.runner", str(folder), "--")
        startup.spec = replace(startup.spec, start=(*runner, *startup.spec.start))

    async def verify_transport(startup: Startup) -> AsyncGenerator[Event]:
        yield PhaseDone("launch", await _verify_transport(proposal, home, cluster))

    startup, shown = Startup(proposal, home, options, has_runner=True), 0
    stages = ready, fetch, with_runner, stopped_on_failure(start, verify_transport, verify)
    async with aclosing(run_stages(startup, *stages)) as events:
        async for event in events:
            status = read_status(folder)
            for notice in status.notices[shown:] if status else ():
                shown += 1
                yield PhaseDone("launch", notice)
            yield event


def _describe(cluster: JoinedHosts) -> str:
    names = ", ".join(f"{member.name} {member.address}" for member in cluster.rank_hosts)
    return f"{cluster.size} hosts by {transport_of(cluster.rank_hosts).upper()}: {names}"


def _require_memory(proposal: Proposal, cluster: JoinedHosts) -> None:
    """Every host holds its share; the plan has looked at this one only."""
    needed = round(proposal.plan.memory.needed.expected)
    for name, facts in cluster.check.facts.items():
        room = facts.memory_available_bytes - keep_free_bytes(facts.memory_total_bytes, None)
        if needed > room:
            raise DoesNotFit(
                f"{proposal.name} needs {show_bytes(needed)} on every host, and {name} has room for "
                f"{show_bytes(max(0, room))}",
                next=f"stop what runs on {name}, or give --context a smaller number",
            )


async def _verify_transport(proposal: Proposal, home: Home, cluster: JoinedHosts) -> str:
    """From the head's log, which is a second or two behind the engine."""
    if proposal.plan.launch.engine == "llamacpp":
        return "llama.cpp reaches its workers by TCP, or by RDMA where it was built with it"
    hcas, log = cluster.rank_hosts[0].hcas, folder_of(home, proposal.name) / "engine.log"
    deadline = process.uptime() + _PROOF_S
    while True:
        text = "\n".join(last_lines(log, _LOG_LINES))
        try:
            return f"NCCL: {require_transport(text, hcas, cluster.allows_tcp)}"
        except Stopped:
            service = load(home, proposal.name)
            is_up = service is not None and service.phase == "starting"
            if not is_up:  # why it ended is what matters
                raise FiresteelError(f"{proposal.name} ended", next="firesteel logs") from None
            if NCCL_BY_TCP in text or process.uptime() > deadline:
                raise
        await asyncio.sleep(0.2)
