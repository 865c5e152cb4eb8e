"""The dry run over several hosts: what is run on each of them, in order."""

from __future__ import annotations

from firesteel.edge.home import Home
from firesteel.hosts.cluster.joined import JoinedHosts
from firesteel.hosts.cluster.rank_specs import cluster_spec, on_cluster
from firesteel.hosts.cluster.rpc import find_rpc_program
from firesteel.launch import Command, Step
from firesteel.planner.propose import Proposal
from firesteel.run.spec import make_steps


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
