"""Which recipe for a use: who asks, how long prompts are, what matters -> a choice, two alternatives, why.

    choose(catalog, host, Use("agent", 30_000, "speed"))

Every recipe that could serve the use is planned for it, at the context and the number of users that it needs.
Those that run, accept what is sent and are quick enough to be used are ranked by what matters. Pure; it has
no opinion about models: all figures come from plans and published scores, each with its source, and a score
that is not published is unknown. Tables of guides are compared with the same plans.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Literal

from firesteel import shipped_data
from firesteel.catalog.catalog import Catalog, max_context
from firesteel.catalog.model import Model
from firesteel.catalog.recipe import Recipe
from firesteel.errors import UsageError
from firesteel.facts.evidence import Evidence
from firesteel.facts.host.hardware import Host
from firesteel.facts.host.memory import MeasuredMemory
from firesteel.launch import Ask, EngineName, Matter, Who
from firesteel.planner.propose import MeasuredCalls, Proposal, propose, quantization, with_calls
from firesteel.planner.speed.own_runs import OwnRun
from firesteel.planner.speed.speculation import DraftedSpeed
from firesteel.planner.speed.speed import Speed
from firesteel.units import show_bytes, show_figure, show_rate, show_seconds
from firesteel.values import FileValue, Value, replace

USERS: Mapping[Who, int] = {"person": 1, "agent": 1, "team": 10, "batch": 32}
_ANSWER_TOKENS: Mapping[Who, int] = {"person": 1024, "agent": 2048, "team": 1024, "batch": 1024}
_SHARED = 0.9
"""An agent sends its whole conversation again each turn, and nine tenths of it are in the prefix cache."""
LEAST_TOKENS_PER_S: Mapping[Who, float] = {"person": 8.0, "agent": 15.0, "team": 8.0, "batch": 0.0}
"""Below a person's reading speed, or with an agent that takes minutes for a step, a model is not used."""
_GENERAL_SUITES = ("GPQA Diamond", "GPQA")


class Use(Value):
    who: Who
    prompt_tokens: int
    matters: Matter
    users: int | None = None
    takes: str | None = None
    """What it must accept besides text: `image`, `audio`, `video`."""

    @property
    def ask(self) -> Ask:
        """The sizes and requests of the use; the context in steps of 1024 tokens."""
        answer = _ANSWER_TOKENS[self.who]
        context = -(-max(8192, self.prompt_tokens + answer) // 1024) * 1024
        shared = round(_SHARED * self.prompt_tokens) if self.who == "agent" else 0
        return Ask(
            context=context,
            users=self.users or USERS[self.who],
            prompt_tokens=self.prompt_tokens,
            answer_tokens=answer,
            shared_tokens=shared,
        )


class SourcedFigure(Value):
    what: str
    value: str
    basis: str
    source: str
    """Where it was published, or what it was calculated from."""


class Candidate(Value):
    """One way to serve the use."""

    proposal: Proposal
    quantization: str
    answer_s: float | None
    """From sending a prompt to the end of its answer."""
    tokens_per_s: float | None
    """While an answer arrives, for each user."""
    total_tokens_per_s: float | None
    quality: float | None
    """The published score on the suite of the use; None: not published."""
    figures: tuple[SourcedFigure, ...]
    why: str = ""

    @property
    def name(self) -> str:
        return self.proposal.name


class Choice(Value):
    use: Use
    best: Candidate
    others: tuple[Candidate, ...]
    left_out: Mapping[str, str]
    """By recipe: why it was not considered."""


class ScoresSchema(FileValue, kw_only=True):
    suite: str
    scores: dict[str, float]
    source: Evidence


@cache
def _scores() -> ScoresSchema:
    return shipped_data.load("choose/scores.yaml", ScoresSchema)


def choose(
    catalog: Catalog,
    host: Host,
    use: Use,
    measured: Mapping[str, MeasuredMemory] | None = None,
    own: Mapping[str, Sequence[OwnRun]] | None = None,
    calls: Mapping[str, MeasuredCalls] | None = None,
) -> Choice:
    """Rank the catalog for a use on a host: the best recipe, some others, and why some are left out.

    `measured`, `own` and `calls` are what was measured on this host, by `launch_key`. What was not measured
    never lowers a rank.
    """
    left_out: dict[str, str] = {}
    candidates = []
    for recipe in catalog.recipes.values():
        model = catalog.models[recipe.model]
        reason = _unsuited(recipe, model, use)
        if reason is None:
            proposal = propose(catalog, host, replace(use.ask, model=recipe.name), measured, own)[0]
            found = _candidate(catalog, with_calls(proposal, calls or {}), recipe, model, use)
            reason = _unusable(found, use)
        if reason is None:
            candidates.append(found)
        else:
            left_out[recipe.name] = reason
    if not candidates:
        reasons = list(left_out.values())
        main_reason = max(reasons, key=reasons.count) if reasons else "it is empty"
        smaller = "ask for shorter prompts or fewer users"
        raise UsageError(
            f"nothing in the catalog serves this on {host.title}: {main_reason}",
            next=smaller
            if host.hardware == "gb10"
            else f"add `--host gb10` to choose for a Spark, or {smaller}",
        )
    ranked = sorted(candidates, key=lambda each: _rank(each, use))
    best = replace(ranked[0], why=_why_best(ranked[0], use))
    others = tuple(replace(each, why=_why_other(best, each, use)) for each in _alternatives(ranked))
    return Choice(use, best, others, left_out)


def _unsuited(recipe: Recipe, model: Model, use: Use) -> str | None:
    """Why a recipe cannot serve the use, before anything is planned."""
    context = use.ask.context or 0
    if max_context(recipe, model) < context:
        return f"takes {max_context(recipe, model):,} tokens, and {context:,} are needed"
    if use.takes and use.takes not in model.modality:
        return f"does not take {use.takes}"
    calls_tools = recipe.engine == "llamacpp" or "tool-call-parser" in recipe.flags
    if use.who == "agent" and not calls_tools:
        return "has no parser for tool calls"
    if (use.users or USERS[use.who]) > 4 and recipe.engine == "llamacpp":
        return "llama.cpp splits its cache among users and batches them less well"
    if model.safety:
        return f"has a safety note: {model.safety.partition('.')[0]}"
    return None


def _candidate(catalog: Catalog, proposal: Proposal, recipe: Recipe, model: Model, use: Use) -> Candidate:
    speed = proposal.plan.speed
    rate, first_s, total = _speeds(proposal, use)
    answer_s = first_s + _ANSWER_TOKENS[use.who] / rate if rate and first_s is not None else None
    quality, suite_figures = _quality(recipe, model, use)
    figures = [*_speed_figures(proposal, use, rate, first_s, total), *suite_figures]
    needed = show_bytes(round(proposal.plan.memory.needed.expected))
    figures.append(SourcedFigure("memory", needed, "planned", "the account of the plan"))
    if use.who == "agent" and (calls := proposal.calls):
        basis = f"measured here on {calls.seen}"
        figures.append(SourcedFigure("tool calls", calls.text, basis, "firesteel verify --agent"))
    label = quantization(catalog, recipe)
    return Candidate(proposal, label, answer_s if speed else None, rate, total, quality, tuple(figures))


def _speeds(proposal: Proposal, use: Use) -> tuple[float | None, float | None, float | None]:
    """Tokens a second for each user, seconds to the first token, tokens a second of all; with the drafter."""
    speed = proposal.plan.speed
    if speed is None:
        return None, None, None
    plain = speed.decode_tokens_per_s.expected
    drafted = _drafted(speed, use)
    gain = drafted.decode_tokens_per_s.expected / plain if drafted else 1.0
    if served := speed.served:  # drafting gains little when many decode at once, so it is not counted
        return (
            served.per_user_tokens_per_s.expected,
            served.ttft_ms.expected / 1000,
            served.total_tokens_per_s.expected,
        )
    if batch := speed.batch:
        return batch.per_user_tokens_per_s.expected, None, batch.total_tokens_per_s.expected
    depth = [band.expected for _, band in speed.at_depth] or [plain]
    first_s = speed.prefill.ttft_ms.expected / 1000 if speed.prefill else None
    return depth[-1] * gain, first_s, depth[-1] * gain


def _drafted(speed: Speed, use: Use) -> DraftedSpeed | None:
    """The drafter's speed on the text of the use, where gains by text are published; else none."""
    text = "code" if use.who == "agent" else "conversation"
    return next((row for row in speed.drafted if row.text == text), None)


def _speed_figures(
    proposal: Proposal, use: Use, rate: float | None, first_s: float | None, total: float | None
) -> Iterator[SourcedFigure]:
    speed = proposal.plan.speed
    if speed is None or rate is None:
        return
    drafted = _drafted(speed, use) if speed.served is None and speed.batch is None else None
    basis = speed.basis + (f", drafted on {drafted.text} ({drafted.explanation})" if drafted else "")
    source = (*speed.sources, *(drafted.sources if drafted else ()), "the bandwidth of the host")[0]
    yield SourcedFigure("decode", f"{show_rate(rate)} each", basis, source)
    if total is not None and total != rate:
        explained = speed.served or speed.batch
        yield SourcedFigure("in all", show_rate(total), explained.explanation if explained else basis, source)
    if first_s is not None:
        explanation = speed.prefill.explanation if speed.prefill else "simulated"
        yield SourcedFigure("first token", show_seconds(first_s), explanation, source)


def _quality(recipe: Recipe, model: Model, use: Use) -> tuple[float | None, tuple[SourcedFigure, ...]]:
    """An agent's work is compared by a suite of such work; all else by a suite of questions."""
    if use.who == "agent":
        known = _scores()
        score = known.scores.get(model.family)
        if score is None:
            return None, ()
        figure = SourcedFigure(known.suite, f"{score:g}", "published, unquantized", known.source.url)
        return score, (figure,)
    for suite in _GENERAL_SUITES:
        for quality in recipe.quality:
            if quality.suite == suite:
                figure = SourcedFigure(suite, f"{quality.this:g}", "published", quality.source.url)
                return quality.this, (figure,)
    return None, ()


def _unusable(candidate: Candidate, use: Use) -> str | None:
    """Why a planned recipe is no answer."""
    proposal = candidate.proposal
    if not proposal.plan.fits:
        return f"does not fit: {show_bytes(proposal.plan.memory.short_bytes)} short"
    if proposal.stops:
        return f"{proposal.stops[0].rule} stops it"
    if not proposal.suits_host:
        return "needs a GPU"
    if proposal.plan.launch.sparks > proposal.plan.host.joined_hosts:
        return f"needs {proposal.plan.launch.sparks} Sparks"
    if proposal.is_embedded and proposal.plan.host.hardware is not None:
        return "runs on the CPU, and there is a GPU"
    least = LEAST_TOKENS_PER_S[use.who]
    if candidate.tokens_per_s is not None and candidate.tokens_per_s < least and not proposal.is_embedded:
        return f"{show_rate(candidate.tokens_per_s)} each, and less than {least:g} is too slow to be used"
    return None


def _rank(candidate: Candidate, use: Use) -> tuple[float | str, ...]:
    """Lower is better: what matters first, then recipes that have been run, then speed.

    A recipe whose time to an answer is unknown comes last, and for an agent one whose calls were seen to fail
    with as many tools as agents send.
    """
    proposal = candidate.proposal
    fails = float(use.who == "agent" and proposal.calls is not None and proposal.calls.fails_agents)
    untried = float(proposal.recipe is not None and proposal.recipe.status == "untried")
    unknown = float(candidate.answer_s is None)
    slow = candidate.answer_s if candidate.answer_s is not None else 1 / (candidate.tokens_per_s or 1e-9)
    match use.matters:
        case "speed":
            first = slow * (1.15 if untried else 1.0)  # an untried recipe must be clearly faster
        case "throughput":
            first = -(candidate.total_tokens_per_s or 0.0) * (0.87 if untried else 1.0)
        case "quality":
            first = -candidate.quality if candidate.quality is not None else 0.0
        case "memory":
            first = proposal.plan.memory.needed.expected
    if use.matters == "quality":
        return fails, first, unknown, untried, slow, candidate.name
    return fails, unknown, first, untried, slow, candidate.name


def _alternatives(ranked: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """The two next best that differ in more than a flag: by model, or by engine; then any."""
    chosen = [ranked[0]]
    for each in ranked[1:]:
        if all(_kind(each) != _kind(other) for other in chosen):
            chosen.append(each)
    chosen += [each for each in ranked[1:] if each not in chosen]
    return tuple(chosen[1:3])


def _kind(candidate: Candidate) -> tuple[str, str]:
    model = candidate.proposal.model
    return (model.family if model else candidate.name, candidate.proposal.plan.launch.engine)


def _why_best(best: Candidate, use: Use) -> str:
    match use.matters:
        case "speed":
            return f"the shortest time from prompt to answer: {_time(best)}"
        case "throughput":
            return f"the most tokens of all users together: {show_rate(best.total_tokens_per_s or 0)}"
        case "quality":
            known = next((figure for figure in best.figures if figure.basis.startswith("published")), None)
            return (
                f"the highest published {known.what}: {known.value}"
                if known
                else "no comparable score is published; it is the fastest"
            )
        case "memory":
            return f"the least memory: {show_bytes(round(best.proposal.plan.memory.needed.expected))}"


def _why_other(best: Candidate, other: Candidate, use: Use) -> str:
    """What the alternative has, against the best."""
    said = [f"{_time(other)} for an answer against {_time(best)}"]
    needed = [each.proposal.plan.memory.needed.expected for each in (best, other)]
    if needed[1] < 0.8 * needed[0]:
        said.append(f"{show_bytes(round(needed[0] - needed[1]))} less memory")
    if other.quality is not None and best.quality is not None and other.quality != best.quality:
        more = "more" if other.quality > best.quality else "less"
        said.append(f"{show_figure(abs(other.quality - best.quality))} points {more} quality")
    elif other.quality is None and use.matters == "quality":
        said.append("no comparable score is published")
    if other.proposal.plan.launch.engine != best.proposal.plan.launch.engine:
        said.append(f"on {other.proposal.plan.launch.engine}")
    statuses = [each.proposal.recipe.status if each.proposal.recipe else "untried" for each in (best, other)]
    if statuses[0] != statuses[1]:
        said.append(statuses[1])
    return ", ".join(said)


def _time(candidate: Candidate) -> str:
    if candidate.answer_s is not None:
        return show_seconds(candidate.answer_s)
    return show_rate(candidate.tokens_per_s or 0.0)


# --- claims of guides ---

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
    """None: there is nothing to compare it with."""
    why: str | None
    source: str | None


def guide_claims(catalog: Catalog, host: Host) -> tuple[GuideClaim, ...]:
    known = shipped_data.load("choose/guides.yaml", GuidesSchema)
    claims = []
    for claim in known.claims:
        ours, agrees = _ours(catalog, host, claim)
        why, source = None if agrees else claim.why, claim.source.url if claim.source else None
        claims.append(GuideClaim(known.guides[claim.guide], claim.says, ours, agrees, why, source))
    return tuple(claims)


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
