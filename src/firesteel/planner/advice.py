"""Why a proposal must not be launched here, what to type instead, and whether several hosts pay. Pure.

    require_runnable(proposal, running)      raises; running: what each service would free, by name

Every suggestion is checked against the plan first: what would not be enough is not suggested. Several hosts
are compared with one alone and with replicas.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import accumulate

from firesteel.errors import DoesNotFit, HostNotReady, Stopped, UsageError
from firesteel.planner.plan import largest_context
from firesteel.planner.propose import Proposal
from firesteel.planner.speed.decode import constants
from firesteel.units import Band, show_bytes, show_figure, show_rate
from firesteel.values import Value, replace


def has_weights(proposal: Proposal) -> bool:
    """A config.json can be planned and not served: an engine would look for a model of the file's name."""
    return proposal.recipe is not None or not (proposal.asked or "").endswith(".json")


def require_weights(proposal: Proposal) -> None:
    if not has_weights(proposal):
        raise UsageError(
            f"{proposal.asked} describes a model and has no weights to serve",
            next="give the folder that holds them, or the Hub id",
        )


def require_runnable(proposal: Proposal, running: Mapping[str, int] | None = None) -> None:
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
            next=how_to_fit(proposal, running),
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


def how_to_fit(proposal: Proposal, running: Mapping[str, int] | None = None) -> str:
    ways = []
    if stopped := services_to_stop(proposal.plan.memory.short_bytes, running or {}):
        ways.append(f"{down(stopped, running or {})}, then repeat the command")
    if context := largest_context(proposal.plan):
        ways.append(f"--context {context}")
    return "; or ".join(ways) or "firesteel models, which shows what fits"


def services_to_stop(short_bytes: int, running: Mapping[str, int]) -> tuple[str, ...]:
    """The fewest services that together free enough, largest first; none if all of them would not."""
    largest = sorted((name for name in running if running[name] > 0), key=lambda name: -running[name])
    for count, freed in enumerate(accumulate(running[name] for name in largest), 1):
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


# --- several hosts ---

PAYS = 1.15
"""Less is within the error of the figures: two Sparks are predicted with a mean error of 17 %."""
_NAMES = {2: "two Sparks", 3: "three Sparks", 4: "four Sparks", 8: "eight Sparks"}
PUBLISHED = "published pairs gain 1.20 to 1.41 x on MoE decode, 2.09 x on one dense model"
"""unslothai/unsloth PR 10280, 2026-09-04, and the two-node rows of the measured data; seen 2026-11-15."""


class OverHosts(Value):
    """What several hosts gain."""

    hosts: int
    fits_alone: bool
    fits_together: bool
    alone_tokens_per_s: Band | None
    together_tokens_per_s: Band | None
    gain: Band | None
    """Of one user's decode speed. None where one host cannot hold it, or a speed is not known."""
    replicas_tokens_per_s: float | None
    """All users together, each host with a copy of its own behind the gateway."""
    together_total_tokens_per_s: float | None
    verdict: str = ""

    @property
    def published(self) -> str:
        """What others have measured."""
        return PUBLISHED


def over_hosts(together: Proposal, alone: Proposal) -> OverHosts:
    """`alone`: the same recipe on one host, with the same context and users."""
    hosts, plan, single = together.plan.launch.sparks, together.plan, alone.plan
    ours = plan.speed.decode_tokens_per_s if plan.speed else None
    its = single.speed.decode_tokens_per_s if single.speed else None
    gain = None
    if ours and its and single.fits:
        # One model predicts both, so its error is common to them; the band is that of runs on one and on two.
        ratio, off = ours.expected / its.expected, constants().two_sparks
        gain = Band(ratio * off.low, ratio, ratio * off.high)
    replicas = _total(alone)
    found = OverHosts(
        hosts=hosts,
        fits_alone=single.fits,
        fits_together=plan.fits,
        alone_tokens_per_s=its if single.fits else None,
        together_tokens_per_s=ours,
        gain=gain,
        replicas_tokens_per_s=replicas * hosts if replicas and single.fits else None,
        together_total_tokens_per_s=_total(together),
    )
    return replace(found, verdict=_verdict(found, together, alone))


def _total(proposal: Proposal) -> float | None:
    speed = proposal.plan.speed
    if speed is None:
        return None
    return speed.batch.total_tokens_per_s.expected if speed.batch else speed.decode_tokens_per_s.expected


def _verdict(found: OverHosts, together: Proposal, alone: Proposal) -> str:
    name = _NAMES.get(found.hosts, f"{found.hosts} Sparks")
    if not found.fits_together:
        return f"does not fit {name} either: {show_bytes(together.plan.memory.short_bytes)} short on each"
    if not found.fits_alone:
        short = show_bytes(alone.plan.memory.short_bytes)
        rate = found.together_tokens_per_s
        speed = f", at about {show_rate(rate.expected)}" if rate else ""
        return f"one Spark cannot hold it ({short} short); {name} can{speed}"
    if found.gain is None:
        return f"{name} and one alone both hold it; their speed is not known here"
    if found.gain.expected < PAYS:
        return (
            f"does not pay: {name} gain {found.gain.expected:.2f} x for one user; replicas behind the "
            f"gateway serve {found.hosts} x as many"
        )
    gain = f"{name} gain {found.gain.expected:.1f} x here for one user"
    replicas, total = found.replicas_tokens_per_s, found.together_total_tokens_per_s
    if replicas and total and replicas > PAYS * total:
        return f"{gain}; replicas serve more: {show_rate(replicas)} in all, against {show_figure(total)}"
    return gain
