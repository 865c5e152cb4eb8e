"""A proposal over several hosts -> the exact command of every rank: `ranks.json`, or the dry run."""

from __future__ import annotations

from collections.abc import Sequence

from firesteel.catalog.launches import on_rank, openmp_environment
from firesteel.edge.home import Home, expand_home
from firesteel.hosts.cluster.check import JoinedHosts
from firesteel.hosts.cluster.ranks import (
    RPC_PORT,
    ClusterSpec,
    FallbackSpec,
    RankHost,
    RankSpec,
    RpcProgram,
    execute_timeout_s,
    find_rpc_program,
    rank_launch,
    transport_of,
)
from firesteel.launch import Command, Launch, Step, container_name
from firesteel.planner.propose import Proposal
from firesteel.run.spec import make_steps
from firesteel.values import replace

_WORKER_GRACE_S = 15.0


def on_cluster(proposal: Proposal, cluster: JoinedHosts, rank: int = 0) -> Proposal:
    """The proposal as one rank runs it."""
    return as_rank(proposal, cluster.rank_hosts, rank, cluster.allows_tcp)


def as_rank(proposal: Proposal, hosts: Sequence[RankHost], rank: int, allows_tcp: bool = False) -> Proposal:
    plan = proposal.plan
    launch = rank_launch(plan.launch, hosts, rank, allows_tcp)
    if launch.engine == "vllm":
        limit_s = execute_timeout_s(plan.longest_prefill_s)
        launch = on_rank(launch, {}, {"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": str(limit_s)})
    return replace(proposal, plan=replace(plan, launch=launch))


def cluster_spec(proposal: Proposal, home: Home, cluster: JoinedHosts, rpc: RpcProgram | None) -> ClusterSpec:
    """`proposal`: as it was planned, without a rank."""
    launch, floor = proposal.plan.launch, proposal.plan.host.keep_free_bytes // 2
    head, *workers = cluster.rank_hosts
    name = container_name(launch.name)
    return ClusterSpec(
        name=launch.name,
        engine=launch.engine,
        transport=transport_of(cluster.rank_hosts),
        ranks=(
            RankSpec(
                head.name, 0, (), {}, head.rails, ("docker", "stop", name) if launch.container else (),
                peers=_peers(cluster, head), floor_bytes=floor,
            ),
            *(
                _rpc_rank(launch, member, rpc, cluster, floor)
                if rpc
                else _engine_rank(proposal, home, cluster, member)
                for member in workers
            ),
        ),
    )  # fmt: skip


def fallback_spec(proposal: Proposal, home: Home) -> FallbackSpec:
    """Of a proposal for this host alone, with the name and the port of the service."""
    launch, command = proposal.plan.launch, make_steps(proposal, home)[-1].command
    recipe = proposal.recipe.name if proposal.recipe else launch.model
    stop = ("docker", "stop", container_name(launch.name)) if launch.container else ()
    return FallbackSpec(recipe, expand_home(command.argv), dict(command.env), stop)


def _rpc_rank(
    launch: Launch, member: RankHost, rpc: RpcProgram, cluster: JoinedHosts, floor_bytes: int
) -> RankSpec:
    threads = max(1, cluster.check.facts[member.name].cores - 1)
    program = f"~/{rpc.node_folder}/{rpc.path.name}"
    return RankSpec(
        member.name,
        member.rank,
        (program, "-H", member.address, "-p", str(RPC_PORT), "-t", str(threads)),
        openmp_environment(launch),
        member.rails,
        listens=(member.address, RPC_PORT),
        peers=_peers(cluster, member),
        floor_bytes=floor_bytes,
    )


def _engine_rank(proposal: Proposal, home: Home, cluster: JoinedHosts, member: RankHost) -> RankSpec:
    """vLLM or SGLang: the head's command with this host's rank, interfaces and folders."""
    own = on_cluster(proposal, cluster, member.rank)
    command = make_steps(own, home)[-1].command
    launch = own.plan.launch

    return RankSpec(
        member.name,
        member.rank,
        tuple(cluster.on_node(word, member.name) for word in expand_home(command.argv)),
        {name: cluster.on_node(value, member.name) for name, value in command.env.items()},
        member.rails,
        ("docker", "stop", container_name(launch.name)) if launch.container else (),
        peers=_peers(cluster, member),
        floor_bytes=proposal.plan.host.keep_free_bytes // 2,
        grace_s=_WORKER_GRACE_S,
    )


def _peers(cluster: JoinedHosts, member: RankHost) -> tuple[str, ...]:
    return tuple(other.address for other in cluster.rank_hosts if other.name != member.name)


def cluster_steps(proposal: Proposal, home: Home, cluster: JoinedHosts) -> tuple[Step, ...]:
    """Workers first, then the head, as the runner starts them."""
    planned, proposal = proposal, on_cluster(proposal, cluster)
    program = proposal.plan.launch.program
    rpc = find_rpc_program(program) if program and proposal.plan.launch.engine == "llamacpp" else None
    spec = cluster_spec(planned, home, cluster, rpc)
    *first, last = make_steps(proposal, home)
    workers = [
        Step(Command(rank.argv, dict(rank.env)), f"rank {rank.rank}, with a lease of {rank.lease_s:.0f} s",
             host=rank.host)
        for rank in spec.ranks[1:]
    ]  # fmt: skip
    head = Step(last.command, f"rank 0: {last.why}", last.undo, last.expects, cluster.head)
    return (*(Step(s.command, s.why, s.undo, s.expects, cluster.head) for s in first), *workers, head)
