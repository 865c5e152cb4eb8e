"""Proposals -> text for other tools, and recipe files. Pure.

`render` writes a launch; from here come what recipe, plan and catalog know beyond it. A recipe takes the
sizes and flags of a launch, and becomes a patch for the shipped catalog.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import unified_diff

from firesteel import render
from firesteel.catalog.image import Images
from firesteel.catalog.recipe import Recipe, Serves, Setting
from firesteel.engines.engine import served_capacity, size_flags
from firesteel.engines.kv_cache import PLANNED_FLAGS
from firesteel.errors import UsageError
from firesteel.launch import Launch
from firesteel.planner.propose import Proposal
from firesteel.render import Cluster, LaunchFacts
from firesteel.render.systemd import native_unit
from firesteel.values import replace

_FORMS = {
    "docker": render.docker,
    "compose": render.compose,
    "systemd": render.systemd,
    "quadlet": render.quadlet,
    "sparkrun": render.sparkrun,
}
_CLUSTER_FORMS = {"kubernetes": render.kubernetes, "kubernetes-swap": render.swap_script}
FORMS, CLUSTER_FORMS = tuple(_FORMS), tuple(_CLUSTER_FORMS)


def render_proposals(
    proposals: Sequence[Proposal], form: str, images: Images, cluster: Cluster | None = None
) -> str:
    """Several only for Kubernetes and compose. `cluster`: names and reach of a Kubernetes Service."""
    pairs = [(proposal.plan.launch, launch_facts(proposal, images)) for proposal in proposals]
    if any(launch.program for launch, _ in pairs):
        if form != "systemd" or len(pairs) > 1:
            raise UsageError(
                f"an engine without a container cannot be written for {form}", next="--as systemd, one model"
            )
        return native_unit(*pairs[0])
    if form in _CLUSTER_FORMS:
        return _CLUSTER_FORMS[form](pairs, cluster or Cluster())
    if form not in _FORMS:
        raise UsageError(f"there is no form `{form[:40]}`", next=f"one of {', '.join(FORMS + CLUSTER_FORMS)}")
    if len(pairs) == 1:
        return _FORMS[form](*pairs[0])
    if form != "compose":
        raise UsageError(f"the form {form} takes one model, not {len(pairs)}", next="render them one by one")
    return _compose_all(pairs)


def _compose_all(pairs: list[tuple[Launch, LaunchFacts]]) -> str:
    """Several files merged: each with its own comments above it, under one `services`."""
    key = "services:\n"
    files = [render.compose(*pair).partition(key) for pair in pairs]
    return (
        "# One compose file for all models of a service file.\n"
        + key
        + "".join(f"\n{head}{body}" for head, _, body in files)
    )


def launch_facts(proposal: Proposal, images: Images) -> LaunchFacts:
    plan, recipe, model = proposal.plan, proposal.recipe, proposal.model
    start = plan.speed.start_up if plan.speed else None
    image = plan.launch.container.image if plan.launch.container else None
    return LaunchFacts(
        flag_reasons=_flag_reasons(proposal, plan.launch),
        env_reasons={name: setting.why for name, setting in recipe.env.items()} if recipe else {},
        start_up_s=start.seconds.high if start and start.phases else None,
        needed_bytes=round(plan.memory.needed.high),
        weights_bytes=plan.weights.total_bytes,
        digest=render.find_digest(image, images) if image else None,
        revision=model.revision if model else None,
        is_gated=bool(model and model.gated),
        is_embedded=proposal.is_embedded,
        arch="arm64" if plan.host.hardware == "gb10" else None,
    )


def _flag_reasons(proposal: Proposal, launch: Launch) -> dict[str, str]:
    plan, recipe = proposal.plan, proposal.recipe
    reasons = {name: setting.why for name, setting in recipe.flags.items()} if recipe else {}
    if recipe:
        for name in recipe.requests.launch_flags(launch.engine, launch.version):
            reasons.setdefault(name, recipe.requests.why or "how the model wants to be asked")
    context, users = plan.cache.context, plan.cache.users
    for name in size_flags(launch.engine, context, users):
        reasons.setdefault(name, f"{context:,} tokens for each of {users} at once")
    for name in PLANNED_FLAGS:
        reasons.setdefault(name, f"from the plan for {plan.machine}")
    return reasons


# --- as a recipe ---


def recipe_of_launch(base: Recipe, proposal: Proposal, why: Mapping[str, str]) -> Recipe:
    """The base with the sizes and flags of a launch; `why`: the reason of each flag that was changed.

    What the plan or `requests` adds is left out: it is added again at the next launch.
    """
    launch = proposal.plan.launch
    served = served_capacity(launch)
    context, users = served.context or base.context, served.users or base.users
    derived = {
        *PLANNED_FLAGS,
        *base.requests.launch_flags(base.engine, launch.version),
    }
    sized = size_flags(base.engine, context, users)
    old_reasons = {name: flag.why for name, flag in base.flags.items()}
    flags = {
        name: Setting(value, why.get(name) or old_reasons.get(name, "as it was"))
        for name, value in launch.flags.items()
        if name not in sized and (name not in derived or name in base.flags)
    }
    return replace(base, serves=Serves(context=context, users=users), flags=flags)


def catalog_patch(recipe: Recipe, text: str) -> str:
    """A patch that adds the recipe to the shipped catalog, for `git apply`."""
    repository = recipe.model.partition(":")[0]
    path = f"src/firesteel/data/recipes/{repository}/{recipe.name}.yaml"
    lines = text.splitlines(keepends=True)
    diff = unified_diff([], lines, "/dev/null", f"b/{path}")
    return f"diff --git a/{path} b/{path}\nnew file mode 100644\n" + "".join(diff)
