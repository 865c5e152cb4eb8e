"""Launch -> a compose file with one service; `reads.compose` is the inverse.

Compose expands `$NAME` itself and reads `$$` as one dollar. A variable without a value is passed on from the
shell or from the `.env` file next to the compose file, so the file has no secrets; without the API key that
the engine requires, compose starts nothing. A failed start is repeated three times and not for ever: every
attempt may leak memory on a GB10.
Seen in https://github.com/compose-spec/compose-spec/blob/main/05-services.md and deploy.md, 2026-11-15.
"""

from __future__ import annotations

import re

from firesteel.errors import UsageError
from firesteel.launch import Container, Launch, Mount, container_name
from firesteel.reads.docker import docker_size
from firesteel.render.docker import container_of, containerized, has_script, quote
from firesteel.render.launch_facts import (
    NO_FACTS,
    RESTARTS,
    LaunchFacts,
    heading,
    host_folders,
    is_passed_through,
    passed_through,
    pin,
    rank_of,
    require_one_spark,
    required_key,
    warm_notes,
)
from firesteel.render.yaml_text import Explained, argument_list, document, explain
from firesteel.values import replace

_BOUNDED = re.compile(r"no\Z|on-failure:\d+\Z")
_NOT_A_VARIABLE = re.compile(r"\$(?![A-Za-z_]|\{[A-Za-z_]\w*\})")
_VALUES = {"name": "container_name", "user": "user", "workdir": "working_dir", "hostname": "hostname"}
_LISTS = {"device": "devices", "cap-add": "cap_add", "cap-drop": "cap_drop", "security-opt": "security_opt",
          "env-file": "env_file", "tmpfs": "tmpfs", "expose": "expose", "group-add": "group_add"}  # fmt: skip
_HEALTH = {"health-cmd": "test", "health-start-period": "start_period", "health-interval": "interval",
           "health-timeout": "timeout", "health-retries": "retries"}  # fmt: skip
_SWITCHES = {"init": "init", "read-only": "read_only", "tty": "tty", "interactive": "stdin_open"}
_IGNORED = frozenset({"rm", "detach"})
"""Options for containers started by hand: compose manages its own."""


def compose(launch: Launch, facts: LaunchFacts = NO_FACTS) -> str:
    require_one_spark(launch, "a compose file")
    launch = with_bounded_restart(containerized(pin(launch, facts)))
    secrets = passed_through(launch)
    head = heading(launch, facts, with_reasons=has_script(launch))
    if secrets:
        lines = ", ".join(f"{name}=..." for name in secrets)
        head.append(f"Secrets: write {lines} into `.env` next to this file, and chmod 600 it")
    if folders := host_folders(launch):
        head.append(
            f"First, since docker would create them for root: mkdir -p {' '.join(map(quote, folders))}"
        )
    head += warm_notes(launch)
    return document({"services": {launch.name: _service(launch, facts)}}, head)


def with_bounded_restart(launch: Launch) -> Launch:
    """The launch with a restart policy that gives up."""
    container = container_of(launch)
    is_bounded = container.restart is not None and _BOUNDED.match(container.restart)
    return (
        launch
        if is_bounded
        else replace(launch, container=replace(container, restart=f"on-failure:{RESTARTS}"))
    )


def _service(launch: Launch, facts: LaunchFacts) -> dict[str, object]:
    container = container_of(launch)
    why_restart = "gives up on a start that keeps failing"
    if rank_of(launch) is not None:
        why_restart = "a rank that starts alone waits for the others for ever"
    service: dict[str, object] = {
        "image": _text(container.image),
        "container_name": container_name(launch.name),
        "labels": {
            "firesteel": _text(launch.name),
            **{key: _text(value) for key, value in container.labels.items()},
        },
        "restart": Explained(container.restart, why_restart),
    }
    service |= _settings(container) | _options(container)
    if container.entrypoint is not None:
        service["entrypoint"] = [_text(container.entrypoint)] if container.entrypoint else []
    service["command"] = argument_list(launch, facts, _text)
    if launch.env:
        key = required_key(launch)
        service["environment"] = {
            name: f"${{{name}:?}}"
            if name == key
            else explain(
                None if is_passed_through(name, value) else _text(value), facts.env_reasons.get(name)
            )
            for name, value in launch.env.items()
        }
    return service


def _settings(container: Container) -> dict[str, object]:
    settings: dict[str, object] = {}
    if container.ipc is not None:
        settings["ipc"] = container.ipc
    if container.shm_bytes is not None:
        settings["shm_size"] = docker_size(container.shm_bytes)
    if container.network is not None:
        settings["network_mode"] = container.network
    if container.publish:
        settings["ports"] = [_text(port) for port in container.publish]
    if container.mounts:
        settings["volumes"] = [_volume(mount) for mount in container.mounts]
    if container.gpus is not None:
        settings["deploy"] = {"resources": {"reservations": {"devices": [_device(container.gpus)]}}}
    return settings


def _device(gpus: str) -> dict[str, object]:
    """`--gpus` as a reservation."""
    ids = gpus.strip('"').removeprefix("device=")
    wanted: dict[str, object] = {"count": int(gpus) if gpus.isdecimal() else gpus}
    if ids != gpus.strip('"'):
        wanted = {"device_ids": ids.split(",")}
    return {"driver": "nvidia", **wanted, "capabilities": ["gpu"]}


def _volume(mount: Mount) -> object:
    """The short form, or the long one where compose would take a colon in a path for a separator."""
    if ":" not in mount.source + mount.target:
        return _text(f"{mount.source}:{mount.target}" + (":ro" if mount.read_only else ""))
    kind = "bind" if mount.source[:1] in ("/", ".", "~", "$") else "volume"
    long = {"type": kind, "source": _text(mount.source), "target": _text(mount.target)}
    return {**long, "read_only": True} if mount.read_only else long


def _options(container: Container) -> dict[str, object]:
    settings: dict[str, object] = {}
    for name, value in container.options:
        if name in _VALUES and value is not None:
            settings[_VALUES[name]] = _text(value)
        elif name in _LISTS and value is not None:
            items = settings.setdefault(_LISTS[name], [])
            assert isinstance(items, list)
            items.append(_text(value))
        elif name in _SWITCHES:
            settings[_SWITCHES[name]] = value != "false"
        elif name in _HEALTH and value is not None:
            check = settings.setdefault("healthcheck", {})
            assert isinstance(check, dict)
            check[_HEALTH[name]] = ["CMD-SHELL", _text(value)] if name == "health-cmd" else value
        elif name == "ulimit" and value is not None:
            limits = settings.setdefault("ulimits", {})
            assert isinstance(limits, dict)
            limits |= _ulimit(value)
        elif name not in _IGNORED:
            raise UsageError(
                f"a compose file has no equivalent of `--{name}`", next="firesteel render --as docker"
            )
    return settings


def _ulimit(value: str) -> dict[str, object]:
    name, _, limits = value.partition("=")
    soft, _, hard = limits.partition(":")
    return {name: {"soft": int(soft), "hard": int(hard)} if hard else int(soft)}


def _text(text: str) -> str:
    """Double the dollars that begin no variable; the engine's own JSON has no variables."""
    if text[:1] in ("{", "["):
        return text.replace("$", "$$")
    return _NOT_A_VARIABLE.sub("$$", text)
