"""Launch -> a systemd unit of the user that runs it as `docker run`; `reads.systemd` is the inverse.

It is a user unit, not a system unit: `%h` is then the home with the Hub's cache, and the file with the
secrets belongs to the user. The container stays in the foreground and is removed when it ends, so that
systemd notices; systemd, not docker, restarts it, and gives up after three times.
Seen in systemd.service(5), systemd.unit(5), systemd.exec(5), 2026-11-15.
"""

from __future__ import annotations

from math import ceil

from firesteel.launch import Launch, container_name
from firesteel.render.docker import (
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
    passed_through,
    pin,
    rank_of,
    require_one_spark,
    required_key,
    warm_request,
)
from firesteel.render.unit_text import unit_line, unit_word
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
