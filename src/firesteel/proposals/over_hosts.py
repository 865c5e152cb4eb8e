"""Do several hosts pay? The plan over all of them, compared with one alone and with replicas. Pure."""

from __future__ import annotations

from firesteel.planner.speed.constants import constants
from firesteel.proposals.propose import Proposal
from firesteel.units import Band, show_bytes, show_figure, show_rate
from firesteel.values import Value, replace

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
    gain = _ratio(ours, its) if ours and its and single.fits else None
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


def _ratio(ours: Band, its: Band) -> Band:
    """One model predicts both, so its error is common to them; the band is that of runs on one and on two."""
    expected, off = ours.expected / its.expected, constants().two_sparks
    return Band(expected * off.low, expected, expected * off.high)


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
