"""Nodes: the hosts that were added with `cluster add`, one folder each under `FIRESTEEL_HOME/cluster`.

node.json     how ssh reaches it
known_hosts   its host key, as it was accepted
id_ed25519    a key for this node alone, where the user's own keys did not do
"""

from __future__ import annotations

import re
import shutil
import socket
from pathlib import Path

from firesteel.edge import home as state_file
from firesteel.edge.home import Home, writable_folder
from firesteel.edge.ssh import SshTarget
from firesteel.errors import FiresteelError, UsageError
from firesteel.values import Value

MAX_NODES = 8
"""With this host: more Sparks are beyond what anybody has reported."""
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,62}\Z", re.IGNORECASE)


class ClusterNode(Value):
    name: str
    host: str
    """What ssh is given: a name or an address."""
    user: str | None = None
    port: int | None = None


def folder_of_node(home: Home, name: str) -> Path:
    return home.root / "cluster" / name


def target_of(home: Home, node: ClusterNode) -> SshTarget:
    return SshTarget(node.name, node.host, node.user, node.port, str(folder_of_node(home, node.name)))


def check_name(name: str) -> None:
    if not _NAME.match(name):
        raise UsageError(f"`{name[:80]}` is not a name for a node", next="firesteel cluster add spark2")


def all_nodes(home: Home) -> tuple[ClusterNode, ...]:
    """By name."""
    paths = sorted((home.root / "cluster").glob("*/node.json"))
    found = (state_file.read_state(path, ClusterNode) for path in paths)
    return tuple(node for node in found if node)


def find_node(home: Home, name: str) -> ClusterNode:
    nodes = {node.name: node for node in all_nodes(home)}
    if name not in nodes:
        there = f"; there is {', '.join(nodes)}" if nodes else ""
        raise UsageError(f"no node is called `{name}`{there}", next=f"firesteel cluster add {name}")
    return nodes[name]


def require_nodes(home: Home, count: int | None = None) -> tuple[ClusterNode, ...]:
    """The nodes beside this host: all, or as many as `count` hosts need."""
    nodes = all_nodes(home)
    if not nodes:
        raise FiresteelError("this host has no other nodes", next="firesteel cluster add spark2")
    if count is not None and count - 1 > len(nodes):
        raise FiresteelError(
            f"{count} hosts were asked for, and there are {len(nodes) + 1}: this one and "
            f"{', '.join(node.name for node in nodes)}",
            next="firesteel cluster add NAME",
        )
    return nodes if count is None else nodes[: count - 1]


def save_node(home: Home, node: ClusterNode) -> None:
    folder = folder_of_node(home, node.name)
    with writable_folder(folder):
        state_file.write_state(folder / "node.json", node)


def delete_node(home: Home, name: str) -> None:
    shutil.rmtree(folder_of_node(home, name), ignore_errors=True)


def local_name() -> str:
    """What this host is called among the nodes."""
    return socket.gethostname().partition(".")[0] or "head"
