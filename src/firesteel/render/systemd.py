"""Launch -> a systemd unit of the user that runs it as `docker run`; `reads.systemd` is the inverse.

A user's unit, not the system's: `%h` is then the home with the Hub's cache in it, and the file with the
secrets is the user's own. The container stays in the foreground and is removed when it ends, so systemd sees
what happens to it; systemd, not docker, starts it again, and gives up after three times.
Seen in systemd.service(5), systemd.unit(5), systemd.exec(5), 2026-11-15.
"""

from __future__ import annotations

from dataclasses import replace

from firesteel.catalog import container_name
from firesteel.launch import Launch
from firesteel.render.docker import after_image, contained, groups, has_script
from firesteel.render.launch_facts import (
    NOTHING,
    RESTARTS,
    LaunchFacts,
    by_name,
    comments,
    heading,
    key_asked_for,
    on_one_spark,
    pinned,
    reasons_by_word,
)
from firesteel.render.unit_text import unit_line, unit_word

GIVE_UP_WITHIN_S = 3600
"""Starts are counted over this long: longer than three slow ones take."""
STOP_S = 60
INSTALL = ("[Install]", "WantedBy=default.target")


def systemd(launch: Launch, known: LaunchFacts = NOTHING) -> str:
    """The text of `~/.config/systemd/user/firesteel-NAME.service`."""
    on_one_spark(launch, "a unit")
    launch = in_foreground(contained(pinned(launch, known)))
    box = launch.container
    assert box is not None, "contained() gives one"
    name = dict(box.options).get("name") or container_name(launch.name)
    head = [
        *heading(launch, known, with_reasons=has_script(launch)),
        *install(
            f"~/.config/systemd/user/{container_name(launch.name)}.service", container_name(launch.name)
        ),
    ]
    lines = [*comments(head), *unit_section(launch, known), "", "[Service]", "Type=exec"]
    lines += secrets(launch)
    lines += [unit_line("ExecStartPre", [("-docker", "rm", "--force", name or "")])]
    lines += [
        *_start(launch, known),
        unit_line("ExecStop", [("docker", "stop", "-t", str(STOP_S), name or "")]),
    ]
    lines += [*restarting(), f"TimeoutStopSec={STOP_S + 30}", "SuccessExitStatus=143", "", *INSTALL]
    return "\n".join(lines) + "\n"


def in_foreground(launch: Launch) -> Launch:
    """Removed when it ends, and never restarted by docker behind systemd's back."""
    box = launch.container
    assert box is not None, "contained() gives one"
    kept = tuple(option for option in box.options if option[0] not in ("rm", "detach"))
    return replace(launch, container=replace(box, restart=None, options=(*kept, ("rm", None))))


def install(path: str, service: str) -> list[str]:
    return [
        f"Put it at {path}, then: systemctl --user daemon-reload && systemctl --user start {service}",
        "To have it after a reboot: loginctl enable-linger",
    ]


def unit_section(launch: Launch, known: LaunchFacts) -> list[str]:
    title = f"{launch.name} ({launch.model})"
    return [
        "[Unit]",
        f"Description={title.replace('%', '%%')}" if title.isprintable() else "Description=firesteel",
        f"# after {RESTARTS} starts that fail it stays down: each may leak memory on a GB10",
        f"StartLimitIntervalSec={max(GIVE_UP_WITHIN_S, round(4 * (known.start_up_s or 0)))}",
        f"StartLimitBurst={RESTARTS}",
    ]


def restarting() -> list[str]:
    return ["Restart=on-failure", "RestartSec=30"]


def secrets(launch: Launch) -> list[str]:
    """The file that holds what is passed by name."""
    names = by_name(launch)
    if not names:
        return []
    path = f"%h/.config/firesteel/{container_name(launch.name)}.env"
    lines = " and ".join(f"{name}=..." for name in names)
    found = [f"# {lines}, in a file that only you can read: chmod 600", f"EnvironmentFile=-{path}"]
    key = key_asked_for(launch)
    if key:
        check = f'ExecStartPre=sh -c "test -n \\"$${{{key}}}\\""'
        found += ["# without the key it would answer everybody", check]
    return found


def _start(launch: Launch, known: LaunchFacts) -> list[str]:
    """`ExecStart=`, a line a flag; systemd skips the comments between them."""
    reasons = reasons_by_word(launch, known)
    box = launch.container
    assert box is not None, "contained() gives one"
    flags = set(after_image(launch, box)[1:])
    lines = []
    for number, group in enumerate(groups(launch, detach=False)):
        if group in flags and group[0] in reasons:
            lines += comments([reasons[group[0]]], 2)
        start = "ExecStart=" if number == 0 else "  "
        lines.append(start + " ".join(unit_word(word) for word in group) + " \\")
    lines[-1] = lines[-1].removesuffix(" \\")
    return lines
