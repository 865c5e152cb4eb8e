"""Launch -> a podman quadlet (`NAME.container`); `reads.systemd` is the inverse.

Podman makes a systemd service of it. What has a key is said by its key; what has none (`--ipc`, a cleared
entrypoint, a variable passed on by name) goes through `PodmanArgs`. Podman asks where a short image name is
meant to come from, so docker's own registry is written out. Its parser takes no comment inside a continued
line, so reasons stand above `Exec=`.
Seen in https://docs.podman.io/en/latest/markdown/podman-container.unit.5.html, 2026-11-15.
"""

from __future__ import annotations

from dataclasses import replace

from firesteel.catalog import container_name
from firesteel.errors import UsageError
from firesteel.launch import Container, Launch, Mount
from firesteel.render.docker import after_image, contained, docker_size
from firesteel.render.launch_facts import (
    NOTHING,
    LaunchFacts,
    by_name,
    comments,
    heading,
    is_by_name,
    on_one_spark,
    pinned,
    reasons_by_word,
)
from firesteel.render.systemd import INSTALL, install, restarting, secrets, unit_section
from firesteel.render.unit_text import unit_line, unit_word

PULL_S = 3600
"""The first start pulls the image, some 20 GB."""
_VALUES = {"user": "User", "workdir": "WorkingDir", "ulimit": "Ulimit", "cap-add": "AddCapability",
           "cap-drop": "DropCapability", "group-add": "GroupAdd", "device": "AddDevice"}  # fmt: skip


def quadlet(launch: Launch, known: LaunchFacts = NOTHING) -> str:
    """The text of `~/.config/containers/systemd/firesteel-NAME.container`."""
    on_one_spark(launch, "a quadlet")
    launch = podmans(contained(pinned(launch, known)))
    unit = container_name(launch.name)
    head = [*heading(launch, known), *install(f"~/.config/containers/systemd/{unit}.container", unit)]
    lines = [*comments(head), *unit_section(launch, known), "", "[Container]", *_container(launch, known)]
    lines += ["", "[Service]", *secrets(launch), *restarting(), f"TimeoutStartSec={PULL_S}"]
    return "\n".join([*lines, "", *INSTALL]) + "\n"


def podmans(launch: Launch) -> Launch:
    """The launch as podman runs it: registry written out, restarts left to systemd."""
    box = launch.container
    assert box is not None, "contained() gives one"
    host, slash, _ = box.image.partition("/")
    is_whole = slash and ("." in host or ":" in host or host == "localhost")
    image = box.image if is_whole else f"docker.io/{box.image}" if slash else f"docker.io/library/{box.image}"
    kept = tuple(option for option in box.options if option[0] not in ("rm", "detach"))
    return replace(launch, container=replace(box, image=image, restart=None, options=kept))


def _container(launch: Launch, known: LaunchFacts) -> list[str]:
    box = launch.container
    assert box is not None, "contained() gives one"
    named = dict(box.options).get("name") or container_name(launch.name)
    lines = [f"Image={unit_word(box.image)}", f"ContainerName={unit_word(named)}"]
    labels = {"firesteel": launch.name, **box.labels}
    lines += [f"Label={unit_word(f'{name}={value}')}" for name, value in labels.items()]
    lines += _resources(box)
    lines += [f"PublishPort={unit_word(each)}" for each in box.publish]
    lines += [_volume(mount) for mount in box.mounts]
    lines += _environment(launch, known)
    lines += _options(box)
    if box.entrypoint is not None:
        lines.append(unit_line("PodmanArgs", [(f"--entrypoint={box.entrypoint}",)]))
    why = (f"{word}: {why}" for word, why in reasons_by_word(launch, known).items())
    return [*lines, *comments(why), unit_line("Exec", after_image(launch, box))]


def _resources(box: Container) -> list[str]:
    lines = []
    if box.gpus is not None:
        lines += [f"AddDevice=nvidia.com/gpu={each}" for each in _gpus(box.gpus)]
    if box.ipc is not None:
        lines.append(unit_line("PodmanArgs", [(f"--ipc={box.ipc}",)]))
    if box.shm_bytes is not None:
        lines.append(f"ShmSize={docker_size(box.shm_bytes)}")
    if box.network is not None:
        lines.append(f"Network={unit_word(box.network)}")
    return lines


def _gpus(gpus: str) -> list[str]:
    """The container toolkit's names: `all`, or each by its number."""
    said = gpus.strip('"')
    if said.isdecimal():
        return [str(number) for number in range(int(said))]
    return said.removeprefix("device=").split(",")


def _volume(mount: Mount) -> str:
    if ":" in mount.source + mount.target:
        raise UsageError(
            f"a quadlet cannot mount `{mount.source}`: a colon parts source and target", next="rename it"
        )
    return f"Volume={unit_word(f'{mount.source}:{mount.target}' + (':ro' if mount.read_only else ''))}"


def _environment(launch: Launch, known: LaunchFacts) -> list[str]:
    lines = []
    for name, value in launch.env.items():
        if not is_by_name(name, value):
            lines += comments([known.env_reasons[name]] if name in known.env_reasons else [])
            lines.append(f"Environment={unit_word(f'{name}={value}')}")
    names = by_name(launch)
    return [*lines, *(unit_line("PodmanArgs", [("--env", name)]) for name in names)]


def _options(box: Container) -> list[str]:
    lines = []
    for name, value in box.options:
        if name in _VALUES and value is not None:
            lines.append(f"{_VALUES[name]}={unit_word(value)}")
        elif name != "name":
            word = f"--{name}" if value is None else f"--{name}={value}"
            lines.append(unit_line("PodmanArgs", [(word,)]))
    return lines
