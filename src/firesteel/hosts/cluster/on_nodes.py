"""Models of a service file that other hosts serve: started there over ssh, by this firesteel, with one key.

A node gets a service file with its model alone, and listens on its address in `hosts`, for those who have it.
`serve` has it started when it is asked for (`node_runner.py`), `up -f` at once.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from firesteel.edge import ssh
from firesteel.edge.home import Home, new_key, write_text
from firesteel.errors import FiresteelError, HostNotReady
from firesteel.hosts.cluster.elsewhere import SSH_FAILED, command_on_node, prepare_node
from firesteel.hosts.cluster.nodes import find_node, target_of
from firesteel.launch import ENGINE_KEY_VARIABLES, LOOPBACK, Ask
from firesteel.service_file import NodeModel

_SECRETS = "${FIRESTEEL_HOME:-${XDG_DATA_HOME:-$HOME/.local/share}/firesteel}/secrets"


def node_key_file(home: Home, name: str) -> Path:
    """The key of a model on its nodes, as this host has it."""
    return home.root / "cluster" / "keys" / name


def is_here(address: str) -> bool:
    return address in (LOOPBACK, "::1")


async def up_on_node(home: Home, model: NodeModel, node: str) -> dict[str, Any]:
    """Start it and wait until it is verified; its progress goes to stderr. The report of `up --json`."""
    ask, target = model.ask, target_of(home, find_node(home, node))
    name = ask.name or ""
    folder = await prepare_node(target, home)
    await _send_key(target, name, key_of_nodes(home, name))
    words = ["up", "-f", await _send_file(target, folder, ask), "--listen", model.addresses[node], "--json"]
    code, out = await _firesteel(target, folder, words)
    if code == SSH_FAILED:
        raise HostNotReady(f"the connection to {node} was lost", next=f"firesteel --on {node} ps")
    if code:
        raise FiresteelError(f"{name} did not start on {node}", next=f"firesteel --on {node} logs {name}")
    reports: list[dict[str, Any]] = json.loads(out)["reports"]
    return reports[0]


async def is_gone(home: Home, model: NodeModel, node: str) -> str | None:
    """Why the model no longer runs on the node; None: it does, or is being started again there."""
    target = target_of(home, find_node(home, node))
    try:
        folder = await prepare_node(target, home)
        code, out = await _firesteel(target, folder, ["ps", "--json"])
    except HostNotReady as error:
        return error.what
    if code:
        return f"{node} does not answer"
    services = {each["name"]: each for each in json.loads(out)["services"]}
    there = services.get(model.ask.name)
    if there is None:
        return f"{node}: {model.ask.name} was stopped there"
    return f"{node}: {there.get('why') or 'it has ended'}" if there["phase"] == "dead" else None


async def down_on_node(home: Home, model: NodeModel, node: str) -> None:
    """Stop it there, by the file that started it."""
    target = target_of(home, find_node(home, node))
    folder = await prepare_node(target, home)
    code, _ = await _firesteel(target, folder, ["down", "-f", await _send_file(target, folder, model.ask)])
    if code:
        raise FiresteelError(f"{model.ask.name} was not stopped on {node}", next=f"firesteel --on {node} ps")


async def _send_file(target: ssh.SshTarget, folder: str, ask: Ask) -> str:
    """A service file with this model alone: its path on the node."""
    entry = {"recipe": ask.model, "context": ask.context, "users": ask.users, "port": ask.port,
             "runtime": ask.runtime}  # fmt: skip
    file = {"models": {ask.name: {key: value for key, value in entry.items() if value is not None}}}
    await ssh.send_files(target, {f"{ask.name}.yaml": json.dumps(file).encode()}, f"{folder}/files")
    return f"{folder}/files/{ask.name}.yaml"


def key_of_nodes(home: Home, name: str) -> str:
    """The same from start to start, and on every node. Beside it as the secrets of a service of this host."""
    path = node_key_file(home, name)
    try:
        key = path.read_text().strip()
    except OSError:
        key = new_key()
        write_text(path, f"{key}\n")
    write_text(home.secrets_path(name), _key_lines(key))
    return key


def _key_lines(key: str) -> str:
    return "".join(f"{variable}={key}\n" for variable in ENGINE_KEY_VARIABLES.values())


async def _send_key(target: ssh.SshTarget, name: str, key: str) -> None:
    """`up --listen` on the node uses the key that it finds there."""
    done = await ssh.run(
        target, f'umask 077; d="{_SECRETS}"; mkdir -p "$d" && cat > "$d/{name}.env"', _key_lines(key).encode()
    )
    if done.code:
        raise HostNotReady(f"{target.name}: {done.err.strip()[-200:]}", next=f"ssh {target.host} df -h '~'")


async def _firesteel(target: ssh.SshTarget, folder: str, words: list[str]) -> tuple[int, str]:
    argv = ssh.session_argv(target, command_on_node(folder, words))
    child = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
    )
    try:
        out, _ = await child.communicate()
    except asyncio.CancelledError:
        child.kill()
        raise
    return child.returncode or 0, out.decode(errors="replace")
