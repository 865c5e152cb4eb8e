"""The models on this host: fetch, start, verify, stop and upgrade them, and read their logs.

Imports little: what plans, what asks an engine and what reaches other hosts loads when it is first needed.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from firesteel.bench.upgrade.result import UpgradeOptions, UpgradeResult
from firesteel.edge.home import find_home
from firesteel.errors import UsageError
from firesteel.launch import LOOPBACK, Ask, Task
from firesteel.run.events import Event, PhaseDone, PhaseProgress, PlanReady, ServiceReady
from firesteel.values import Value, replace

if TYPE_CHECKING:
    from firesteel.bench.upgrade.upgrade import UpgradeEvent
    from firesteel.hosts.cluster.check import JoinedHosts
    from firesteel.launch import Step
    from firesteel.planner.plan import MoreUsers
    from firesteel.planner.propose import Proposal
    from firesteel.run.prune import UnusedFile
    from firesteel.run.service import NodeStatus, Service
    from firesteel.run.spec import RunOptions
    from firesteel.run.verify.verify import Verification
    from firesteel.service_file import NodeModel

__all__ = [  # values of other packages that its functions take or return
    "Event",
    "PhaseDone",
    "PhaseProgress",
    "PlanReady",
    "ServiceReady",
    "UpgradeOptions",
    "UpgradeResult",
]
_LIST = "firesteel ps, to list what runs"


# --- downloads ---


def pull(
    model: str,
    patterns: tuple[str, ...] = (),
    *,
    weights_only: bool = False,
    update: bool = False,
    reread: bool = False,
) -> AsyncIterator[Event]:
    """Download what a model needs to start offline; a `PhaseDone` for each thing that was not there."""
    from firesteel.run.pull import pull_model  # loads the Hub's client
    from firesteel.workspace import find_workspace  # the catalog

    here = find_workspace()
    return pull_model(here, model, patterns, weights_only=weights_only, update=update, reread=reread)


def next_after_pull(model: str, patterns: tuple[str, ...] = ()) -> str:
    """What to type once it is there."""
    from firesteel.run.pull import next_command  # as in `pull`
    from firesteel.workspace import find_workspace

    return next_command(find_workspace(), model, patterns)


def unused_files(model: str | None = None) -> tuple[UnusedFile, ...]:
    """Files that nothing uses any more; with a model, its weights too. `remove_files` removes them."""
    from firesteel.run.prune import find_unused
    from firesteel.run.pull import repositories_of  # loads the Hub's client
    from firesteel.workspace import find_workspace

    here = find_workspace()
    repositories = repositories_of(here, model) if model else ()
    return find_unused(here.home, here.catalog, here.host(), repositories)


def remove_files(files: Iterable[UnusedFile]) -> tuple[UnusedFile, ...]:
    """Remove them, and return those that could not be removed because they belong to another user."""
    from firesteel.run.prune import remove_unused

    return remove_unused(files)


# --- up ---


class UpPlan(Value):
    """What `up` starts, in this order; planned before anything is started."""

    proposals: tuple[Proposal, ...]
    options: RunOptions
    others: tuple[Proposal, ...] = ()
    """Other ways to serve it that can run."""
    is_suggestion: bool = False
    """No model was named, and this host could serve several: the user chooses one."""
    on_nodes: tuple[tuple[NodeModel, str], ...] = ()
    """What other hosts of a service file start: a model and the name of its node."""
    cluster: JoinedHosts | None = None
    """The hosts that serve it together."""
    fallbacks: Mapping[str, str | None] = {}
    """The recipe that this host serves alone while a node is lost, by service."""
    allows_tcp: bool = False


class NodeUp(Value):
    """A model of a service file that another host serves."""

    name: str
    url: str
    verified: bool


class RemoteAccess(Value):
    """How other hosts reach a service that listens beyond this one."""

    url: str
    secrets: str
    """The file that has its key."""


def up(proposal: Proposal, options: RunOptions | None = None) -> AsyncGenerator[Event]:
    """Launch and verify it. The last event is `ServiceReady`, with the report."""
    from firesteel.run.spec import RunOptions  # loads the planner
    from firesteel.run.up import bring_up

    return bring_up(proposal, find_home(), options or RunOptions())


def plan_up(ask: Ask, *, listen: str = LOOPBACK, trusts_code: bool = False, at_boot: bool = False) -> UpPlan:
    """The best way to serve a model on this host."""
    from firesteel.run.service import load
    from firesteel.run.spec import RunOptions  # loads the planner
    from firesteel.workspace import find_workspace

    workspace = find_workspace()
    best, *others = workspace.propose(ask, workspace.host())
    running = load(workspace.home, best.name)
    if running and not (best.recipe or ask.users) and running.spec.ask.model == best.asked:
        # What a folder is served for depends on the memory that was free when it was started.
        (best,) = workspace.propose(replace(ask, users=running.spec.ask.users), workspace.host())
    return UpPlan(
        (best,),
        RunOptions(listen, trusts_code, at_boot),
        tuple(other for other in others if other.can_run),
        is_suggestion=ask.model is None and bool(best.plan.host.gpus),
    )


def more_users(proposal: Proposal) -> MoreUsers | None:
    """What it takes to serve more at once; None where that is not a matter of memory."""
    from firesteel.planner.plan import more_users as count_more

    return count_more(proposal.plan)


def plan_up_together(
    ask: Ask,
    count: int | None = None,
    *,
    listen: str = LOOPBACK,
    trusts_code: bool = False,
    at_boot: bool = False,
    allows_tcp: bool = False,
    fallback: str | None = None,
) -> UpPlan:
    """The best way to serve a model by several hosts together: `count`, or this one and all nodes."""
    from firesteel.hosts.cluster.nodes import local_name, require_nodes
    from firesteel.hosts.cluster.up import propose_cluster, read_cluster  # ssh
    from firesteel.run.spec import RunOptions
    from firesteel.workspace import find_workspace

    workspace = find_workspace()
    nodes = require_nodes(workspace.home, count)
    cluster = asyncio.run(read_cluster(workspace.home, nodes, local_name(), allows_tcp))
    best = propose_cluster(workspace, ask, cluster.size)[0]
    return UpPlan(
        (best,),
        RunOptions(listen, trusts_code, at_boot),
        cluster=cluster,
        fallbacks={best.name: fallback},
        allows_tcp=allows_tcp,
    )


def plan_up_file(
    path: Path,
    names: tuple[str, ...] = (),
    *,
    listen: str = LOOPBACK,
    trusts_code: bool = False,
    at_boot: bool = False,
    allows_tcp: bool = False,
) -> UpPlan:
    """The models of a service file, or some of them, planned together before the first is started."""
    from firesteel.edge.files import read_text
    from firesteel.run.spec import RunOptions
    from firesteel.run.up import plan_all  # the planner
    from firesteel.service_file import asks, on_nodes, read_service_file
    from firesteel.workspace import find_workspace

    file = read_service_file(str(path), read_text(path))
    workspace, there = find_workspace(), on_nodes(file)
    here = tuple(name for name in names if name not in there)
    proposals = []
    if asks(file) if not names else here:
        proposals = plan_all(file, here, workspace, services())
    others = []
    for model in (model for name, model in there.items() if not names or name in names):
        for node, address in model.addresses.items():
            if address == LOOPBACK:
                proposals.append(workspace.propose(model.ask, workspace.host())[0])
            else:
                others.append((model, node))
    return UpPlan(
        tuple(proposals),
        RunOptions(listen, trusts_code, at_boot, str(path.absolute())),
        on_nodes=tuple(others),
        fallbacks={name: entry.fallback_recipe for name, entry in file.models.items()},
        allows_tcp=allows_tcp,
    )


def steps_of(plan: UpPlan) -> tuple[Step, ...]:
    """The commands that `start` would run. Raises where one of its launches must not run."""
    from firesteel.planner.advice import require_runnable
    from firesteel.run.endpoints import listening
    from firesteel.run.spec import make_steps

    for proposal in plan.proposals:
        require_runnable(proposal)
    if plan.cluster:
        from firesteel.hosts.cluster.rank_specs import cluster_steps  # ssh

        return cluster_steps(plan.proposals[0], find_home(), plan.cluster)
    bound = [listening(proposal, plan.options.listen) for proposal in plan.proposals]
    return tuple(step for proposal in bound for step in make_steps(proposal, find_home()))


async def start(plan: UpPlan) -> AsyncGenerator[Event]:
    """Start them one after the other; a `ServiceReady` for each. `start_on_nodes` starts the rest."""
    for proposal in plan.proposals:
        async with aclosing(await _started(plan, proposal)) as events:
            async for event in events:
                yield event


async def _started(plan: UpPlan, proposal: Proposal) -> AsyncGenerator[Event]:
    home, fallback = find_home(), plan.fallbacks.get(proposal.name)
    if plan.cluster:
        from firesteel.hosts.cluster.up import propose_fallback, up_cluster  # ssh
        from firesteel.workspace import find_workspace

        alone = await asyncio.to_thread(propose_fallback, find_workspace(), proposal, fallback)
        return up_cluster(proposal, home, plan.options, plan.cluster, alone)
    if proposal.plan.launch.sparks == 1 or proposal.plan.host.joined_hosts == 1:
        return up(proposal, plan.options)
    from firesteel.hosts.cluster.up import bring_up_joined  # ssh

    return bring_up_joined(proposal, home, plan.options, plan.allows_tcp, fallback)


async def start_on_nodes(plan: UpPlan) -> dict[str, tuple[NodeUp, ...]]:
    """Start what other hosts serve, by node. Each prints its own progress on stderr."""
    from firesteel.hosts.cluster.on_nodes import up_on_node  # ssh

    reports: dict[str, tuple[NodeUp, ...]] = {}
    for model, node in plan.on_nodes:
        report = await up_on_node(find_home(), model, node)
        found = NodeUp(report["name"], report["url"], report["verified"])
        reports[node] = (*reports.get(node, ()), found)
    return reports


def remote_access(name: str) -> RemoteAccess | None:
    """None: only this host reaches the service."""
    from firesteel.run.service import pick

    spec = pick(find_home(), name).spec
    if not spec.is_guarded_by_key:
        return None
    return RemoteAccess(f"http://{socket.gethostname()}:{urlsplit(spec.url).port}/v1", spec.secrets)


def nodes_of(name: str) -> tuple[NodeStatus, ...]:
    """The hosts that serve it together, as its runner sees them; empty for a service of one host."""
    from firesteel.run.service import folder_of, read_status

    status = read_status(folder_of(find_home(), name))
    return status.nodes if status else ()


def what_is_left(proposals: Iterable[Proposal]) -> str:
    """What runs after an interruption, as a look at processes and ports shows, as a sentence."""
    return "; ".join(map(_what_is_left, proposals))


def _what_is_left(proposal: Proposal) -> str:
    from firesteel.edge.host.process import port_is_free, port_owner
    from firesteel.run.service import load

    name, port = proposal.name, proposal.plan.launch.port
    service = load(find_home(), name)
    if service is None or service.phase == "dead":
        owner = None if port_is_free(port) else port_owner(port) or "another program"
        return f"{name} does not run" + (f" (port {port} is in use by {owner})" if owner else "")
    if service.phase == "ready":
        return f"{name} is up on {service.spec.url}/v1, and `firesteel down {name}` stops it"
    return f"{name} is {service.phase}, and `firesteel down {name}` stops it"


# --- down ---


class DownPlan(Value):
    """What `down` stops."""

    services: tuple[Service, ...]
    on_nodes: tuple[tuple[NodeModel, str], ...] = ()
    """What other hosts of a service file serve: a model and the name of its node."""


def services() -> list[Service]:
    """What runs, as values for `down`; what `ps` shows of them is `library.services.service_statuses`.

    A container whose supervisor was killed gets another one first.
    """
    from firesteel.run.service import all_services
    from firesteel.run.start import adopt_all  # loads processes and the planner

    adopt_all(find_home())
    return all_services(find_home())


def down(service: Service) -> AsyncGenerator[Event]:
    """Stop it, and wait until its processes have ended and their memory is free again."""
    from firesteel.run.down import stop  # loads docker

    return stop(service)


def plan_down(name: str | None = None, *, everything: bool = False) -> DownPlan:
    """The service of that name; all of them; or the only one that runs."""
    from firesteel.run.service import pick

    running = services()
    if everything or not (name or running):
        return DownPlan(tuple(running))
    return DownPlan((pick(find_home(), name),))


def plan_down_file(path: Path, name: str | None = None) -> DownPlan:
    """Only what the file starts; firesteel cannot stop a server that the file names by `url`."""
    from firesteel.edge.files import read_text
    from firesteel.hosts.cluster.on_nodes import is_here  # ssh
    from firesteel.service_file import asks, on_nodes, read_service_file  # loads PyYAML

    file = read_service_file(str(path), read_text(path, next=_LIST))
    known, there = asks(file), on_nodes(file)
    if name and name not in known and name not in there:
        starts = ", ".join((*known, *there))
        raise UsageError(f"{path} does not start `{name}`; it starts {starts}", next=_LIST)
    wanted = {name} if name else {*known, *there}
    return DownPlan(
        tuple(service for service in services() if service.name in wanted),
        tuple(
            (model, node)
            for each, model in there.items()
            for node, address in model.addresses.items()
            if each in wanted and not is_here(address)
        ),
    )


async def stop(plan: DownPlan) -> AsyncGenerator[Event]:
    """Stop them one after the other, here and then on other hosts; a `PhaseDone` for each."""
    for service in plan.services:
        async with aclosing(down(service)) as events:
            async for event in events:
                yield event
    for model, node in plan.on_nodes:
        from firesteel.hosts.cluster.on_nodes import down_on_node  # ssh

        await down_on_node(find_home(), model, node)
        yield PhaseDone("stop", f"{model.ask.name} has stopped on {node}")


def left_of(plan: DownPlan) -> str:
    """What runs after an interruption: a supervisor that was asked to stop still does."""
    from firesteel.run.service import load

    now = {service.name: load(find_home(), service.name) for service in plan.services}
    return "; ".join(
        f"{name} is {left.phase}" if left and left.phase != "dead" else f"{name} does not run"
        for name, left in now.items()
    )


# --- verify ---


async def verify(
    name: str | None = None,
    *,
    url: str | None = None,
    model: str | None = None,
    key: str | None = None,
    task: Task = "chat",
    takes: tuple[str, ...] = (),
    thorough: bool = True,
    deep: bool = False,
    as_agent: bool = False,
) -> AsyncGenerator[str | Verification]:
    """Ask questions with known answers; the last item is the `Verification`.

    Of a service (without a name, the only one), or of any OpenAI endpoint at `url`: there `task` is what the
    server does, and `takes` what it takes besides text. `thorough=False`: only what `up` asks at a start.
    `deep`: also long answers, all planned users at once, and the whole context, which takes minutes.
    `as_agent`: also tools as coding agents send them; what is found of a service is kept for `plan` and
    `choose`.
    """
    from firesteel.run.endpoints import base_url, running_service
    from firesteel.run.verify.verify import target_at_url, target_of_service  # loads the HTTP client

    if url:
        found = await target_at_url(base_url(url), model, key, task=task, takes=takes)
    else:
        found = await target_of_service(find_home(), running_service(find_home(), name))
    async for event in found.verify(thorough=thorough, deep=deep, as_agent=as_agent):
        yield event


def environment_key(variable: str | None = None) -> str | None:
    """The key for an endpoint, from this variable of the environment, or from the usual ones."""
    from firesteel.run.endpoints import key_from

    return key_from(os.environ, variable)


# --- logs ---


class EngineLog(Value, tag_field="document", tag="firesteel.logs/1"):
    """`firesteel logs --json`"""

    name: str
    """Of its service."""
    path: Path
    lines: tuple[str, ...]
    """The last that the engine wrote."""


def log_file(name: str | None = None) -> Path:
    """The log of a service's engine; without a name, the one that was written to last."""
    from firesteel.run.service import find_log

    return find_log(find_home(), name)


def logs(name: str | None = None, lines: int = 50) -> list[str]:
    """The last lines of a log."""
    return list(read_log(name, lines).lines)


def read_log(name: str | None = None, lines: int = 50, *, node: str | None = None) -> EngineLog:
    """The last lines of a log; with a node, of its rank there."""
    from firesteel.run.service import last_lines

    path = log_file(name)
    service = path.parent.name
    path = _log_of_node(path.parent, node) if node else path
    return EngineLog(service, path, tuple(last_lines(path, lines)))


def _log_of_node(folder: Path, node: str) -> Path:
    """The copy that is kept here: it is there when the node is not. The head's log is the service's own."""
    copies = {path.stem: path for path in sorted((folder / "ranks").glob("*.log"))}
    if node in copies:
        return copies[node]
    if node == socket.gethostname().partition(".")[0]:
        return folder / "engine.log"
    there = f"; there are logs of {', '.join(copies)}" if copies else "; it runs on this host alone"
    raise UsageError(f"{folder.name} has no rank on `{node}`{there}", next=f"firesteel logs {folder.name}")


# --- upgrade ---


def upgrade_model(model: str | None, options: UpgradeOptions) -> AsyncIterator[UpgradeEvent]:
    """Try another release of its engine under a running model; the last event is `UpgradeResult`."""
    from firesteel.bench.upgrade import upgrade as upgrades  # the client that measures

    return upgrades.upgrade(find_home(), model, options)


def roll_back_model(model: str | None) -> AsyncIterator[UpgradeEvent]:
    """Back to the release before the last upgrade; the last event is `UpgradeResult`."""
    from firesteel.bench.upgrade import upgrade as upgrades

    return upgrades.rollback(find_home(), model)
