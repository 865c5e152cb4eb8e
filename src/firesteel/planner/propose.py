"""What was asked for -> recipes -> launches -> plans, judged and ranked.

`propose` answers for the catalog, `propose_checkpoint` for a checkpoint without a recipe. A launch gets
the LoRA adapters that fit it. The findings of an audit of its checkpoint are listed with those of its flags,
so that `plan` and `up` show and obey them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import date

from msgspec import field

from firesteel.catalog import catalog as recipe_catalog
from firesteel.catalog.catalog import Catalog
from firesteel.catalog.image import Image, Images, identify
from firesteel.catalog.launches import from_checkpoint, from_recipe, native, with_adapters, with_user_options
from firesteel.catalog.model import Model
from firesteel.catalog.recipe import Recipe
from firesteel.engines.engine import served_capacity
from firesteel.engines.schema.releases import known_versions
from firesteel.errors import DoesNotFit, Stopped, UsageError, printable
from firesteel.facts.evidence import Evidence
from firesteel.facts.host.hardware import Host
from firesteel.facts.host.memory import MeasuredMemory
from firesteel.facts.model.adapter import Adapter
from firesteel.facts.model.architecture import Architecture, Checkpoint
from firesteel.facts.model.tensors import Weights
from firesteel.launch import AdapterReference, Ask, EngineName, EngineProgram, Goal, Launch
from firesteel.planner.memory.measured import launch_key
from firesteel.planner.plan import Plan, longest_context, plan
from firesteel.planner.speed.own_runs import OwnRun
from firesteel.planner.speed.serving import RequestShape, usual_requests
from firesteel.rules.adapters import UnreadAdapter, adapter_findings
from firesteel.rules.checker import Finding, check
from firesteel.rules.checkpoint.checks import SEEN, CheckpointFinding
from firesteel.units import show_bytes, show_rate
from firesteel.values import Value, replace

_UPSTREAM: dict[EngineName, str] = {
    "vllm": "vllm/vllm-openai:v{version}{suffix}",
    "sglang": "lmsysorg/sglang:v{version}{suffix}",
    "llamacpp": "ghcr.io/ggml-org/llama.cpp:server-cuda13-b{version}",
}
DEFAULT_USERS = 4
"""Of a checkpoint without a recipe: one alone would make requests wait that come at once."""
_SIXTEEN_BITS = ("BF16", "F16", "16-bit")
_FORMATS = re.compile(r"nvfp4|mxfp4|fp8-dynamic|fp8|int4|int8|awq|gptq|nf4|bf16|fp16", re.IGNORECASE)
AGENT_TOOLS, AGENT_TURNS = 26, 40
"""Tools: as many as Claude Code 2.1.197 sent, the most of all agents that were recorded. Turns: our own
choice."""
_STATUS_RANK = {"measured": 0, "reported": 1, "untried": 2}


class MeasuredCalls(Value):
    """With how many tools, and how deep in a conversation, calls of a launch were parsed on this host, as
    `verify --agent` found."""

    tools: int = 0
    """The most schemas in a request with which every call was parsed."""
    tools_fail: int | None = None
    """The fewest with which one was not; null: all that were asked for were parsed."""
    turns: int = 0
    """The same, of calls with results before the last call."""
    turns_fail: int | None = None
    key: str = ""
    """`launch_key` of the launch."""
    seen: str = ""
    """The date."""

    @property
    def text(self) -> str:
        if not self.tools:
            return "none is parsed"
        limits = (("tools", self.tools, self.tools_fail), ("turns", self.turns, self.turns_fail))
        said = [
            f"{most} {what}{f' (not {fail})' if fail else ''}" for what, most, fail in limits if most or fail
        ]
        return f"parsed with up to {' and '.join(said)}"

    @property
    def fails_agents(self) -> bool:
        """Whether calls were seen to fail with as many tools and turns as agents have."""
        limits = ((self.tools_fail, AGENT_TOOLS), (self.turns_fail, AGENT_TURNS))
        return any(fail is not None and fail <= usual for fail, usual in limits)


class Proposal(Value):
    """One way to serve what was asked for, with everything known about it."""

    plan: Plan
    findings: tuple[Finding, ...]
    image: Image | None = None
    """What it runs in; None when that is not known."""
    recipe: Recipe | None = None
    """None for a checkpoint that was planned from its own files."""
    model: Model | None = None
    ask: Ask = field(default_factory=Ask)
    """What it answers, with the release in full."""
    asked: str = ""
    """Where a checkpoint without a recipe was read from."""
    adapters: tuple[Adapter, ...] = ()
    """LoRA, in the order of the engine's flags."""
    calls: MeasuredCalls | None = None
    """What was measured here about its tool calls."""

    @property
    def name(self) -> str:
        return self.plan.launch.name

    @property
    def stops(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.level == "stop")

    @property
    def suits_host(self) -> bool:
        """A container needs a GPU; the embedded engine and a program without GPU code need none."""
        host, program = self.plan.host, self.plan.launch.program
        needs_gpu = program.uses_gpu if program else not self.is_embedded
        return not needs_gpu or bool(host.gpus or host.hardware)

    @property
    def is_embedded(self) -> bool:
        return self.image is not None and self.image.package is not None and not self.plan.launch.program

    @property
    def lacks_sparks(self) -> bool:
        """It needs several Sparks, and this host is one."""
        host = self.plan.host
        return host.name == "local" and self.plan.launch.sparks > host.joined_hosts

    @property
    def can_run(self) -> bool:
        return self.suits_host and self.plan.fits and not self.stops and not self.lacks_sparks

    @property
    def exit_code(self) -> int:
        """Of a command that only looks at it: 4 when it does not fit, 3 when a rule stops it."""
        if not self.plan.fits:
            return DoesNotFit.exit_code
        return Stopped.exit_code if self.stops else 0


def propose(
    catalog: Catalog,
    host: Host,
    ask: Ask,
    measured: Mapping[str, MeasuredMemory] | None = None,
    own: Mapping[str, Sequence[OwnRun]] | None = None,
    programs: Mapping[EngineName, EngineProgram] | None = None,
    adapters: OpenedAdapters | None = None,
) -> tuple[Proposal, ...]:
    """Every recipe that the ask means, best first; without a model's name, every recipe there is.

    By `launch_key`: `measured`, the memory that earlier starts took on this host, and `own`, the user's own
    benchmark runs here. `programs`: the engines of this machine, one of which is to serve.
    """
    recipes = (
        recipe_catalog.find_recipes(catalog, ask.model) if ask.model else tuple(catalog.recipes.values())
    )
    if ask.engine is not None:
        models = {recipe.model for recipe in recipes}  # a name may be that of a recipe for another engine
        named = tuple(recipe for recipe in recipes if recipe.engine == ask.engine)
        others = (recipe for recipe in catalog.recipes.values() if recipe.model in models)
        recipes = named or tuple(recipe for recipe in others if recipe.engine == ask.engine)
    if (ask.sparks or 1) > 1 and programs is None:  # llama.cpp's images are built without RPC
        recipes = tuple(recipe for recipe in recipes if recipe.engine != "llamacpp")
    if programs is not None:
        recipes = tuple(recipe for recipe in recipes if recipe.engine in programs)
    if not recipes:
        raise UsageError(f"no recipe runs {ask.model or 'anything'} like that", next="firesteel models")
    if ask.quant:
        recipes = _stored_as(catalog, recipes, ask.quant)
    found = (
        _proposal(
            catalog,
            recipe,
            host,
            ask,
            measured or {},
            own or {},
            (programs or {}).get(recipe.engine),
            adapters or {},
        )
        for recipe in recipes
    )
    return tuple(sorted(found, key=lambda proposal: _rank(proposal, ask.goal)))


def _stored_as(catalog: Catalog, recipes: tuple[Recipe, ...], label: str) -> tuple[Recipe, ...]:
    """The recipes whose checkpoint is stored in that format."""
    labels_by_name = {recipe.name: _labels(catalog, recipe) for recipe in recipes}
    matching = tuple(recipe for recipe in recipes if label.lower() in labels_by_name[recipe.name])
    if matching:
        return matching
    there = sorted({labels[0] for labels in labels_by_name.values()})
    raise UsageError(
        f"no recipe has these weights in {printable(label, 40)}; there are {', '.join(there)}",
        next=f"--quant {there[0]}, or a config.json, for which --quant may be anything",
    )


def _labels(catalog: Catalog, recipe: Recipe) -> tuple[str, ...]:
    """The tag of a GGUF, what a repository is called, or how most of its bytes are stored."""
    name, _, tag = recipe.model.partition(":")
    if tag:
        return (tag.lower(),)
    said = tuple(word.lower() for word in _FORMATS.findall(name.rpartition("/")[2]))
    return said or (_most(recipe_catalog.loaded_weights(catalog, recipe)).lower(),)


def quantization(catalog: Catalog, recipe: Recipe) -> str:
    """How its weights are stored: `nvfp4`, `ud-q4_k_xl`."""
    return _labels(catalog, recipe)[0]


def _most(weights: Weights) -> str:
    """The format of most bytes."""
    sizes: dict[str, int] = {}
    for (_, form), size in weights.bytes_by_format.items():
        sizes[form] = sizes.get(form, 0) + size
    most = max(sizes, key=lambda form: sizes[form], default="a format that is not known")
    return "BF16" if most == "16-bit" else most


def _proposal(
    catalog: Catalog,
    recipe: Recipe,
    host: Host,
    ask: Ask,
    measured: Mapping[str, MeasuredMemory],
    own: Mapping[str, Sequence[OwnRun]],
    program: EngineProgram | None,
    opened: OpenedAdapters,
) -> Proposal:
    model, image = catalog.models[recipe.model], catalog.images.named[recipe.image]
    launch = with_user_options(from_recipe(catalog, recipe, ask), ask)
    if program:
        launch = native(launch, program)
    launch, adapters, misfits = add_adapters(launch, model.architecture, named_adapters(ask, recipe), opened)
    weights = _weights(recipe_catalog.loaded_weights(catalog, recipe), ask)
    key = launch_key(launch)
    planned = plan(
        launch,
        model.architecture,
        weights,
        host,
        measured.get(key),
        own=own.get(key, ()),
        requests=_requests(launch, model.architecture, ask),
    )
    findings = (*misfits, *check(planned.launch, hardware=host.hardware, images=catalog.images))
    return Proposal(planned, findings, image, recipe, model, ask, adapters=adapters)


def _requests(launch: Launch, shape: Architecture, ask: Ask) -> RequestShape:
    """A context that was asked for is filled by requests, unless the ask gives their size."""
    context = served_capacity(launch).context or shape.max_context
    return usual_requests(context, ask.prompt_tokens or ask.context, ask.answer_tokens, ask.shared_tokens)


def propose_checkpoint(
    checkpoint: Checkpoint,
    images: Images,
    host: Host,
    ask: Ask,
    measured: Mapping[str, MeasuredMemory] | None = None,
    own: Mapping[str, Sequence[OwnRun]] | None = None,
    programs: Mapping[EngineName, EngineProgram] | None = None,
    adapters: OpenedAdapters | None = None,
) -> Proposal:
    """A checkpoint that is in no catalog, on the engine that reads its format, with no flag but its sizes.

    With a GPU it runs in a container that a recipe uses; without one, in the embedded engine; on one of
    `programs` where these are given. For four users, or as many of them as fit.
    """
    known = measured or {}, own or {}, programs, adapters
    if ask.users is not None:
        return _propose_checkpoint(checkpoint, images, host, ask, *known)
    for users in range(DEFAULT_USERS, 0, -1):
        found = _propose_checkpoint(checkpoint, images, host, replace(ask, users=users), *known)
        if users == DEFAULT_USERS:
            short_bytes = found.plan.memory.short_bytes
        if found.plan.fits:
            break
    note = f"for {users} at once: {DEFAULT_USERS} would need {show_bytes(short_bytes)} more than there is"
    notes = (note,) if found.plan.fits and users < DEFAULT_USERS and short_bytes else ()
    planned = replace(found.plan, notes=(*found.plan.notes, *notes))
    return replace(found, plan=planned, ask=replace(found.ask, users=None))


def _propose_checkpoint(
    checkpoint: Checkpoint,
    images: Images,
    host: Host,
    ask: Ask,
    measured: Mapping[str, MeasuredMemory],
    own: Mapping[str, Sequence[OwnRun]],
    programs: Mapping[EngineName, EngineProgram] | None,
    adapters: OpenedAdapters | None,
) -> Proposal:
    if ask.quant and checkpoint.weights.provenance == "counted":  # files say themselves how they are stored
        raise UsageError(
            f"{checkpoint.origin} is {_most(checkpoint.weights)} by its own header; --quant is for a config "
            "alone",
            next=f"firesteel plan {checkpoint.origin}",
        )
    engine, has_gpu = _engine(checkpoint, ask), bool(host.gpus or host.hardware)
    image = None
    if programs is None:
        if not ask.version and has_gpu and not _image(engine, has_gpu, images, None):
            ask = replace(ask, version=known_versions(engine)[-1])  # no recipe names an image for the engine
        image = _image(engine, has_gpu, images, ask.version)
    launch = from_checkpoint(checkpoint, ask.name or service_name(checkpoint.name), engine, image, ask)
    if programs is not None:
        launch = native(launch, _program(programs, engine, checkpoint))
    launch, served, misfits = add_adapters(launch, checkpoint.architecture, ask.adapters, adapters or {})
    key = launch_key(launch)
    planned = plan(
        launch,
        checkpoint.architecture,
        _weights(checkpoint.weights, ask),
        host,
        measured.get(key),
        heavier=checkpoint.heavier if ask.weights_bytes is None else None,
        own=own.get(key, ()),
        requests=_requests(launch, checkpoint.architecture, ask),
    )
    notes = (*checkpoint.assumptions, *(f"not counted: {part}" for part in checkpoint.unknown))
    planned = replace(planned, notes=(*planned.notes, *notes))
    findings = (*misfits, *check(planned.launch, hardware=host.hardware, images=images))
    return Proposal(planned, findings, image, ask=ask, asked=checkpoint.origin, adapters=served)


def with_calls(proposal: Proposal, measured: Mapping[str, MeasuredCalls]) -> Proposal:
    """With what was measured about its tool calls, by `launch_key`, as a note of its plan."""
    calls = measured.get(launch_key(proposal.plan.launch))
    if calls is None:
        return proposal
    note = f"tool calls: {calls.text}; measured here on {calls.seen}"
    return replace(proposal, calls=calls, plan=replace(proposal.plan, notes=(*proposal.plan.notes, note)))


def with_audit(proposal: Proposal, model: str, findings: Sequence[CheckpointFinding] | None) -> Proposal:
    """With what an audit of its checkpoint found; None: it was not audited."""
    audited = launch_findings(model, findings or (), proposal.ask.despite)
    planned = replace(proposal.plan, notes=(*proposal.plan.notes, audit_note(findings, model)))
    return replace(proposal, plan=planned, findings=(*audited, *proposal.findings))


def _program(
    programs: Mapping[EngineName, EngineProgram], engine: EngineName, checkpoint: Checkpoint
) -> EngineProgram:
    if engine not in programs:
        raise UsageError(
            f"{checkpoint.format} is for {engine}, and the engine that is installed here is "
            f"{' and '.join(programs)}",
            next=f"firesteel engine install {engine}",
        )
    return programs[engine]


def _engine(checkpoint: Checkpoint, ask: Ask) -> EngineName:
    reads: EngineName = "llamacpp" if checkpoint.format == "gguf" else "vllm"
    if ask.engine and (ask.engine == "llamacpp") != (reads == "llamacpp"):
        other = "--quant q4_k_m, or another of GGUF's" if ask.engine == "llamacpp" else "--engine llamacpp"
        raise UsageError(f"{ask.engine} does not read {checkpoint.format}", next=other)
    if (ask.sparks or 1) > 1 and reads == "llamacpp" and ask.runtime != "native":
        raise UsageError(
            "llama.cpp's images are built without RPC, which splits a model over several Sparks",
            next="firesteel engine build llamacpp, then --native",
        )
    return ask.engine or reads


def _image(engine: EngineName, has_gpu: bool, images: Images, version: str | None) -> Image | None:
    """What a recipe uses, or upstream's image of the version that was asked for."""
    for image in images.named.values():
        fits = image.engine == engine and (image.reference if has_gpu else image.package) is not None
        if fits and version in (None, image.version):
            return image
    if version is None or not has_gpu:
        return None
    tags = (_UPSTREAM[engine].format(version=version, suffix=suffix) for suffix in ("", "-cu130"))
    found = [known for tag in tags if (known := identify(tag, images))]
    found.sort(key=lambda known: not (known.cuda or "").startswith("13"))  # a GB10 wants CUDA 13
    suited = [known for known in found if known.sm is None or "12.1" in known.sm]
    return next(iter([*suited, *found]), None)


def _weights(weights: Weights, ask: Ask) -> Weights:
    """The sum that the user gave, shared out as before."""
    if ask.weights_bytes is None or not weights.total_bytes:
        return weights
    share = ask.weights_bytes / weights.total_bytes
    if not 0.05 < share < 20:
        raise UsageError(
            f"{ask.weights_bytes:,} bytes cannot be this model: its config makes it about "
            f"{weights.total_bytes:,}",
            next=f"--weights-bytes {weights.total_bytes}",
        )
    return replace(
        weights,
        bytes_by_role={role: round(size * share) for role, size in weights.bytes_by_role.items()},
        bytes_by_format={key: round(size * share) for key, size in weights.bytes_by_format.items()},
        spread=(1.0, 1.0),
        replicated_bytes=round(weights.replicated_bytes * share),
        provenance="reported",
        source=f"--weights-bytes {ask.weights_bytes}, shared out as {weights.source} has it",
    )


def service_name(text: str) -> str:
    """A name that a folder, a container and a URL can carry."""
    return re.sub(r"[^a-z0-9.-]+", "-", text.lower()).strip("-.")[:60] or "model"


def _rank(proposal: Proposal, goal: Goal | None) -> tuple[object, ...]:
    """What can run first, and of that the tiny model for trying out last; then the goal, recipes that have
    been run, and speed."""
    return (
        not proposal.can_run,
        proposal.is_embedded,
        -_worth(proposal, goal) if goal else 0,
        _STATUS_RANK[proposal.recipe.status if proposal.recipe else "untried"],
        -_worth(proposal, "speed"),
        proposal.name,
    )


def _worth(proposal: Proposal, goal: Goal) -> float:
    """More is better."""
    plan, speed = proposal.plan, proposal.plan.speed
    match goal:
        case "speed":
            return speed.decode_tokens_per_s.expected if speed else 0.0
        case "throughput":
            batch = speed.batch if speed else None
            return batch.total_tokens_per_s.expected if batch else _worth(proposal, "speed")
        case "context":
            return float(longest_context(plan))
        case "quality":
            return _retained_quality(proposal)


def _retained_quality(proposal: Proposal) -> float:
    """The share of the unquantized model's scores that this checkpoint is reported to keep.

    Weights in 16 bits lost nothing. Without reports a larger checkpoint is assumed to have lost less,
    and ranks below those that were measured.
    """
    weights = proposal.plan.weights
    plain = sum(size for (_, form), size in weights.bytes_by_format.items() if form in _SIXTEEN_BITS)
    if plain > 0.95 * weights.total_bytes:
        return 1.0
    figures = proposal.recipe.quality if proposal.recipe else ()
    scores = [figure.this / figure.baseline for figure in figures if figure.baseline]
    return sum(scores) / len(scores) if scores else weights.total_bytes / 1e15


def compared_with_best(best: Proposal, other: Proposal) -> str:
    """Why another way ranks lower than the best."""
    if not other.plan.fits:
        return f"does not fit, {show_bytes(other.plan.memory.short_bytes)} short"
    if other.stops:
        return f"{other.stops[0].rule} stops it"
    if not other.suits_host:
        return "needs a GPU"
    if other.lacks_sparks:
        return f"needs {other.plan.launch.sparks} Sparks"
    reasons = []
    if best.plan.speed and other.plan.speed:
        reasons.append(show_rate(other.plan.speed.decode_tokens_per_s.expected))
    reasons.append(f"{show_bytes(round(other.plan.memory.needed.expected))} needed")
    if best.recipe and other.recipe and best.recipe.status != other.recipe.status:
        reasons.append(other.recipe.status)
    return ", ".join(reasons)


# --- adapters ---

OpenedAdapters = Mapping[AdapterReference, Adapter | UnreadAdapter]
"""What is known of each that the ask or a recipe names."""


def named_adapters(ask: Ask, recipe: Recipe | None) -> tuple[AdapterReference, ...]:
    """Those of the ask over those of the recipe."""
    names = {adapter.name for adapter in ask.adapters}
    shipped = recipe.adapters.items() if recipe else ()
    kept = (AdapterReference(name, reference) for name, reference in shipped if name not in names)
    return (*kept, *ask.adapters)


def add_adapters(
    launch: Launch, shape: Architecture, named: Sequence[AdapterReference], opened: OpenedAdapters
) -> tuple[Launch, tuple[Adapter, ...], tuple[Finding, ...]]:
    """The launch with the adapters that it can have, these, and why it cannot have the others."""
    known = [
        opened.get(each) or UnreadAdapter(each.name, UsageError("it was not read", next="firesteel plan"))
        for each in named
    ]
    findings = adapter_findings(launch, shape, known)
    refused = {finding.saw for finding in findings}
    adapters = tuple(each for each in known if isinstance(each, Adapter) and each.name not in refused)
    return with_adapters(launch, adapters), adapters, findings


# --- audits ---

AUDIT_PREFIX = "audit-"


def launch_findings(
    model: str, findings: Iterable[CheckpointFinding], despite: Sequence[str] = ()
) -> tuple[Finding, ...]:
    """Without notes, which say nothing about whether the launch will work. Checks in `despite` only warn."""
    return tuple(
        Finding(
            rule=f"{AUDIT_PREFIX}{found.check}",
            level="warn" if found.check in despite else found.level,
            says=f"{found.says}: {found.effect}",
            instead=audit_advice(model, found),
            location=None,
            saw=found.evidence,
            confidence="reported",
            sources=(Evidence(url=found.source, seen=date.fromisoformat(SEEN)),),
            scope="checkpoint",
        )
        for found in findings
        if found.level != "note"
    )


def audit_advice(model: str, found: CheckpointFinding) -> str:
    """What to type next: look, mend, or overrule it."""
    look = f"firesteel audit {shlex.quote(model)}" + (" --fix" if found.mend else "")
    return f"{look}; or --despite {found.check}, if the audit is wrong" if found.level == "stop" else look


def is_audit(finding: Finding) -> bool:
    return finding.rule.startswith(AUDIT_PREFIX)


def audit_note(findings: Iterable[CheckpointFinding] | None, model: str) -> str:
    """What a plan says about it."""
    if findings is None:
        return f"not audited, because it is not on this disk: firesteel audit {shlex.quote(model)}"
    wrong = [found for found in findings if found.level != "note"]
    result = f"{len(wrong)} findings, see below" if wrong else "nothing is wrong"
    return f"audited from its headers and scales: {result}"
