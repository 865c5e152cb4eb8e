"""Launch -> a compose file with one service; `reads.compose` is the inverse.

Compose fills `$NAME` in itself and takes `$$` for one dollar. A variable without a value is passed on from
the shell or from the `.env` file beside the compose file, so no secret stands in it; without a key that the
engine is to ask for, compose starts nothing. A start that fails is
tried three times and not for ever: every try may leak memory on a GB10.
Seen in https://github.com/compose-spec/compose-spec/blob/main/05-services.md and deploy.md, 2026-11-15.
"""

from __future__ import annotations

import re
from dataclasses import replace

from firesteel.catalog import container_name
from firesteel.errors import UsageError
from firesteel.launch import Container, Launch, Mount
from firesteel.render.docker import after_image, contained, docker_size, has_script
from firesteel.render.launch_facts import (
    NOTHING,
    RESTARTS,
    LaunchFacts,
    by_name,
    heading,
    is_by_name,
    key_asked_for,
    on_one_spark,
    pinned,
    reasons_by_word,
)
from firesteel.render.yaml_text import Explained, document

_BOUNDED = re.compile(r"no\Z|on-failure:\d+\Z")
_NOT_A_VARIABLE = re.compile(r"\$(?![A-Za-z_]|\{[A-Za-z_]\w*\})")
_VALUES = {"name": "container_name", "user": "user", "workdir": "working_dir", "hostname": "hostname"}
_LISTS = {"device": "devices", "cap-add": "cap_add", "cap-drop": "cap_drop", "security-opt": "security_opt",
          "env-file": "env_file", "tmpfs": "tmpfs", "expose": "expose", "group-add": "group_add"}  # fmt: skip
_SWITCHES = {"init": "init", "read-only": "read_only", "tty": "tty", "interactive": "stdin_open"}
_NOT_HERE = frozenset({"rm", "detach"})
"""Of a container that somebody starts by hand: compose keeps and removes its own."""


def compose(launch: Launch, known: LaunchFacts = NOTHING) -> str:
    on_one_spark(launch, "a compose file")
    launch = settled(contained(pinned(launch, known)))
    secrets = by_name(launch)
    head = heading(launch, known, with_reasons=has_script(launch))
    if secrets:
        lines = ", ".join(f"{name}=..." for name in secrets)
        head.append(f"Secrets: write {lines} into `.env` beside this file, and chmod 600 it")
    return document({"services": {launch.name: _service(launch, known)}}, head)


def settled(launch: Launch) -> Launch:
    """The launch with a restart policy that ends."""
    box = launch.container
    assert box is not None, "contained() gives one"
    is_bounded = box.restart is not None and _BOUNDED.match(box.restart)
    return launch if is_bounded else replace(launch, container=replace(box, restart=f"on-failure:{RESTARTS}"))


def _service(launch: Launch, known: LaunchFacts) -> dict[str, object]:
    box = launch.container
    assert box is not None, "contained() gives one"
    service: dict[str, object] = {
        "image": _text(box.image),
        "container_name": container_name(launch.name),
        "labels": {
            "firesteel": _text(launch.name),
            **{key: _text(value) for key, value in box.labels.items()},
        },
        "restart": Explained(box.restart, "a start that keeps failing is given up"),
    }
    service |= _about(box) | _options(box)
    if box.entrypoint is not None:
        service["entrypoint"] = [_text(box.entrypoint)] if box.entrypoint else []
    service["command"] = _command(launch, box, known)
    if launch.env:
        key = key_asked_for(launch)
        service["environment"] = {
            name: f"${{{name}:?}}" if name == key else _variable(name, value, known)
            for name, value in launch.env.items()
        }
    return service


def _about(box: Container) -> dict[str, object]:
    found: dict[str, object] = {}
    if box.ipc is not None:
        found["ipc"] = box.ipc
    if box.shm_bytes is not None:
        found["shm_size"] = docker_size(box.shm_bytes)
    if box.network is not None:
        found["network_mode"] = box.network
    if box.publish:
        found["ports"] = [_text(each) for each in box.publish]
    if box.mounts:
        found["volumes"] = [_volume(mount) for mount in box.mounts]
    if box.gpus is not None:
        found["deploy"] = {"resources": {"reservations": {"devices": [_device(box.gpus)]}}}
    return found


def _device(gpus: str) -> dict[str, object]:
    """`--gpus` as a reservation."""
    ids = gpus.strip('"').removeprefix("device=")
    wanted: dict[str, object] = {"count": int(gpus) if gpus.isdecimal() else gpus}
    if ids != gpus.strip('"'):
        wanted = {"device_ids": ids.split(",")}
    return {"driver": "nvidia", **wanted, "capabilities": ["gpu"]}


def _volume(mount: Mount) -> object:
    """Short, or long where a colon in a path would be taken for a separator."""
    if ":" not in mount.source + mount.target:
        return _text(f"{mount.source}:{mount.target}" + (":ro" if mount.read_only else ""))
    kind = "bind" if mount.source[:1] in ("/", ".", "~", "$") else "volume"
    long = {"type": kind, "source": _text(mount.source), "target": _text(mount.target)}
    return {**long, "read_only": True} if mount.read_only else long


def _options(box: Container) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in box.options:
        if name in _VALUES and value is not None:
            found[_VALUES[name]] = _text(value)
        elif name in _LISTS and value is not None:
            listed = found.setdefault(_LISTS[name], [])
            assert isinstance(listed, list)
            listed.append(_text(value))
        elif name in _SWITCHES:
            found[_SWITCHES[name]] = value != "false"
        elif name == "ulimit" and value is not None:
            limits = found.setdefault("ulimits", {})
            assert isinstance(limits, dict)
            limits |= _ulimit(value)
        elif name not in _NOT_HERE:
            raise UsageError(
                f"a compose file has no word for `--{name}`", next="firesteel render --as docker"
            )
    return found


def _ulimit(value: str) -> dict[str, object]:
    name, _, limits = value.partition("=")
    soft, _, hard = limits.partition(":")
    return {name: {"soft": int(soft), "hard": int(hard)} if hard else int(soft)}


def _command(launch: Launch, box: Container, known: LaunchFacts) -> list[object]:
    reasons = reasons_by_word(launch, known)
    words: list[object] = []
    for group in after_image(launch, box):
        for word in group:
            why = reasons.get(word) if word == group[0] else None
            words.append(Explained(_text(word), why) if why else _text(word))
    return words


def _variable(name: str, value: str, known: LaunchFacts) -> object:
    said = None if is_by_name(name, value) else _text(value)
    return Explained(said, known.env_reasons[name]) if name in known.env_reasons else said


def _text(text: str) -> str:
    """Dollars that no variable follows are doubled; the engine's own JSON has no variables."""
    if text[:1] in ("{", "["):
        return text.replace("$", "$$")
    return _NOT_A_VARIABLE.sub("$$", text)
