"""What fits a host, and how fast: plans, recipes, and launches as text for other tools."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from firesteel import rules
from firesteel.catalog import Catalog
from firesteel.edge.files.home import find_home
from firesteel.facts import Host
from firesteel.launch import Ask
from firesteel.workspace import find_workspace

if TYPE_CHECKING:  # loaded only by those who use them
    from firesteel.hosts.cluster.rendered import NodeFile
    from firesteel.proposals import Proposal
    from firesteel.proposals.choose import Choice, Use
    from firesteel.proposals.guides import GuideClaim
    from firesteel.render import Cluster
    from firesteel.rules import CompatibilityTable


def catalog() -> Catalog:
    """The shipped catalog, with the user's own folder over it."""
    return find_workspace().catalog


def host(name: str | None = None) -> Host:
    """This machine, measured; or one from the hardware data (`gb10`), at rest."""
    return find_workspace().host(name)


def compatibility(table: str = "sm121") -> CompatibilityTable:
    """What works on a machine, release by release, according to the rules."""
    return rules.compatibility(table)


def models(host_name: str | None = None) -> tuple[Proposal, ...]:
    """Every recipe, planned for a host, best first."""
    return propose(Ask(), host(host_name))


def plan(
    model: str,
    *,
    host_name: str | None = None,
    context: int | None = None,
    users: int | None = None,
    port: int | None = None,
) -> tuple[Proposal, ...]:
    """The ways to serve a model, best first: a catalog name, a Hub id, a GGUF file, a folder."""
    return propose(Ask(model=model, context=context, users=users, port=port), host(host_name))


def propose(ask: Ask, on: Host) -> tuple[Proposal, ...]:
    """The ways to serve what was asked for on a host, best first."""
    return find_workspace().propose(ask, on)


def choose(use: Use, on: Host) -> Choice:
    """The recipe for a use, with two alternatives and why."""
    return find_workspace().choose(use, on)


def guide_claims(on: Host) -> tuple[GuideClaim, ...]:
    """What known guides claim, held against plans."""
    from firesteel.proposals import guides  # only `choose --guides` needs it

    return guides.guide_claims(catalog(), on)


def render_as(
    proposals: Proposal | Sequence[Proposal],
    form: str = "docker",
    *,
    listen: str | None = None,
    cluster: Cluster | None = None,
) -> str:
    """The launch as text: docker, compose, systemd, quadlet, sparkrun, kubernetes or kubernetes-swap.

    Kubernetes and compose take several proposals. `listen`: an address other than loopback, with a key.
    """
    from firesteel.proposals.rendered import render_proposals  # every form, and only here
    from firesteel.run.start.listen import listening

    chosen = list(proposals) if isinstance(proposals, Sequence) else [proposals]
    if form != "sparkrun":  # it mounts folders of its own
        chosen = [_with_folders(proposal) for proposal in chosen]
    if listen:
        chosen = [listening(proposal, listen) for proposal in chosen]
    return render_proposals(chosen, form, catalog().images, cluster)


async def render_by_node(
    proposal: Proposal, form: str = "docker", *, listen: str | None = None
) -> tuple[NodeFile, ...]:
    """A launch over several hosts as a file for each: docker, compose, systemd or quadlet.

    With the addresses of the nodes that `cluster add` knows, where there are enough; else the usual ones.
    """
    from firesteel.hosts.cluster import rendered
    from firesteel.hosts.cluster.up import rank_hosts_for  # ssh
    from firesteel.run.start.listen import listening

    hosts = await rank_hosts_for(find_home(), proposal.plan.launch.sparks)
    chosen = _with_folders(proposal)
    chosen = listening(chosen, listen) if listen else chosen
    program, rpc = proposal.plan.launch.program, ""
    if program and proposal.plan.launch.engine == "llamacpp":
        from firesteel.hosts.cluster.rpc import find_rpc_program

        found = find_rpc_program(program)
        rpc = f"{found.node_folder}/{found.path.name}"
    return rendered.render_by_node(chosen, hosts, form, catalog().images, rpc)


def render_for_kubernetes(proposal: Proposal, cluster: Cluster | None = None) -> str:
    """A launch over several hosts as a LeaderWorkerSet."""
    from firesteel.hosts.cluster import rendered

    hosts, chosen = rendered.usual_hosts(proposal.plan.launch.sparks), _with_folders(proposal)
    return rendered.render_for_kubernetes(chosen, hosts, catalog().images, cluster)


def _with_folders(proposal: Proposal) -> Proposal:
    """With the folders of this user, as `up` would mount them."""
    from firesteel.edge.hub.cache import find_store
    from firesteel.run.start.caches import with_user_folders
    from firesteel.run.start.steps import with_native_launch

    if proposal.plan.launch.program:
        return with_native_launch(proposal, find_home())
    return with_user_folders(proposal, find_home(), find_store(find_home()).root, Path.home())


def docker(proposal: Proposal) -> str:
    """The proposal's launch as a `docker run` command to paste, without comments."""
    from firesteel import render  # every form, and only here

    return render.docker(proposal.plan.launch)
