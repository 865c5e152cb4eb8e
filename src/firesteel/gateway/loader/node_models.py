"""Models that other hosts serve (`node: spark2`): what starts them, and which of them take turns."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from firesteel.edge.home import Home, secrets_path
from firesteel.errors import FiresteelError
from firesteel.facts.host.hardware import Host
from firesteel.gateway.loader.command import CommandJob
from firesteel.run.service import folder_of
from firesteel.service_file import NodeModel
from firesteel.values import plain, replace
from firesteel.workspace import Workspace

_RUNNER = (sys.executable, "-P", "-m", "firesteel.hosts.cluster.node_runner")


def node_job(path: str, model: NodeModel, home: Home) -> CommandJob:
    """A process here that starts, watches and stops it there. It takes no memory of this host."""
    name, port = model.ask.name, model.ask.port
    assert name is not None and port is not None
    return CommandJob(
        name,
        (*_RUNNER, str(folder_of(home, name)), json.dumps(plain(model))),
        port,
        "/health",
        memory_bytes=0,
        path=path,
        address=next(iter(model.addresses.values())),
        secrets=str(secrets_path(home, name)),
    )


def node_turns(
    models: Mapping[str, NodeModel], workspace: Workspace, host: Host
) -> tuple[tuple[str, ...], ...]:
    """The models of each node that do not fit there together. Sparks are alike: this host stands for it."""
    idle = replace(host, memory_available_bytes=host.memory_total_bytes)
    by_node: dict[str, list[NodeModel]] = {}
    for model in models.values():
        for node in () if model.has_here else model.addresses:
            by_node.setdefault(node, []).append(model)
    return tuple(
        tuple(model.ask.name or "" for model in group)
        for group in by_node.values()
        if len(group) > 1 and _needed_bytes(group, workspace, idle) > idle.room_bytes
    )


def _needed_bytes(models: Sequence[NodeModel], workspace: Workspace, host: Host) -> float:
    total = 0.0
    for model in models:
        with suppress(FiresteelError):  # the node itself says why it cannot serve it, when it is asked to
            total += workspace.propose(model.ask, host)[0].plan.memory.needed.expected
    return total
