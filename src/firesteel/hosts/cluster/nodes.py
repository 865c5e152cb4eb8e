"""Nodes: the hosts that were added with `cluster add`, and how each is reached.

A node has a folder under `FIRESTEEL_HOME/cluster`:

node.json     how ssh reaches it
known_hosts   its host key, as it was accepted
id_ed25519    a key for this node alone, where the user's own keys did not do

A `Channel` reaches a node by ssh, and this host by a child process. Whatever runs there is one of three files
(agent, probe, reaper), which a node gets once, under names that carry their digest: a node may have those of
several releases side by side.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import shlex
import shutil
import socket
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

from firesteel.edge import ssh
from firesteel.edge.home import Home, read_state, writable_folder, write_state
from firesteel.edge.host import reaper
from firesteel.edge.ssh import SshTarget
from firesteel.errors import FiresteelError, HostNotReady, UsageError
from firesteel.values import Value

MAX_NODES = 8
"""With this host: nobody has reported more Sparks in one cluster."""
_NODE_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,62}\Z", re.IGNORECASE)


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
    if not _NODE_NAME.match(name):
        raise UsageError(f"`{name[:80]}` is not a name for a node", next="firesteel cluster add spark2")


def all_nodes(home: Home) -> tuple[ClusterNode, ...]:
    """All nodes, sorted by name."""
    paths = sorted((home.root / "cluster").glob("*/node.json"))
    found = (read_state(path, ClusterNode) for path in paths)
    return tuple(node for node in found if node)


def find_node(home: Home, name: str) -> ClusterNode:
    nodes = {node.name: node for node in all_nodes(home)}
    if name not in nodes:
        if nodes:
            raise UsageError(
                f"no node is called `{name}`",
                next=f"take one of {', '.join(nodes)}, or firesteel cluster add {name}",
            )
        raise UsageError(
            f"no node is called `{name}`, and there are none", next=f"firesteel cluster add {name}"
        )
    return nodes[name]


def require_nodes(home: Home, count: int | None = None) -> tuple[ClusterNode, ...]:
    """The nodes, without this host: all, or as many as `count` hosts need."""
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
        write_state(folder / "node.json", node)


def delete_node(home: Home, name: str) -> None:
    shutil.rmtree(folder_of_node(home, name), ignore_errors=True)


def local_name() -> str:
    """What this host is called among the nodes."""
    return socket.gethostname().partition(".")[0] or "head"


# --- channels ---

Script = Literal["agent", "probe", "reaper"]
NODE_FOLDER = ".local/share/firesteel/cluster"
"""The folder of firesteel on a node, under its user's home."""
_SCRIPT_TIMEOUT_S = 60.0
_RECEIVE = """
import base64, json, os, sys
files = json.loads(sys.stdin.read())
folder = os.path.expanduser("~/" + files.pop("folder"))
os.umask(0o077)
os.makedirs(folder, exist_ok=True)
for name, text in files.items():
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        with open(path + ".new", "wb") as file:
            file.write(base64.b64decode(text))
        os.rename(path + ".new", path)
"""


@cache
def _sources() -> dict[Script, tuple[str, bytes]]:
    """For each script, its name on a node and its text."""
    here = Path(__file__).parent
    paths: dict[Script, Path] = {
        "agent": here / "agent.py", "probe": here / "probe.py", "reaper": Path(reaper.__file__),
    }  # fmt: skip
    texts = {script: path.read_bytes() for script, path in paths.items()}
    return {
        script: (f"{script}-{hashlib.sha256(text).hexdigest()[:12]}.py", text)
        for script, text in texts.items()
    }


def sent_bytes() -> int:
    return sum(len(text) for _, text in _sources().values())


class Channel(Value):
    """`target` None: this host."""

    name: str
    target: SshTarget | None = None

    def argv(self, script: Script, *words: str) -> list[str]:
        """The command that runs a script there, for one answer."""
        command = self._command(script, words)
        return ssh.ssh_argv(self.target, shlex.join(command)) if self.target else command

    def session_argv(self, script: Script, *words: str) -> list[str]:
        """The same command for a long-lived session."""
        command = self._command(script, words)
        return ssh.session_argv(self.target, shlex.join(command)) if self.target else command

    def _command(self, script: Script, words: Sequence[str]) -> list[str]:
        if self.target:
            return ["python3", "-I", "-S", f"{NODE_FOLDER}/{_sources()[script][0]}", *words]
        path = reaper.__file__ if script == "reaper" else str(Path(__file__).parent / f"{script}.py")
        return [sys.executable, "-I", "-S", path, *words]

    @property
    def reaper(self) -> str:
        """Where the agent finds the reaper: in its own folder on a node."""
        return _sources()["reaper"][0] if self.target else str(reaper.__file__)

    async def prepare(self) -> None:
        """Copy the scripts to the node, where they are not there yet."""
        if self.target is None:
            return
        files = {name: base64.b64encode(text).decode() for name, text in _sources().values()}
        document = json.dumps({"folder": NODE_FOLDER, **files}).encode()
        done = await ssh.run(self.target, shlex.join(["python3", "-I", "-S", "-c", _RECEIVE]), document)
        if done.code:
            raise _script_failure(self.name, done.code, done.err)

    async def ask(
        self, script: Script, *words: str, stdin: bytes = b"", timeout_s: float = _SCRIPT_TIMEOUT_S
    ) -> dict[str, Any]:
        """Run a script there and return the JSON document that it prints."""
        if self.target:
            done = await ssh.run(self.target, shlex.join(self._command(script, words)), stdin, timeout_s)
            code, out, err = done.code, done.out, done.err
        else:
            try:
                code, out, err = await _run_here(self._command(script, words), stdin, timeout_s)
            except TimeoutError:  # as of `ssh.run`
                raise HostNotReady(
                    f"{self.name} did not answer within {timeout_s:.0f} s", next="firesteel cluster check"
                ) from None
        if code:
            raise _script_failure(self.name, code, err)
        document: dict[str, Any] = json.loads(out)
        return document


async def _run_here(argv: list[str], stdin: bytes, timeout_s: float) -> tuple[int, str, str]:
    child = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(timeout_s):
            out, err = await child.communicate(stdin)
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    return child.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace")


def _script_failure(name: str, code: int, err: str) -> HostNotReady:
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    said = lines[-1][:200] if lines else f"exit code {code}"
    if code == 127 or ("python3" in said and "not found" in said):
        return HostNotReady(f"{name} has no python3", next=f"on {name}: sudo apt install python3-minimal")
    if "No space left" in err:
        return HostNotReady(f"the disk of {name} is full", next=f"free some space on {name}")
    return HostNotReady(f"{name}: {said}", next="firesteel cluster check")


def channel_of(home: Home, node: ClusterNode) -> Channel:
    return Channel(node.name, target_of(home, node))
