"""What `plan`, `models`, `choose` and `recipe` print with `--json`: plans, rows of the catalog, recipes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Self

from msgspec import field

from firesteel.catalog.recipe import Quality
from firesteel.engines.engine import argv as engine_argv
from firesteel.engines.engine import program
from firesteel.engines.kv_cache import requested_kv_cache_bytes
from firesteel.facts.evidence import Evidence
from firesteel.facts.model.tensors import Provenance
from firesteel.launch import EngineName, FlagValue
from firesteel.library.documents.check import FindingJson
from firesteel.library.documents.document import Document, HostJson
from firesteel.planner.advice import OverHosts
from firesteel.planner.choose import GuideClaim, SourcedFigure, Use
from firesteel.planner.memory.account import MemoryPart, Verdict
from firesteel.planner.propose import compared_with_best
from firesteel.planner.speed.speculation import DraftedSpeed
from firesteel.planner.speed.speed import BatchSpeed, PrefillSpeed, ServedSpeed, Speed, SpeedBasis
from firesteel.planner.speed.startup import StartPhase
from firesteel.render import docker
from firesteel.units import Band

if TYPE_CHECKING:
    from firesteel.catalog.recipe import Recipe, RecipeRequests
    from firesteel.launch import Launch
    from firesteel.planner.choose import Candidate, Choice
    from firesteel.planner.plan import Plan
    from firesteel.planner.propose import Proposal


class MemoryJson(Document):
    verdict: Verdict
    needed: Band = field(name="needed_bytes")
    budget_bytes: int
    parts: tuple[MemoryPart, ...]


class CacheGroupJson(Document):
    kind: str
    layers: int
    block_size: int = field(name="block_tokens")
    page_bytes: int


class ReportedKvJson(Document):
    """What vLLM prints at start: `GPU KV cache size` and `Maximum concurrency`."""

    tokens: int
    concurrency: str
    context: int
    num_blocks: int
    refused: bool
    largest_context: int | None
    """If vLLM refuses to start: the longest request that would fit."""


class CacheJson(Document):
    bytes: int
    bytes_per_token: int
    state_bytes: int
    context: int
    users: int
    dtype: str
    pool_bytes: int
    """What the engine gets for its cache."""
    block_bytes: int | None
    groups: tuple[CacheGroupJson, ...]
    request_bytes: int | None
    """One request that uses the whole context."""
    least_bytes: int | None
    """The smallest cache that the engine starts with."""
    printed: tuple[ReportedKvJson, ...]
    """One entry; two (fewest and most tokens) if the release is not known; none for other engines."""
    unsure: str | None
    """Why the engine may print other figures; null: it will print these."""


class DepthJson(Document):
    depth: int
    decode_tokens_per_s: Band


class SpeedJson(Document):
    decode_tokens_per_s: Band
    bound_tokens_per_s: float
    bytes_per_token: int
    bandwidth_bytes_per_s: float
    basis: SpeedBasis
    explanation: str
    sources: tuple[str, ...]
    parts_ms: Mapping[str, float]
    """Where the time of one decode step goes."""
    at_depth: tuple[DepthJson, ...]
    batch: BatchSpeed | None
    """Several users who decode at once, with no prompts arriving."""
    drafted: tuple[DraftedSpeed, ...]
    """With the launch's own drafter, by kind of text."""
    drafted_tokens_per_s: Band | None
    """The same over all kinds of text; `decode_tokens_per_s` is without drafting."""
    loses_on: tuple[str, ...]
    """Kinds of text on which drafting may be slower than decoding without it."""
    served: ServedSpeed | None
    """Several users, with prompts of the length that was asked for arriving all the time."""
    prefill: PrefillSpeed | None
    requests_per_s: Band | None
    """Of a model that embeds, scores or classifies texts, or writes down sound; the figures about decoding do
    not apply then."""
    sound_s: int | None
    """Seconds of sound in each of these requests; null: it is not made for sound."""
    start_up: tuple[StartPhase, ...]
    """The first start, phase by phase; empty: not known."""

    @classmethod
    def of(cls, *values: object, **others: object) -> Self:
        (speed,) = values
        assert isinstance(speed, Speed)
        phases = speed.start_up.phases if speed.start_up else ()
        return super().of(speed, **{"start_up": phases, **others})


class LaunchJson(Document):
    name: str
    model: str
    engine: EngineName
    version: str | None
    image: str | None
    port: int
    sparks: int
    flags: Mapping[str, FlagValue]
    env: Mapping[str, str]
    argv: tuple[str, ...]
    docker: str


def cache_json(plan: Plan) -> CacheJson:
    cache, pool = plan.cache, plan.cache.pool
    requested = requested_kv_cache_bytes(plan.launch)
    return CacheJson.of(
        cache,
        pool_bytes=cache.pool_bytes if requested is None else requested,
        block_bytes=pool.block_bytes if pool else None,
        groups=pool.groups if pool else (),
        request_bytes=pool.request_bytes if pool else None,
        least_bytes=pool.least_bytes if pool else None,
        printed=tuple(
            ReportedKvJson.of(
                reported,
                concurrency=reported.concurrency_text,
                refused=reported.refused is not None,
                largest_context=reported.refused.largest_context if reported.refused else None,
            )
            for reported in plan.printed
        ),
        unsure=(pool.unsure or None) if pool else None,
    )


def launch_json(launch: Launch) -> LaunchJson:
    return LaunchJson.of(
        launch,
        image=launch.container.image if launch.container else None,
        argv=(*program(launch.engine), *engine_argv(launch)),
        docker=docker(launch),
    )


# --- plans, models, choices ---


class AlternativeJson(Document):
    name: str
    why: str


class PlanJson(Document, tag_field="document", tag="firesteel.plan/1"):
    """`firesteel plan MODEL --json`"""

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


class TermsJson(Document):
    """What to know before the weights are used."""

    license: str
    gated: bool
    """Its terms must be accepted on the Hub first."""
    modality: tuple[str, ...]
    safety: str | None


class RequestsJson(Document):
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


class PlanCompareJson(Document, tag_field="document", tag="firesteel.plan-compare/1"):
    """`firesteel plan --compare MODEL MODEL --json`"""

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
    speed_basis: SpeedBasis | None
    weights_provenance: Provenance
    quality: tuple[Quality, ...]
    drafted_tokens_per_s: Band | None = None
    """With the launch's own drafter; `decode_tokens_per_s` is without."""
    terms: TermsJson | None = None
    requests: RequestsJson | None = None


class ModelsJson(Document, tag_field="document", tag="firesteel.models/1"):
    """`firesteel models --json`"""

    host: HostJson
    models: tuple[ModelRowJson, ...]


class CandidateJson(Document):
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


class ChooseJson(Document, tag_field="document", tag="firesteel.choose/1"):
    """`firesteel choose --json`"""

    use: Use
    host: HostJson
    best: CandidateJson
    others: tuple[CandidateJson, ...]
    left_out: Mapping[str, str]
    """By recipe: why it was not considered."""


class ChooseGuidesJson(Document, tag_field="document", tag="firesteel.choose-guides/1"):
    """`firesteel choose --guides --json`"""

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
        terms=proposal.model,
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
        launch=launch_json(plan.launch),
        others=tuple(
            AlternativeJson.of(name=other.name, why=compared_with_best(proposal, other)) for other in others
        ),
        terms=proposal.model,
        requests=requests_of(proposal.recipe),
        quality=proposal.recipe.quality if proposal.recipe else (),
        over_hosts=over_hosts,
    )


def requests_of(recipe: Recipe | None) -> RecipeRequests | None:
    """None: the recipe does not say how the model should be asked."""
    return recipe.requests if recipe and recipe.requests else None


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
        terms=model,
        requests=requests_of(recipe),
    )


# --- recipes ---


class RecipeTestJson(Document, tag_field="document", tag="firesteel.recipe-test/1"):
    """`firesteel recipe test NAME --json`"""

    name: str
    path: str
    more_than_flags: tuple[str, ...]
    """What a recipe by others may not have, and this one has."""
    plan: PlanJson
    passed: bool


class RecipeShareJson(Document, tag_field="document", tag="firesteel.recipe-share/1"):
    """`firesteel recipe share NAME --json`"""

    name: str
    files: tuple[str, ...]
    more_than_flags: tuple[str, ...]
    """Why others must adopt it by name, after reading it."""


class RecipeAdoptJson(Document, tag_field="document", tag="firesteel.recipe-adopt/1"):
    """`firesteel recipe adopt NAME --json`"""

    name: str
    path: str
    more_than_flags: tuple[str, ...]
