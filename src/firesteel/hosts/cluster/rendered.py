"""`render` of a launch over several hosts: a file for each, or a LeaderWorkerSet for Kubernetes. Pure.

The hosts are those of the cluster, or, where none were added, two to eight Sparks as NVIDIA's playbook joins
them (connect-two-sparks, 2026-07-21).
"""

from __future__ import annotations

from collections.abc import Sequence

from firesteel import render
from firesteel.catalog.image import Images
from firesteel.catalog.launches import on_rank
from firesteel.errors import UsageError
from firesteel.hosts.cluster.rank_specs import as_rank
from firesteel.hosts.cluster.ranks import RankHost
from firesteel.hosts.cluster.rendered_rpc import RPC_FORMS, head_file, worker_file
from firesteel.planner.propose import Proposal
from firesteel.planner.rendered import launch_facts
from firesteel.render import Cluster, LaunchFacts
from firesteel.render.kubernetes import LEADER_ADDRESS, WORKER_INDEX, leader_worker_set
from firesteel.render.launch_facts import comments, rank_alone
from firesteel.values import Value, replace

_FORMS = {
    "docker": (render.docker, "sh"),
    "compose": (render.compose, "compose.yaml"),
    "systemd": (render.systemd, "service"),
    "quadlet": (render.quadlet, "container"),
}
BY_NODE = tuple(_FORMS)
_RANK_FLAGS = ("nnodes", "node-rank", "master-addr", "dist-init-addr")


class NodeFile(Value):
    host: str
    rank: int
    file: str
    """`spark1.compose.yaml`"""
    text: str


def usual_hosts(count: int) -> tuple[RankHost, ...]:
    rail, hcas = "enp1s0f1np1", ("rocep1s0f1", "roceP2p1s0f1")
    return tuple(
        RankHost(f"spark{rank + 1}", rank, f"192.168.100.{10 + rank}", rail, (rail,), hcas)
        for rank in range(count)
    )


def render_by_node(
    proposal: Proposal, hosts: Sequence[RankHost], form: str, images: Images, rpc_program: str = ""
) -> tuple[NodeFile, ...]:
    """The head first; it is started last. `rpc_program`: llama.cpp's, on the nodes."""
    is_rpc = proposal.plan.launch.engine == "llamacpp"
    if is_rpc and form not in RPC_FORMS:
        raise UsageError(
            f"llama.cpp over several hosts is not written as {form}", next=f"--as {' or '.join(RPC_FORMS)}"
        )
    write, suffix = _FORMS[form]
    facts = _facts(proposal, images)
    files = []
    for host in hosts:
        launch = rank_alone(as_rank(proposal, hosts, host.rank).plan.launch)
        if not is_rpc:
            text = write(launch, facts)
        elif host.rank:
            text = worker_file(launch, host, form, images, rpc_program)
        else:
            text = head_file(launch, facts, form, images)
        text = _on_host(host, len(hosts), is_rpc) + text
        files.append(NodeFile(host.name, host.rank, f"{host.name}.{suffix}", text))
    return tuple(files)


def render_for_kubernetes(
    proposal: Proposal, hosts: Sequence[RankHost], images: Images, cluster: Cluster | None = None
) -> str:
    if proposal.plan.launch.engine == "llamacpp":
        raise UsageError(
            "llama.cpp over several hosts is not written for Kubernetes",
            next=f"--as {' or '.join(RPC_FORMS)}",
        )
    pods = [replace(host, address=LEADER_ADDRESS) for host in hosts]
    leader, worker = (as_rank(proposal, pods, rank).plan.launch for rank in (0, 1))
    worker = on_rank(worker, {"node-rank": WORKER_INDEX}, {})
    return leader_worker_set(leader, worker, _facts(proposal, images), len(hosts), cluster or Cluster())


def _facts(proposal: Proposal, images: Images) -> LaunchFacts:
    """A recipe's words about ranks are about the launch before it had any."""
    facts = launch_facts(proposal, images)
    reasons = {name: why for name, why in facts.flag_reasons.items() if name not in _RANK_FLAGS}
    return replace(facts, flag_reasons=reasons)


def _on_host(host: RankHost, count: int, is_rpc: bool) -> str:
    order = "last, when all others run" if host.rank == 0 else "before the head"
    where = f"On {host.name} ({host.address} on {host.interface})"
    lines = [f"{where}: rank {host.rank} of {count}; start it {order}"]
    if not is_rpc:
        lines += ["A lost rank hangs the others: stop and start all then, as `firesteel up --cluster` does"]
    return "".join(f"{line}\n" for line in comments(lines))
