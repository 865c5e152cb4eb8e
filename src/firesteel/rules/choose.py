"""A plan that breaks no rule: what was asked for -> recipes -> launches -> plans -> the best of them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from firesteel import catalog as catalog_room
from firesteel import engines
from firesteel.catalog import Catalog, Image, Images, Model, Recipe
from firesteel.errors import DoesNotFit, HostNotReady, Stopped, UsageError
from firesteel.facts import Checkpoint, Host
from firesteel.launch import Ask, EngineName, Launch
from firesteel.planner import Plan, largest_context, plan
from firesteel.rules.check import Finding, check
from firesteel.units import show_bytes

DEFAULT_CONTEXT = 8192
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


def propose(catalog: Catalog, host: Host, ask: Ask) -> tuple[Proposal, ...]:
    """Every recipe that the ask means, best first; without a model's name, every recipe there is."""
    recipes = catalog_room.find(catalog, ask.model) if ask.model else tuple(catalog.recipes.values())
    return tuple(sorted((_proposal(catalog, recipe, host, ask) for recipe in recipes), key=_rank))


def _proposal(catalog: Catalog, recipe: Recipe, host: Host, ask: Ask) -> Proposal:
    model, image = catalog.models[recipe.model], catalog.images.named[recipe.image]
    launch = catalog_room.launch(catalog, recipe, ask)
    planned = plan(launch, model.architecture, model.weights, host)
    findings = check(planned.launch, hardware=host.hardware, images=catalog.images)
    return Proposal(planned, findings, image, recipe, model)


def propose_checkpoint(checkpoint: Checkpoint, images: Images, host: Host, ask: Ask) -> Proposal:
    """A checkpoint that is in no catalog, on the engine that reads its format, with no flag but its sizes.

    Where there is a GPU it runs in a container that a recipe uses; where there is none, embedded.
    """
    engine: EngineName = "llamacpp" if checkpoint.format == "gguf" else "vllm"
    shape = checkpoint.architecture
    context = ask.context or min(shape.max_context, DEFAULT_CONTEXT)
    if context > shape.max_context:
        raise UsageError(
            f"{checkpoint.name} takes {shape.max_context:,} tokens at most",
            next=f"--context {shape.max_context}",
        )
    has_gpu = bool(host.gpus or host.hardware)
    image = next((each for each in images.named.values() if _runs(each, engine, has_gpu)), None)
    launch = Launch(
        name=service_name(checkpoint.name),
        model=checkpoint.model,
        engine=engine,
        version=image.version if image else None,
        flags=engines.size_flags(engine, context, ask.users or 1),
        port=ask.port or catalog_room.PORT,
    )
    if image and image.reference:
        launch = catalog_room.contain(launch, image)
    planned = plan(launch, shape, checkpoint.weights, host)
    return Proposal(
        planned, check(planned.launch, hardware=host.hardware, images=images), image, asked=checkpoint.origin
    )


def _runs(image: Image, engine: EngineName, has_gpu: bool) -> bool:
    return image.engine == engine and (image.reference if has_gpu else image.package) is not None


def service_name(text: str) -> str:
    """A name that a folder, a container and a URL can carry."""
    return re.sub(r"[^a-z0-9.-]+", "-", text.lower()).strip("-.")[:60] or "model"


def _rank(proposal: Proposal) -> tuple[object, ...]:
    """What can run first, then what uses the GPU, then what somebody has run, then speed."""
    speed = proposal.plan.speed
    return (
        not proposal.can_run,
        proposal.is_embedded and proposal.plan.host.hardware is not None,
        _STATUS_RANK[proposal.recipe.status if proposal.recipe else "untried"],
        -(speed.decode_tokens_per_s.expected if speed else 0),
        proposal.name,
    )


def insist(proposal: Proposal) -> None:
    """Raises the reason why it must not be launched: it does not fit, a rule stops it, no GPU is there."""
    memory = proposal.plan.memory
    if not proposal.plan.fits:
        raise DoesNotFit(
            f"{proposal.name} does not fit {proposal.plan.host.title}: it needs "
            f"{show_bytes(round(memory.needed.expected))}, there is room for {show_bytes(memory.room_bytes)}",
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
