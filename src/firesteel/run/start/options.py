"""How a proposal runs, beyond what it is: who may reach it, whose code it may run, whether it starts at boot.

Proposal + RunOptions -> ServiceSpec, which is all that a supervisor knows.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from firesteel.edge.home import (
    Home,
    expand_home,
    hub_token,
    new_key,
    read_secrets,
    secrets_path,
    write_secrets,
)
from firesteel.edge.host import reaper
from firesteel.edge.host.memory import meminfo
from firesteel.errors import Stopped
from firesteel.launch import ENGINE_KEY_VARIABLES, HUB_TOKEN, Step
from firesteel.planner.memory.measured import launch_key
from firesteel.planner.propose import Proposal
from firesteel.run.service import ServiceSpec
from firesteel.run.start.environment import named_by
from firesteel.run.start.listen import LOOPBACK, is_wide, reached_at
from firesteel.run.start.steps import attach_command, make_steps
from firesteel.values import Value, replace

REAPER = str(Path(reaper.__file__))
_GRACE_S, _CLUSTER_GRACE_S = 20.0, 60.0
"""How long a polite stop may take; over several hosts each has to be reached first."""
_COMMIT = re.compile(r"[0-9a-f]{40}\Z")


class RunOptions(Value):
    """How it is to run, beyond what it is."""

    listen: str = LOOPBACK
    trusts_code: bool = False
    """The user said so: code that comes with the weights may run."""
    at_boot: bool = False
    service_file: str = ""
    """The path of the service file that has it; empty: none."""
    is_swapped_in: bool = False
    """By a gateway, which loads models again and again."""


def make_spec(proposal: Proposal, home: Home, options: RunOptions) -> ServiceSpec:
    launch = proposal.plan.launch
    step = make_steps(proposal, home)[-1]
    has_runner = launch.sparks > 1  # it stops the containers of all hosts
    is_container = launch.container is not None and not has_runner
    return ServiceSpec(
        name=launch.name,
        url=reached_at(options.listen, launch.port),
        model=launch.name,
        start=_under_reaper(proposal, step),
        env=dict(step.command.env),
        ask=replace(
            proposal.ask,
            model=proposal.recipe.name if proposal.recipe else proposal.asked,
            port=launch.port,
            name=launch.name,
        ),
        listen=options.listen,
        trusts_code=options.trusts_code,
        service_file=options.service_file,
        is_swapped_in=options.is_swapped_in,
        stop=step.undo.argv if step.undo and is_container else (),
        attach=attach_command(launch).argv if is_container else (),
        stop_grace_s=_CLUSTER_GRACE_S if has_runner else _GRACE_S,
        memory_floor_bytes=proposal.plan.host.keep_free_bytes // 2,
        available_bytes=meminfo().available_bytes,
        container_bytes=round(proposal.plan.memory.needed.low) if launch.container else 0,
        expected_bytes=round(proposal.plan.memory.needed.expected),
        prefill_s=proposal.plan.longest_prefill_s or 0,
        launch=launch_key(launch),
        engine=launch.engine,
        secrets=str(secrets_path(home, launch.name)),
        is_guarded_by_key=is_wide(options.listen),
        at_boot=options.at_boot,
    )


def start_argv(proposal: Proposal, home: Home) -> tuple[str, ...]:
    """What the supervisor starts."""
    return _under_reaper(proposal, make_steps(proposal, home)[-1])


def _under_reaper(proposal: Proposal, step: Step) -> tuple[str, ...]:
    """A program gets a reaper around it, which takes its whole tree with it."""
    argv = expand_home(step.command.argv)
    return (sys.executable, "-I", "-S", REAPER, *argv) if proposal.plan.launch.program else argv


def need_trust(proposal: Proposal, options: RunOptions) -> None:
    """Code beside the weights runs as ours. It may if it cannot change any more, or if the user says so."""
    flags = proposal.plan.launch.flags
    if not flags.get("trust-remote-code") or options.trusts_code:
        return
    pinned = flags.get("code-revision") or flags.get("revision")
    if not (isinstance(pinned, str) and _COMMIT.match(pinned)):
        raise Stopped(
            f"{proposal.name} runs code that comes with its weights, of no fixed revision: its owner may "
            "change it at any time",
            next=f"firesteel up {proposal.name} --trust-remote-code, if you trust {proposal.asked or 'it'}",
        )


def write_secrets_of(proposal: Proposal, spec: ServiceSpec) -> None:
    """What the launch passes on by name, and its key.

    The key stays the same from start to start: clients have it.
    """
    kept = read_secrets(Path(spec.secrets))
    caller = {**os.environ, HUB_TOKEN: hub_token() or ""}
    values = {name: caller[name] for name in named_by(spec.start) if caller.get(name)}
    if spec.is_guarded_by_key:
        variable = ENGINE_KEY_VARIABLES[proposal.plan.launch.engine]
        values[variable] = kept.get(variable) or new_key()
    write_secrets(Path(spec.secrets), values)
