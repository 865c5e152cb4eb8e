"""Tables of guides that people follow, held against our own plans: where they agree, and why not. Pure."""

from __future__ import annotations

from typing import Literal

from firesteel import shipped_data
from firesteel.catalog.catalog import Catalog
from firesteel.facts.evidence import Evidence
from firesteel.facts.host.hardware import Host
from firesteel.launch import Ask, EngineName, Who
from firesteel.proposals.choose import Use, choose
from firesteel.proposals.propose import propose
from firesteel.units import show_figure
from firesteel.values import FileValue, Value

_TOLERANCE = 0.1
"""How far a size may be off that a guide gives as `about`."""


class ClaimSchema(FileValue, kw_only=True):
    guide: str
    says: str
    recipe: str | None = None
    figure: Literal["decode", "weights"] | None = None
    value: float | None = None
    engine: dict[Who, EngineName] | None = None
    """Which engine the guide names for whom."""
    why: str | None = None
    source: Evidence | None = None


class GuidesSchema(FileValue, kw_only=True):
    guides: dict[str, str]
    claims: tuple[ClaimSchema, ...]


class GuideClaim(Value):
    guide: str
    says: str
    ours: str
    agrees: bool | None
    """None: nothing here can be held against it."""
    why: str | None
    source: str | None


def guide_claims(catalog: Catalog, host: Host) -> tuple[GuideClaim, ...]:
    known = shipped_data.load("choose/guides.yaml", GuidesSchema)
    return tuple(_judged(catalog, host, claim, known.guides[claim.guide]) for claim in known.claims)


def _judged(catalog: Catalog, host: Host, claim: ClaimSchema, guide: str) -> GuideClaim:
    ours, agrees = _ours(catalog, host, claim)
    why = None if agrees else claim.why
    return GuideClaim(guide, claim.says, ours, agrees, why, claim.source.url if claim.source else None)


def _ours(catalog: Catalog, host: Host, claim: ClaimSchema) -> tuple[str, bool | None]:
    if claim.engine:
        uses = {who: Use(who, 4000, "speed") for who in claim.engine}
        chosen = {
            who: choose(catalog, host, use).best.proposal.plan.launch.engine for who, use in uses.items()
        }
        return ", ".join(f"{who}: {engine}" for who, engine in chosen.items()), chosen == claim.engine
    if claim.recipe is None or claim.value is None:
        return "not planned", None
    plan = propose(catalog, host, Ask(claim.recipe))[0].plan
    if claim.figure == "weights":
        gigabytes = plan.weights.total_bytes / 1e9
        return f"{gigabytes:.1f} GB", abs(gigabytes / claim.value - 1) <= _TOLERANCE
    if plan.speed is None:
        return "not known", None
    band = plan.speed.decode_tokens_per_s
    text = f"{show_figure(band.expected)} ({show_figure(band.low)} to {show_figure(band.high)}) tok/s"
    return text, band.low <= claim.value <= band.high
