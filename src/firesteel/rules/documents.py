"""What `plan`, `models`, `check` and `facts` print with `--json`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from firesteel.catalog.recipe import Quality
from firesteel.facts import Provenance
from firesteel.facts.documents import Document, HostJson
from firesteel.facts.evidence import Evidence
from firesteel.launch import EngineName
from firesteel.planner.band import Band
from firesteel.planner.documents import (
    CacheJson,
    LaunchJson,
    MemoryJson,
    SpeedJson,
    cache_json,
    launch_json,
    memory_json,
)
from firesteel.planner.memory.account import Verdict
from firesteel.planner.speed.speed import SpeedBasis
from firesteel.rules.check import Finding
from firesteel.rules.compatibility import CompatibilityRow
from firesteel.rules.propose import Proposal, after
from firesteel.rules.rule import Level


class FindingJson(Document):
    rule: str
    level: Level
    says: str
    instead: str | None
    saw: str
    file: str | None
    line: int | None
    column: int | None
    fixable: bool
    confidence: str
    sources: tuple[Evidence, ...]


class AlternativeJson(Document):
    name: str
    why: str


class PlanJson(Document):
    """`firesteel plan MODEL --json`"""

    document: Literal["firesteel.plan/1"] = "firesteel.plan/1"
    name: str
    model: str
    status: str
    can_run: bool
    host: HostJson
    memory: MemoryJson
    cache: CacheJson
    speed: SpeedJson | None
    findings: tuple[FindingJson, ...]
    notes: tuple[str, ...]
    launch: LaunchJson
    others: tuple[AlternativeJson, ...]
    """Other recipes that serve the model, and why each one ranks lower."""


class PlanCompareJson(Document):
    """`firesteel plan --compare MODEL MODEL --json`"""

    document: Literal["firesteel.plan-compare/1"] = "firesteel.plan-compare/1"
    plans: tuple[PlanJson, ...]


class ModelRowJson(Document):
    name: str
    model: str
    title: str
    engine: EngineName
    status: str
    verdict: Verdict
    can_run: bool
    needed_bytes: Band
    decode_tokens_per_s: Band | None
    speed_from: SpeedBasis | None
    weights_from: Provenance
    quality: tuple[Quality, ...]


class ModelsJson(Document):
    """`firesteel models --json`"""

    document: Literal["firesteel.models/1"] = "firesteel.models/1"
    host: HostJson
    models: tuple[ModelRowJson, ...]


class AllowedJson(Document):
    finding: FindingJson
    reason: str


class FixedJson(Document):
    file: str
    rules: tuple[str, ...]
    diff: str


class UnreadJson(Document):
    file: str
    why: str


class CheckJson(Document):
    """`firesteel check WHAT --json`"""

    document: Literal["firesteel.check/1"] = "firesteel.check/1"
    launches: int
    hardware: str | None
    files: tuple[str, ...]
    findings: tuple[FindingJson, ...]
    allowed: tuple[AllowedJson, ...]
    """Findings that an allow-comment permits."""
    fixed: tuple[FixedJson, ...]
    """What --fix changed, or what --diff would change."""
    unread: tuple[UnreadJson, ...]


class RuleJson(Document):
    """`firesteel check --explain RULE --json`"""

    document: Literal["firesteel.check-explain/1"] = "firesteel.check-explain/1"
    rule: str
    level: Level
    says: str
    instead: str | None
    confidence: str
    hits: tuple[str, ...]
    misses: tuple[str, ...]
    sources: tuple[Evidence, ...]


class FactsJson(Document):
    """`firesteel facts TABLE --json`; a `level` of null: no rule objects"""

    document: Literal["firesteel.facts/1"] = "firesteel.facts/1"
    table: str
    title: str
    rows: tuple[CompatibilityRow, ...]


def finding_json(finding: Finding) -> FindingJson:
    spot = finding.spot
    return FindingJson(
        rule=finding.rule,
        level=finding.level,
        says=finding.says,
        instead=finding.instead,
        saw=finding.saw,
        file=spot.path if spot else None,
        line=spot.line if spot else None,
        column=spot.column if spot else None,
        fixable=finding.fix is not None,
        confidence=finding.confidence,
        sources=finding.sources,
    )


def plan_json(proposal: Proposal, others: tuple[Proposal, ...] = ()) -> PlanJson:
    plan = proposal.plan
    return PlanJson(
        name=proposal.name,
        model=plan.launch.model,
        status=proposal.recipe.status if proposal.recipe else "untried",
        can_run=proposal.can_run,
        host=HostJson.model_validate(plan.host),
        memory=memory_json(plan),
        cache=cache_json(plan),
        speed=SpeedJson.model_validate(plan.speed) if plan.speed else None,
        findings=tuple(map(finding_json, proposal.findings)),
        notes=plan.notes,
        launch=launch_json(plan.launch),
        others=tuple(AlternativeJson(name=other.name, why=after(proposal, other)) for other in others),
    )


def plan_compare_json(proposals: Iterable[Proposal]) -> PlanCompareJson:
    return PlanCompareJson(plans=tuple(plan_json(proposal) for proposal in proposals))


def model_row(proposal: Proposal) -> ModelRowJson:
    plan, recipe, model = proposal.plan, proposal.recipe, proposal.model
    assert recipe is not None and model is not None, "everything in the catalog has both"
    return ModelRowJson(
        name=proposal.name,
        model=model.id,
        title=model.title,
        engine=plan.launch.engine,
        status=recipe.status,
        verdict=plan.memory.verdict,
        can_run=proposal.can_run,
        needed_bytes=plan.memory.needed,
        decode_tokens_per_s=plan.speed.decode_tokens_per_s if plan.speed else None,
        speed_from=plan.speed.basis if plan.speed else None,
        weights_from=model.weights.provenance,
        quality=recipe.quality,
    )
