"""A plan that breaks no rule: what was asked for -> recipes -> launches -> plans -> the best of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from firesteel import catalog as catalog_room
from firesteel import engines
from firesteel.catalog import Catalog, Image, Images, Model, Recipe
from firesteel.engines.schema.releases import known_versions
from firesteel.errors import DoesNotFit, HostNotReady, Stopped, UsageError
from firesteel.facts import Checkpoint, Host, Weights
from firesteel.facts.formats.byte_source import one_line
from firesteel.launch import Ask, EngineName, Goal, Launch
from firesteel.launch_pipeline import DEFAULT_PORT, from_recipe, in_container, with_user_options
from firesteel.planner import MeasuredMemory, OwnRun, Plan, largest_context, launch_key, longest_context, plan
from firesteel.rules.check import Finding, check
from firesteel.units import show_bytes

DEFAULT_CONTEXT = 8192
_UPSTREAM: dict[EngineName, str] = {
    "vllm": "vllm/vllm-openai:v{version}{suffix}",
    "sglang": "lmsysorg/sglang:v{version}{suffix}",
    "llamacpp": "ghcr.io/ggml-org/llama.cpp:server-cuda13-b{version}",
}
_SIXTEEN_BITS = ("BF16", "F16", "16-bit")
_FORMATS = re.compile(r"nvfp4|mxfp4|fp8-dynamic|fp8|int4|int8|awq|gptq|nf4|bf16|fp16", re.IGNORECASE)
_STATUS_RANK = {"measured": 0, "reported": 1, "untried": 2}


@dataclass(frozen=True, slots=True)
class Proposal:
    """One way to serve what was asked for, with everything known about it."""

    plan: Plan
    findings: tuple[Finding, ...]
    image: Image | None = None
    """What it runs in; None when that is not known."""
    recipe: Recipe | None = None
    """None for a checkpoint that was planned from its own files."""
    model: Model | None = None
    asked: str = ""
    """What the user called it."""

    @property
    def name(self) -> str:
        return self.plan.launch.name

    @property
    def stops(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.level == "stop")

    @property
    def suits_host(self) -> bool:
        """A container needs a GPU; the embedded engine needs none."""
        host = self.plan.host
        return self.is_embedded or bool(host.gpus or host.hardware)

    @property
    def is_embedded(self) -> bool:
        return self.image is not None and self.image.package is not None

    @property
    def can_run(self) -> bool:
        return self.suits_host and self.plan.fits and not self.stops


def propose(
    catalog: Catalog,
    host: Host,
    ask: Ask,
    realised: Mapping[str, MeasuredMemory] | None = None,
    own: Mapping[str, Sequence[OwnRun]] | None = None,
) -> tuple[Proposal, ...]:
    """Every recipe that the ask means, best first; without a model's name, every recipe there is.

    By `launch_key`, `realised`: what earlier starts took on this host; `own`: how fast benches found it here.
    """
    recipes = catalog_room.find(catalog, ask.model) if ask.model else tuple(catalog.recipes.values())
    recipes = tuple(recipe for recipe in recipes if ask.engine in (None, recipe.engine))
    if (ask.sparks or 1) > 1:  # llama.cpp has no tensor parallelism between machines
        recipes = tuple(recipe for recipe in recipes if recipe.engine != "llamacpp")
    if not recipes:
        raise UsageError(f"no recipe runs {ask.model or 'anything'} so", next="firesteel models")
    if ask.quant:
        recipes = _stored_as(catalog, recipes, ask.quant)
    found = (_proposal(catalog, recipe, host, ask, realised or {}, own or {}) for recipe in recipes)
    return tuple(sorted(found, key=lambda proposal: _rank(proposal, ask.goal)))


def _stored_as(catalog: Catalog, recipes: tuple[Recipe, ...], label: str) -> tuple[Recipe, ...]:
    """Those whose checkpoint is of that label: of a checkpoint that exists, its weights are what they are."""
    called = {recipe.name: _labels(catalog, recipe) for recipe in recipes}
    found = tuple(recipe for recipe in recipes if label.lower() in called[recipe.name])
    if found:
        return found
    there = sorted({labels[0] for labels in called.values()})
    raise UsageError(
        f"no recipe has these weights in {one_line(label)[:40]}; there are {', '.join(there)}",
        next=f"--quant {there[0]}, or a config.json, for which --quant may be anything",
    )


def _labels(catalog: Catalog, recipe: Recipe) -> tuple[str, ...]:
    """The tag of a GGUF, what a repository is called, or how most of its bytes are stored."""
    name, _, tag = recipe.model.partition(":")
    if tag:
        return (tag.lower(),)
    said = tuple(word.lower() for word in _FORMATS.findall(name.rpartition("/")[2]))
    return said or (_most(catalog_room.weights(catalog, recipe)).lower(),)


def _most(weights: Weights) -> str:
    """The format of most bytes."""
    sizes: dict[str, int] = {}
    for (_, form), size in weights.bytes_by_format.items():
        sizes[form] = sizes.get(form, 0) + size
    most = max(sizes, key=lambda form: sizes[form], default="a format that is not known")
    return "BF16" if most == "16-bit" else most


def _insist_on_no_label(checkpoint: Checkpoint, ask: Ask) -> None:
    """Files say themselves how they are stored."""
    if ask.quant and checkpoint.weights.provenance == "counted":
        raise UsageError(
            f"{checkpoint.origin} is {_most(checkpoint.weights)} by its own header; --quant is for a config "
            "alone",
            next=f"firesteel plan {checkpoint.origin}",
        )


def _proposal(
    catalog: Catalog,
    recipe: Recipe,
    host: Host,
    ask: Ask,
    realised: Mapping[str, MeasuredMemory],
    own: Mapping[str, Sequence[OwnRun]],
) -> Proposal:
    model, image = catalog.models[recipe.model], catalog.images.named[recipe.image]
    launch = with_user_options(from_recipe(catalog, recipe, ask), ask)
    weights = _weights(catalog_room.weights(catalog, recipe), ask)
    key = launch_key(launch)
    planned = plan(launch, model.architecture, weights, host, realised.get(key), own=own.get(key, ()))
    findings = check(planned.launch, hardware=host.hardware, images=catalog.images)
    return Proposal(planned, findings, image, recipe, model)


def propose_checkpoint(
    checkpoint: Checkpoint,
    images: Images,
    host: Host,
    ask: Ask,
    realised: Mapping[str, MeasuredMemory] | None = None,
    own: Mapping[str, Sequence[OwnRun]] | None = None,
) -> Proposal:
    """A checkpoint that is in no catalog, on the engine that reads its format, with no flag but its sizes.

    Where there is a GPU it runs in a container that a recipe uses; where there is none, embedded.
    """
    _insist_on_no_label(checkpoint, ask)
    engine = _engine(checkpoint, ask)
    shape = checkpoint.architecture
    context = ask.context or min(shape.max_context, DEFAULT_CONTEXT)
    if context > shape.max_context:
        raise UsageError(
            f"{checkpoint.name} takes {shape.max_context:,} tokens at most",
            next=f"--context {shape.max_context}",
        )
    has_gpu = bool(host.gpus or host.hardware)
    ask = _with_a_release(engine, has_gpu, images, ask)
    image = _image(engine, has_gpu, images, ask.version)
    launch = Launch(
        name=service_name(checkpoint.name),
        model=checkpoint.model,
        engine=engine,
        version=image.version if image else None,
        flags=engines.size_flags(engine, context, ask.users or 1),
        port=ask.port or DEFAULT_PORT,
    )
    if engine == "vllm" and checkpoint.kv_cache_dtype:  # what its `auto` would take, said out loud
        launch = replace(launch, flags={**launch.flags, "kv-cache-dtype": checkpoint.kv_cache_dtype})
    if image and image.reference:
        launch = in_container(launch, image)
    launch = with_user_options(launch, ask)
    key = launch_key(launch)
    heavier = checkpoint.heavier if ask.weights_bytes is None else None
    planned = plan(
        launch, shape, _weights(checkpoint.weights, ask), host, (realised or {}).get(key), heavier,
        (own or {}).get(key, ()),
    )  # fmt: skip
    notes = tuple(f"not counted: {words}" for words in checkpoint.unknown)
    planned = replace(planned, notes=(*planned.notes, *notes))
    return Proposal(
        planned, check(planned.launch, hardware=host.hardware, images=images), image, asked=checkpoint.origin
    )


def _engine(checkpoint: Checkpoint, ask: Ask) -> EngineName:
    reads: EngineName = "llamacpp" if checkpoint.format == "gguf" else "vllm"
    if ask.engine and (ask.engine == "llamacpp") != (reads == "llamacpp"):
        other = "--quant q4_k_m, or another of GGUF's" if ask.engine == "llamacpp" else "--engine llamacpp"
        raise UsageError(f"{ask.engine} does not read {checkpoint.format}", next=other)
    if (ask.sparks or 1) > 1 and reads == "llamacpp":
        raise UsageError("llama.cpp does not split a model's tensors over several Sparks", next="--nodes 1")
    return ask.engine or reads


def _with_a_release(engine: EngineName, has_gpu: bool, images: Images, ask: Ask) -> Ask:
    """Where no recipe names an image for the engine, the newest release that is known is taken."""
    if ask.version or not has_gpu or _image(engine, has_gpu, images, None):
        return ask
    return replace(ask, version=known_versions(engine)[-1])


def _image(engine: EngineName, has_gpu: bool, images: Images, version: str | None) -> Image | None:
    """What a recipe uses, or upstream's image of the version that was asked for."""
    for image in images.named.values():
        fits = image.engine == engine and (image.reference if has_gpu else image.package) is not None
        if fits and version in (None, image.version):
            return image
    if version is None or not has_gpu:
        return None
    tags = (_UPSTREAM[engine].format(version=version, suffix=suffix) for suffix in ("", "-cu130"))
    found = [known for tag in tags if (known := catalog_room.identify(tag, images))]
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
    """What can run first, then what uses the GPU, then the goal, what somebody has run, and speed."""
    return (
        not proposal.can_run,
        proposal.is_embedded and proposal.plan.host.hardware is not None,
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
            crowd = speed.batch if speed else None
            return crowd.total_tokens_per_s.expected if crowd else _worth(proposal, "speed")
        case "context":
            return float(longest_context(plan))
        case "quality":
            return _kept(proposal)


def _kept(proposal: Proposal) -> float:
    """How much of the unquantized scores is reported to be left.

    Weights in 16 bits lost nothing; where nobody reports, the larger checkpoint is taken to have lost less,
    and comes after those that were measured.
    """
    weights = proposal.plan.weights
    plain = sum(size for (_, form), size in weights.bytes_by_format.items() if form in _SIXTEEN_BITS)
    if plain > 0.95 * weights.total_bytes:
        return 1.0
    figures = proposal.recipe.quality if proposal.recipe else ()
    scores = [figure.this / figure.baseline for figure in figures if figure.baseline]
    return sum(scores) / len(scores) if scores else weights.total_bytes / 1e15


def after(best: Proposal, other: Proposal) -> str:
    """Why one way came after another."""
    if not other.plan.fits:
        return f"does not fit, {show_bytes(other.plan.memory.short_bytes)} short"
    if other.stops:
        return f"{other.stops[0].rule} stops it"
    if not other.suits_host:
        return "needs a GPU"
    ours, theirs = best.plan.speed, other.plan.speed
    words = []
    if ours and theirs:
        words.append(f"{theirs.decode_tokens_per_s.expected:.0f} tok/s")
    words.append(f"{show_bytes(round(other.plan.memory.needed.expected))} needed")
    if best.recipe and other.recipe and best.recipe.status != other.recipe.status:
        words.append(other.recipe.status)
    return ", ".join(words)


def insist(proposal: Proposal) -> None:
    """Raises the reason why it must not be launched: it does not fit, a rule stops it, no GPU is there."""
    memory = proposal.plan.memory
    if not proposal.plan.fits:
        raise DoesNotFit(
            f"{proposal.name} does not fit {proposal.plan.host.title}: it needs "
            f"{show_bytes(round(memory.needed.expected))}, there is room for "
            f"{show_bytes(memory.budget_bytes)}",
            next=_smaller(proposal),
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


def _smaller(proposal: Proposal) -> str:
    """What would make it fit, else where to look."""
    context = largest_context(proposal.plan)
    return f"--context {context}" if context else "firesteel models, which shows what fits"
