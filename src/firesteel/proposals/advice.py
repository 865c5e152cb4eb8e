"""Why a proposal must not be launched here, and what to type instead. Pure.

    require_runnable(proposal, held)      raises; held: what each running service would free, by name

Every suggestion is held against the plan before it is made: what would not be enough is not said.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import accumulate

from firesteel.errors import DoesNotFit, HostNotReady, Stopped, UsageError
from firesteel.planner import largest_context
from firesteel.proposals.propose import Proposal
from firesteel.units import show_bytes


def has_weights(proposal: Proposal) -> bool:
    """A config.json can be planned and not served: an engine would look for a model of the file's name."""
    return proposal.recipe is not None or not (proposal.asked or "").endswith(".json")


def require_weights(proposal: Proposal) -> None:
    if not has_weights(proposal):
        raise UsageError(
            f"{proposal.asked} describes a model and has no weights to serve",
            next="give the folder that holds them, or the Hub id",
        )


def require_runnable(proposal: Proposal, held: Mapping[str, int] | None = None) -> None:
    """Raises why it must not be launched here: too few Sparks, no room, a rule that stops it, no GPU."""
    require_weights(proposal)
    memory, sparks = proposal.plan.memory, proposal.plan.launch.sparks
    if proposal.lacks_sparks:
        raise HostNotReady(
            f"{proposal.name} runs on {sparks} Sparks together, and this host is one",
            next=f"firesteel cluster add spark2, then firesteel up {proposal.name} --cluster; or "
            "firesteel models, for what runs on one",
        )
    if not proposal.plan.fits:
        raise DoesNotFit(
            f"{proposal.name} does not fit {proposal.plan.machine}: it needs "
            f"{show_bytes(round(memory.needed.expected))}, there is room for "
            f"{show_bytes(memory.budget_bytes)}",
            next=how_to_fit(proposal, held),
        )
    if proposal.stops:
        first = proposal.stops[0]
        raise Stopped(
            f"{first.rule}: {first.says}", next=first.instead or f"firesteel check --explain {first.rule}"
        )
    if not proposal.suits_host:
        raise HostNotReady(
            f"{proposal.name} needs an NVIDIA GPU, and nvidia-smi shows none here",
            next="firesteel up smollm2, which needs none",
        )


def how_to_fit(proposal: Proposal, held: Mapping[str, int] | None = None) -> str:
    ways = []
    if stopped := services_to_stop(proposal.plan.memory.short_bytes, held or {}):
        ways.append(f"{down(stopped, held or {})}, then repeat the command")
    if context := largest_context(proposal.plan):
        ways.append(f"--context {context}")
    return "; or ".join(ways) or "firesteel models, which shows what fits"


def services_to_stop(short_bytes: int, held: Mapping[str, int]) -> tuple[str, ...]:
    """The fewest services that together free enough, largest first; none if all of them would not."""
    largest = sorted((name for name in held if held[name] > 0), key=lambda name: -held[name])
    for count, freed in enumerate(accumulate(held[name] for name in largest), 1):
        if freed >= short_bytes:
            return tuple(largest[:count])
    return ()


def down(names: Iterable[str], running: Iterable[str]) -> str:
    """The command that stops these services."""
    names = tuple(names)
    if len(names) > 1 and set(names) == set(running):
        return "firesteel down --all"
    return " && ".join(f"firesteel down {name}" for name in names)


def alternative(proposal: Proposal, ranked: Iterable[Proposal]) -> Proposal | None:
    """Another recipe that can run where this one does not fit: of the same family if there is one."""
    able = [other for other in ranked if other.can_run and other.name != proposal.name]
    family = _family(proposal)
    return next((other for other in able if _family(other) == family), able[0] if able else None)


def _family(proposal: Proposal) -> str:
    """`nvidia/Qwen3.6-27B-NVFP4` and `Qwen/Qwen3.6-35B-A3B` -> `qwen3.6`: the name before its size."""
    name = proposal.plan.launch.model.rpartition("/")[2].lower()
    return re.split(r"-[a-z]?\d+(?:\.\d+)?[bm]\b", name)[0]
