"""Launch of a program of this machine -> a systemd unit of the user, without a container."""

from __future__ import annotations

from firesteel.engines.engine import argv
from firesteel.errors import UsageError
from firesteel.launch import Launch, container_name
from firesteel.render.launch_facts import NO_FACTS, LaunchFacts, comments, heading, require_one_spark
from firesteel.render.systemd import (
    INSTALL_SECTION,
    STOP_S,
    install_notes,
    restart_lines,
    start_timeout_s,
    unit_section,
)
from firesteel.render.unit_text import unit_line, unit_word


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
