"""`cluster add`: reach a host by ssh, accept its host key once, and make a key for it where none does."""

from __future__ import annotations

from collections.abc import Callable

from firesteel.edge import ssh
from firesteel.edge.home import Home, writable_folder
from firesteel.errors import FiresteelError, HostNotReady
from firesteel.hosts.cluster.check import read_facts
from firesteel.hosts.cluster.nodes import (
    MAX_NODES,
    NODE_FOLDER,
    Channel,
    ClusterNode,
    all_nodes,
    channel_of,
    check_name,
    delete_node,
    folder_of_node,
    save_node,
    sent_bytes,
    target_of,
)
from firesteel.hosts.cluster.topology import NodeFacts
from firesteel.values import Value


class Added(Value):
    node: ClusterNode
    facts: NodeFacts
    folder: str
    """What was written on the node."""
    sent_bytes: int


async def add_node(home: Home, node: ClusterNode, accepts: Callable[[str], bool]) -> Added:
    """`accepts` is asked once whether an unknown host key is the right one."""
    check_name(node.name)
    others = [other for other in all_nodes(home) if other.name != node.name]
    if len(others) + 2 > MAX_NODES:
        raise FiresteelError(f"a cluster has {MAX_NODES} hosts at most", next="firesteel cluster list")
    is_known = any(other.name == node.name for other in all_nodes(home))
    try:
        with writable_folder(folder_of_node(home, node.name)):
            facts = await _reach(home, node, accepts)
        save_node(home, node)
    except FiresteelError:
        # Of a failed `add` only a key stays that the next one uses; without one, nothing does.
        if not is_known and not (folder_of_node(home, node.name) / "id_ed25519").exists():
            delete_node(home, node.name)
        raise
    return Added(node, facts, f"~/{NODE_FOLDER}", sent_bytes())


async def _reach(home: Home, node: ClusterNode, accepts: Callable[[str], bool]) -> NodeFacts:
    target = target_of(home, node)
    try:
        await ssh.run(target, "true")
    except HostNotReady as error:
        if "host key" in error.what and "not known" in error.what:
            await _accept(home, node, accepts)
            await _with_key(home, node)
        elif "none of your ssh keys" in error.what:
            await _with_key(home, node)
        else:
            raise
    facts, _ = await read_facts([channel_of(home, node)])
    return facts[node.name]


async def _accept(home: Home, node: ClusterNode, accepts: Callable[[str], bool]) -> None:
    target = target_of(home, node)
    shown = await ssh.fingerprint(target)
    if shown is None:
        raise HostNotReady(f"{node.name} shows no ed25519 host key", next=f"ssh {node.host}")
    line, digest = shown
    if not accepts(digest):
        raise FiresteelError(
            f"the host key of {node.name} was not accepted",
            next=f"on {node.name}: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub, and compare",
        )
    (folder_of_node(home, node.name) / "known_hosts").write_text(line + "\n")


async def _with_key(home: Home, node: ClusterNode) -> None:
    """The user's own keys first; a key for this node where they do not do."""
    target = target_of(home, node)
    try:
        await ssh.run(target, "true")
        return
    except HostNotReady as error:
        if "none of your ssh keys" not in error.what:
            raise
    key = await ssh.make_key(target)
    try:
        await ssh.run(target_of(home, node), "true")
    except HostNotReady as error:
        user = f"{node.user}@" if node.user else ""
        port = f"-p {node.port} " if node.port else ""
        raise HostNotReady(
            f"{error.what}; a key for {node.name} alone was made",
            next=f"ssh-copy-id -i {key} {port}{user}{node.host}, then firesteel cluster add {node.name}",
        ) from None


async def remove_node(home: Home, node: ClusterNode) -> str:
    """Remove what was copied to it, its key there, and what is kept here. The text says what was left."""
    target, left = target_of(home, node), ""
    try:
        public = folder_of_node(home, node.name) / "id_ed25519.pub"
        await ssh.run(target, f"rm -rf ~/{NODE_FOLDER}")
        if public.exists():
            words = public.read_text().split()
            await ssh.run(
                target,
                f"grep -vF {words[1]} ~/.ssh/authorized_keys > ~/.ssh/.firesteel; [ $? -le 1 ] && "
                "cat ~/.ssh/.firesteel > ~/.ssh/authorized_keys; rm -f ~/.ssh/.firesteel",
            )
    except HostNotReady as error:
        left = f"{error.what}, so ~/{NODE_FOLDER} stays there"
    await ssh.forget(target)
    delete_node(home, node.name)
    return left


def all_channels(home: Home, nodes: tuple[ClusterNode, ...], local_name: str) -> list[Channel]:
    """This host first."""
    return [Channel(local_name), *(channel_of(home, node) for node in nodes)]
