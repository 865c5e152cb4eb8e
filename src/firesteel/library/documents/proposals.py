"""What `plan`, `models` and `choose` print with `--json`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from firesteel.catalog.model import Model
from firesteel.catalog.recipe import Quality, Recipe
from firesteel.facts.evidence import Evidence
from firesteel.facts.model.tensors import Provenance
from firesteel.launch import EngineName
from firesteel.library.documents.document import Document, HostJson
from firesteel.library.documents.planner import (
    CacheJson,
    LaunchJson,
    MemoryJson,
    SpeedJson,
    cache_json,
    launch_json,
)
from firesteel.library.documents.rules import FindingJson, finding_json
from firesteel.planner.advice import OverHosts
from firesteel.planner.choose import Candidate, Choice, GuideClaim, SourcedFigure, Use
from firesteel.planner.memory.account import Verdict
from firesteel.planner.propose import Proposal, compared_with_best
from firesteel.planner.speed.speed import SpeedBasis
from firesteel.units import Band


class AlternativeJson(Document, kw_only=True):
    name: str
    why: str


class PlanJson(Document, kw_only=True):
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
    over_hosts: OverHosts | None = None
    """Of a plan over several Sparks: what they gain over one."""
    terms: TermsJson | None = None
    """Of a model in the catalog."""
    requests: RequestsJson | None = None
    """How the model should be asked; null: its recipe does not say."""
    quality: tuple[Quality, ...] = ()


class TermsJson(Document, kw_only=True):
    """What to know before the weights are used."""

    license: str
    gated: bool
    """Its terms must be accepted on the Hub first."""
    modality: tuple[str, ...]
    safety: str | None


class RequestsJson(Document, kw_only=True):
    body: Mapping[str, object]
    """What every request should say."""
    tool_body: Mapping[str, object]
    """What a request that offers tools should say."""
    instead: Mapping[str, Mapping[str, object]]
    """What a request may say instead, by what that does."""
    thinking: str | None
    system_prompt: str | None
    why: str | None
    source: Evidence | None


class PlanCompareJson(Document, kw_only=True):
    """`firesteel plan --compare MODEL MODEL --json`"""

    document: Literal["firesteel.plan-compare/1"] = "firesteel.plan-compare/1"
    plans: tuple[PlanJson, ...]


class ModelRowJson(Document, kw_only=True):
    name: str
    model: str
    title: str
    engine: EngineName
    status: str
    verdict: Verdict
    can_run: bool
    needed_bytes: Band
    decode_tokens_per_s: Band | None
    speed_basis: SpeedBasis | None
    weights_provenance: Provenance
    quality: tuple[Quality, ...]
    drafted_tokens_per_s: Band | None = None
    """With the launch's own drafter; `decode_tokens_per_s` is without."""
    terms: TermsJson | None = None
    requests: RequestsJson | None = None


class ModelsJson(Document, kw_only=True):
    """`firesteel models --json`"""

    document: Literal["firesteel.models/1"] = "firesteel.models/1"
    host: HostJson
    models: tuple[ModelRowJson, ...]


class CandidateJson(Document, kw_only=True):
    name: str
    model: str
    engine: EngineName
    version: str | None
    quantization: str
    status: str
    why: str
    context: int
    users: int
    answer_s: float | None
    """From sending a prompt to the end of its answer; null: its prompts were never timed."""
    tokens_per_s: float | None
    total_tokens_per_s: float | None
    quality: float | None
    needed_bytes: Band
    figures: tuple[SourcedFigure, ...]
    terms: TermsJson | None


class ChooseJson(Document, kw_only=True):
    """`firesteel choose --json`"""

    document: Literal["firesteel.choose/1"] = "firesteel.choose/1"
    use: Use
    host: HostJson
    best: CandidateJson
    others: tuple[CandidateJson, ...]
    left_out: Mapping[str, str]
    """By recipe: why it was not considered."""


class ChooseGuidesJson(Document, kw_only=True):
    """`firesteel choose --guides --json`"""

    document: Literal["firesteel.choose-guides/1"] = "firesteel.choose-guides/1"
    claims: tuple[GuideClaim, ...]


def choice_json(choice: Choice) -> ChooseJson:
    return ChooseJson.of(
        choice,
        host=choice.best.proposal.plan.host,
        best=_candidate(choice.best),
        others=tuple(map(_candidate, choice.others)),
    )


def _candidate(candidate: Candidate) -> CandidateJson:
    proposal, plan = candidate.proposal, candidate.proposal.plan
    return CandidateJson.of(
        plan.launch,
        plan.cache,
        candidate,
        status=proposal.recipe.status if proposal.recipe else "untried",
        needed_bytes=plan.memory.needed,
        terms=terms_json(proposal.model),
    )


def plan_json(
    proposal: Proposal, others: tuple[Proposal, ...] = (), over_hosts: OverHosts | None = None
) -> PlanJson:
    plan = proposal.plan
    return PlanJson.of(
        plan,
        proposal,
        model=plan.launch.model,
        status=proposal.recipe.status if proposal.recipe else "untried",
        cache=cache_json(plan),
        findings=tuple(map(finding_json, proposal.findings)),
        launch=launch_json(plan.launch),
        others=tuple(
            AlternativeJson.of(name=other.name, why=compared_with_best(proposal, other)) for other in others
        ),
        terms=terms_json(proposal.model),
        requests=requests_json(proposal.recipe),
        quality=proposal.recipe.quality if proposal.recipe else (),
        over_hosts=over_hosts,
    )


def terms_json(model: Model | None) -> TermsJson | None:
    return TermsJson.of(model) if model else None


def requests_json(recipe: Recipe | None) -> RequestsJson | None:
    return RequestsJson.of(recipe.requests) if recipe and recipe.requests else None


def plan_compare_json(proposals: Iterable[Proposal]) -> PlanCompareJson:
    return PlanCompareJson.of(plans=tuple(plan_json(proposal) for proposal in proposals))


def model_row(proposal: Proposal) -> ModelRowJson:
    plan, recipe, model = proposal.plan, proposal.recipe, proposal.model
    assert recipe is not None and model is not None, "everything in the catalog has both"
    return ModelRowJson.of(
        name=proposal.name,
        model=model.id,
        title=model.title,
        engine=plan.launch.engine,
        status=recipe.status,
        verdict=plan.memory.verdict,
        can_run=proposal.can_run,
        needed_bytes=plan.memory.needed,
        decode_tokens_per_s=plan.speed.decode_tokens_per_s if plan.speed else None,
        speed_basis=plan.speed.basis if plan.speed else None,
        weights_provenance=model.weights.provenance,
        quality=recipe.quality,
        drafted_tokens_per_s=plan.speed.drafted_tokens_per_s if plan.speed else None,
        terms=terms_json(model),
        requests=requests_json(recipe),
    )
