"""Launch -> a systemd unit, with or without a container, or a podman quadlet; `reads.systemd` is the inverse.

A unit is the user's, not the system's: `%h` is then the home with the Hub's cache, and the file with the
secrets belongs to the user. The container stays in the foreground and is removed when it ends, so that
systemd notices; systemd, not docker, restarts it, and gives up after three times.
Seen in systemd.syntax(7), systemd.service(5), systemd.unit(5), systemd.exec(5) and
https://docs.podman.io/en/latest/markdown/podman-container.unit.5.html, 2026-11-15.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import ceil

from firesteel.engines.engine import argv
from firesteel.errors import UsageError
from firesteel.launch import Container, Launch, Mount, container_name
from firesteel.reads.docker import docker_size
from firesteel.render.docker import (
    ENGINE_JSON,
    argument_groups,
    container_arguments,
    container_of,
    containerized,
    has_script,
)
from firesteel.render.launch_facts import (
    DOWNLOAD_BYTES_PER_S,
    NO_FACTS,
    RESTARTS,
    LaunchFacts,
    comments,
    flag_comments,
    heading,
    host_folders,
    host_url,
    is_passed_through,
    passed_through,
    pin,
    rank_of,
    require_one_spark,
    required_key,
    warm_request,
)
from firesteel.values import replace

PULL_S = 3600
GIVE_UP_WITHIN_S = 3600
"""The period in which starts are counted: longer than three slow ones take."""
STOP_S = 60
INSTALL_SECTION = ("[Install]", "WantedBy=default.target")


def systemd(launch: Launch, facts: LaunchFacts = NO_FACTS) -> str:
    """The text of `~/.config/systemd/user/firesteel-NAME.service`."""
    require_one_spark(launch, "a unit")
    launch = in_foreground(containerized(pin(launch, facts)))
    container = container_of(launch)
    name = dict(container.options).get("name") or container_name(launch.name)
    head = [
        *heading(launch, facts, with_reasons=has_script(launch)),
        *install_notes(
            f"~/.config/systemd/user/{container_name(launch.name)}.service", container_name(launch.name)
        ),
    ]
    lines = [
        *comments(head),
        *unit_section(launch, facts),
        "",
        "[Service]",
        "Type=exec",
        *secret_lines(launch),
        *folder_lines(launch),
        unit_line("ExecStartPre", [("-docker", "rm", "--force", name)]),
        *_start(launch, facts),
        unit_line("ExecStop", [("docker", "stop", "-t", str(STOP_S), name)]),
        *warm_lines(launch),
        *restart_lines(launch),
        f"TimeoutStartSec={start_timeout_s(facts)}",
        f"TimeoutStopSec={STOP_S + 30}",
        "SuccessExitStatus=143",
        "",
        *INSTALL_SECTION,
    ]
    return "\n".join(lines) + "\n"


def in_foreground(launch: Launch) -> Launch:
    """Removed when it ends, and never restarted by docker behind systemd's back."""
    container = container_of(launch)
    options = tuple(option for option in container.options if option[0] not in ("rm", "detach"))
    return replace(launch, container=replace(container, restart=None, options=(*options, ("rm", None))))


def install_notes(path: str, service: str) -> list[str]:
    return [
        f"Put it at {path}, then: systemctl --user daemon-reload && systemctl --user start {service}",
        "To start it after a reboot: loginctl enable-linger",
    ]


def unit_section(launch: Launch, facts: LaunchFacts) -> list[str]:
    title = f"{launch.name} ({launch.model})"
    return [
        "[Unit]",
        f"Description={title.replace('%', '%%')}" if title.isprintable() else "Description=firesteel",
        f"# gives up after {RESTARTS} failed starts: each may leak memory on a GB10",
        f"StartLimitIntervalSec={max(GIVE_UP_WITHIN_S, round(4 * (facts.start_up_s or 0)))}",
        f"StartLimitBurst={RESTARTS}",
    ]


def restart_lines(launch: Launch) -> list[str]:
    if rank_of(launch) is not None:
        return ["# a rank that starts alone waits for the others for ever: restart all of them", "Restart=no"]
    return ["Restart=on-failure", "RestartSec=30"]


def start_timeout_s(facts: LaunchFacts) -> int:
    """The first start pulls the image, some 20 GB, and downloads the weights."""
    return ceil(PULL_S + (facts.start_up_s or 0) + (facts.weights_bytes or 0) / DOWNLOAD_BYTES_PER_S)


def folder_lines(launch: Launch) -> list[str]:
    folders = host_folders(launch)
    if not folders:
        return []
    return [
        "# podman creates no folders, and docker would create them for root",
        unit_line("ExecStartPre", [("mkdir", "-p", *folders)]),
    ]


def warm_lines(launch: Launch) -> list[str]:
    """The unit is started once the engine answers and has had its first request, or has failed."""
    if rank_of(launch) or not container_of(launch).gpus:
        return []
    health = f"curl -fsS -o /dev/null {host_url(launch)}/health 2>/dev/null"
    wait = f"while kill -0 $MAINPID && ! {health}; do sleep 2; done"
    script = f"{wait}; {warm_request(launch)}".replace("\\", "\\\\").replace('"', '\\"')
    # Every variable is the shell's: systemd would split its value.
    script = script.replace("%", "%%").replace("$", "$$")
    return [
        "# the first request compiles kernels: users do not wait for it",
        f'ExecStartPost=-sh -c "{script}"',
    ]


def secret_lines(launch: Launch) -> list[str]:
    """The file with the variables that are passed on by name."""
    names = passed_through(launch)
    if not names:
        return []
    path = f"%h/.config/firesteel/{container_name(launch.name)}.env"
    lines = " and ".join(f"{name}=..." for name in names)
    section = [f"# {lines}, in a file that only you can read: chmod 600", f"EnvironmentFile=-{path}"]
    key = required_key(launch)
    if key:
        check = f'ExecStartPre=sh -c "test -n \\"$${{{key}}}\\""'
        section += ["# without the key it would answer anyone", check]
    return section


def _start(launch: Launch, facts: LaunchFacts) -> list[str]:
    """`ExecStart=`, one flag on each line; systemd skips the comments between them."""
    reasons = flag_comments(launch, facts)
    container = container_of(launch)
    flags = set(container_arguments(launch, container)[1:])
    lines = []
    for number, group in enumerate(argument_groups(launch, detach=False)):
        if group in flags and group[0] in reasons:
            lines += comments([reasons[group[0]]], 2)
        start = "ExecStart=" if number == 0 else "  "
        lines.append(start + " ".join(unit_word(word) for word in group) + " \\")
    lines[-1] = lines[-1].removesuffix(" \\")
    return lines


def native_unit(launch: Launch, facts: LaunchFacts = NO_FACTS) -> str:
    """The text of `~/.config/systemd/user/firesteel-NAME.service`. systemd ends all processes of the unit."""
    require_one_spark(launch, "a unit")
    if launch.program is None:
        raise UsageError(f"{launch.name} is no program of this machine", next="--native")
    name = container_name(launch.name)
    head = [*heading(launch, facts), *install_notes(f"~/.config/systemd/user/{name}.service", name)]
    lines = [
        *comments(head),
        *unit_section(launch, facts),
        "",
        "[Service]",
        "Type=exec",
        *(f"Environment={unit_word(f'{variable}={value}')}" for variable, value in launch.env.items()),
        unit_line("ExecStart", [launch.program.argv, argv(launch)]),
        *restart_lines(launch),
        "KillMode=mixed",
        f"TimeoutStartSec={start_timeout_s(facts)}",
        f"TimeoutStopSec={STOP_S}",
        "SuccessExitStatus=143",
        "",
        *INSTALL_SECTION,
    ]
    return "\n".join(lines) + "\n"


_VALUES = {"user": "User", "workdir": "WorkingDir", "ulimit": "Ulimit", "cap-add": "AddCapability",
           "cap-drop": "DropCapability", "group-add": "GroupAdd", "device": "AddDevice"}  # fmt: skip

_HEALTH = {"health-cmd": "HealthCmd", "health-start-period": "HealthStartPeriod",
           "health-interval": "HealthInterval", "health-timeout": "HealthTimeout",
           "health-retries": "HealthRetries"}  # fmt: skip


def quadlet(launch: Launch, facts: LaunchFacts = NO_FACTS) -> str:
    """The text of `~/.config/containers/systemd/firesteel-NAME.container`.

    Podman generates a systemd service from it. Settings without a key of their own (`--ipc`, a cleared
    entrypoint, a variable passed on by name) go through `PodmanArgs`. Podman asks for the registry of a short
    image name, so docker's registry is added. Its parser allows no comment inside a continued line, so the
    reasons come above `Exec=`.
    """
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


_PLAIN = re.compile(r"[A-Za-z0-9_./:@=,+{}\[\]~-]+\Z", re.ASCII)
_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)\}|\$([A-Za-z_]\w*)", re.ASCII)
_LETTERS = {"\n": "\\n", "\t": "\\t", "\r": "\\r", '"': '\\"', "\\": "\\\\", "%": "%%", "$": "$$"}


def unit_line(key: str, groups: Iterable[Iterable[str]]) -> str:
    """`Key=` and its arguments, one group on each line."""
    return f"{key}=" + " \\\n  ".join(" ".join(unit_word(word) for word in group) for group in groups)


def unit_word(word: str) -> str:
    """Quote an argument for systemd.

    It is not a shell: `%` begins a specifier and is doubled, a lone `$` is doubled, double quotes have C
    escapes. It expands what a shell would: `$NAME` as a whole word, `${NAME}` inside one, `%h` for `~`.
    """
    whole = _VARIABLE.fullmatch(word)
    if whole and whole[2]:
        return word
    home, rest = ("%h/", word[2:]) if word.startswith("~/") else ("", word)
    if rest and _PLAIN.match(rest):
        return home + rest
    quoted = _escaped(rest) if ENGINE_JSON.match(rest) else _with_variables(rest)
    return f'"{home}{quoted}"'


def _with_variables(text: str) -> str:
    pieces, offset = [], 0
    for use in _VARIABLE.finditer(text):
        pieces += [_escaped(text[offset : use.start()]), f"${{{use[1] or use[2]}}}"]
        offset = use.end()
    return "".join([*pieces, _escaped(text[offset:])])


def _escaped(text: str) -> str:
    return "".join(
        _LETTERS.get(letter) or (letter if letter.isprintable() else _code(letter)) for letter in text
    )


def _code(letter: str) -> str:
    code = ord(letter)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
