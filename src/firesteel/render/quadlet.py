"""Launch -> a podman quadlet (`NAME.container`); `reads.systemd` is the inverse.

Podman generates a systemd service from it. Settings without a key of their own (`--ipc`, a cleared
entrypoint, a variable passed on by name) go through `PodmanArgs`. Podman asks for the registry of a short
image name, so docker's registry is added. Its parser allows no comment inside a continued line, so the
reasons come above `Exec=`.
Seen in https://docs.podman.io/en/latest/markdown/podman-container.unit.5.html, 2026-11-15.
"""

from __future__ import annotations

from firesteel.errors import UsageError
from firesteel.launch import Container, Launch, Mount, container_name
from firesteel.reads.docker import docker_size
from firesteel.render.docker import container_arguments, container_of, containerized
from firesteel.render.launch_facts import (
    NO_FACTS,
    LaunchFacts,
    comments,
    flag_comments,
    heading,
    is_passed_through,
    passed_through,
    pin,
    require_one_spark,
)
from firesteel.render.systemd import (
    INSTALL_SECTION,
    folder_lines,
    install_notes,
    restart_lines,
    secret_lines,
    start_timeout_s,
    unit_section,
    warm_lines,
)
from firesteel.render.unit_text import unit_line, unit_word
from firesteel.values import replace

_VALUES = {"user": "User", "workdir": "WorkingDir", "ulimit": "Ulimit", "cap-add": "AddCapability",
           "cap-drop": "DropCapability", "group-add": "GroupAdd", "device": "AddDevice"}  # fmt: skip

_HEALTH = {"health-cmd": "HealthCmd", "health-start-period": "HealthStartPeriod",
           "health-interval": "HealthInterval", "health-timeout": "HealthTimeout",
           "health-retries": "HealthRetries"}  # fmt: skip


def quadlet(launch: Launch, facts: LaunchFacts = NO_FACTS) -> str:
    """The text of `~/.config/containers/systemd/firesteel-NAME.container`."""
    require_one_spark(launch, "a quadlet")
    launch = for_podman(containerized(pin(launch, facts)))
    unit = container_name(launch.name)
    head = [*heading(launch, facts), *install_notes(f"~/.config/containers/systemd/{unit}.container", unit)]
    lines = [*comments(head), *unit_section(launch, facts), "", "[Container]", *_container(launch, facts)]
    lines += ["", "[Service]", *secret_lines(launch), *folder_lines(launch), *warm_lines(launch)]
    lines += [*restart_lines(launch), f"TimeoutStartSec={start_timeout_s(facts)}"]
    return "\n".join([*lines, "", *INSTALL_SECTION]) + "\n"


def for_podman(launch: Launch) -> Launch:
    """The launch as podman runs it: the image with its registry, restarts left to systemd."""
    container = container_of(launch)
    host, slash, _ = container.image.partition("/")
    has_registry = slash and ("." in host or ":" in host or host == "localhost")
    image = (
        container.image
        if has_registry
        else f"docker.io/{container.image}"
        if slash
        else f"docker.io/library/{container.image}"
    )
    options = tuple(option for option in container.options if option[0] not in ("rm", "detach"))
    return replace(launch, container=replace(container, image=image, restart=None, options=options))


def _container(launch: Launch, facts: LaunchFacts) -> list[str]:
    container = container_of(launch)
    name = dict(container.options).get("name") or container_name(launch.name)
    lines = [f"Image={unit_word(container.image)}", f"ContainerName={unit_word(name)}"]
    labels = {"firesteel": launch.name, **container.labels}
    lines += [f"Label={unit_word(f'{name}={value}')}" for name, value in labels.items()]
    lines += _resources(container)
    lines += [f"PublishPort={unit_word(port)}" for port in container.publish]
    lines += [_volume(mount) for mount in container.mounts]
    lines += _environment(launch, facts)
    lines += _options(container)
    if container.entrypoint is not None:
        lines.append(unit_line("PodmanArgs", [(f"--entrypoint={container.entrypoint}",)]))
    why = (f"{word}: {why}" for word, why in flag_comments(launch, facts).items())
    return [*lines, *comments(why), unit_line("Exec", container_arguments(launch, container))]


def _resources(container: Container) -> list[str]:
    lines = []
    if container.gpus is not None:
        lines += [f"AddDevice=nvidia.com/gpu={gpu}" for gpu in _gpus(container.gpus)]
    if container.ipc is not None:
        lines.append(unit_line("PodmanArgs", [(f"--ipc={container.ipc}",)]))
    if container.shm_bytes is not None:
        lines.append(f"ShmSize={docker_size(container.shm_bytes)}")
    if container.network is not None:
        lines.append(f"Network={unit_word(container.network)}")
    return lines


def _gpus(gpus: str) -> list[str]:
    """The names that the container toolkit uses: `all`, or a number for each GPU."""
    value = gpus.strip('"')
    if value.isdecimal():
        return [str(number) for number in range(int(value))]
    return value.removeprefix("device=").split(",")


def _volume(mount: Mount) -> str:
    if ":" in mount.source + mount.target:
        raise UsageError(
            f"a quadlet cannot mount `{mount.source}`: a colon separates source and target", next="rename it"
        )
    return f"Volume={unit_word(f'{mount.source}:{mount.target}' + (':ro' if mount.read_only else ''))}"


def _environment(launch: Launch, facts: LaunchFacts) -> list[str]:
    lines = []
    for name, value in launch.env.items():
        if not is_passed_through(name, value):
            lines += comments([facts.env_reasons[name]] if name in facts.env_reasons else [])
            lines.append(f"Environment={unit_word(f'{name}={value}')}")
    return [*lines, *(unit_line("PodmanArgs", [("--env", name)]) for name in passed_through(launch))]


def _options(container: Container) -> list[str]:
    lines = []
    for name, value in container.options:
        if name in _HEALTH and value is not None:
            lines.append(f"{_HEALTH[name]}={value.replace('%', '%%')}")  # as it is: podman removes no quotes
        elif name in _VALUES and value is not None:
            lines.append(f"{_VALUES[name]}={unit_word(value)}")
        elif name != "name":
            word = f"--{name}" if value is None else f"--{name}={value}"
            lines.append(unit_line("PodmanArgs", [(word,)]))
    return lines
