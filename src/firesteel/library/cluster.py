"""The nodes of a cluster: added, listed, checked with their links, given what a launch needs, removed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import TYPE_CHECKING

from firesteel.edge.home import find_home
from firesteel.hosts.cluster import add, nodes, topology
from firesteel.hosts.cluster.check import ClusterCheck, check_cluster
from firesteel.hosts.cluster.nodes import Channel, ClusterNode
from firesteel.hosts.cluster.stage import stage
from firesteel.hosts.cluster.up import propose_cluster, read_cluster
from firesteel.hosts.doctor.nodes import ClusterExamination, examine_cluster
from firesteel.launch import Ask
from firesteel.run.events import Event
from firesteel.run.pull import pull_launch
from firesteel.values import Value
from firesteel.workspace import find_workspace

if TYPE_CHECKING:
    from firesteel.hosts.cluster.add import Added
    from firesteel.hosts.cluster.check import JoinedHosts
    from firesteel.planner.propose import Proposal


class CheckedCluster(Value):
    links: ClusterCheck
    hosts: ClusterExamination

    @property
    def text_drawing(self) -> str:
        return topology.text_drawing(self.links.facts, self.links.links)

    @property
    def svg_drawing(self) -> str:
        return topology.svg_drawing(self.links.facts, self.links.links)

    @property
    def proposed_addresses(self) -> Mapping[str, str]:
        """For rails that have none: a netplan file by host."""
        return topology.proposed_addresses(self.links.facts)


class StagePlan(Value):
    """A launch whose files the nodes shall have."""

    proposal: Proposal
    cluster: JoinedHosts


async def add_node(
    name: str,
    *,
    address: str | None = None,
    user: str | None = None,
    port: int | None = None,
    accepts: Callable[[str], bool] = lambda digest: False,
) -> Added:
    """`accepts` says whether a host key that ssh does not know yet is the right one."""
    return await add.add_node(find_home(), ClusterNode(name, address or name, user, port), accepts)


def all_nodes() -> tuple[ClusterNode, ...]:
    return nodes.all_nodes(find_home())


async def remove_node(name: str) -> str:
    """The node, and what was copied to it; what is left on it, if it could not be removed."""
    return await add.remove_node(find_home(), nodes.find_node(find_home(), name))


async def check_nodes(*, measures: bool = True) -> CheckedCluster:
    """Every node as `doctor` does, and every link both ways.

    One after the other: reading a host takes time from the bandwidth, and the links begin with new
    connections. A node that does not answer is not asked twice.
    """
    home = find_home()
    channels: list[Channel] = add.all_channels(home, nodes.require_nodes(home), nodes.local_name())
    found = await check_cluster(channels, measures)
    return CheckedCluster(found, await examine_cluster(home, without=frozenset(found.unreachable)))


def plan_stage(ask: Ask, count: int | None = None) -> StagePlan:
    """The best launch over `count` hosts; None: over all of them."""
    home = find_home()
    found = nodes.require_nodes(home, count)
    cluster = asyncio.run(read_cluster(home, found, nodes.local_name(), allows_tcp=True))
    return StagePlan(propose_cluster(find_workspace(), ask, cluster.size)[0], cluster)


async def stage_model(plan: StagePlan) -> AsyncGenerator[Event]:
    """Fetch it here, and copy its weights and its image to the nodes."""
    async for event in pull_launch(plan.proposal, find_home()):
        yield event
    async for event in stage(plan.proposal, find_home(), plan.cluster):
        yield event
