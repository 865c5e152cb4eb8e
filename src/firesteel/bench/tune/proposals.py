"""A launch with changed flags, planned again and checked against the rules. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from firesteel.catalog.image import Images
from firesteel.catalog.launches import with_flags
from firesteel.catalog.recipe import Recipe
from firesteel.engines.kv_cache import PLANNED_FLAGS
from firesteel.errors import FiresteelError
from firesteel.launch import FlagValue
from firesteel.planner.advice import require_runnable
from firesteel.planner.memory.measured import MeasuredMemory, launch_key
from firesteel.planner.plan import plan
from firesteel.planner.propose import Proposal
from firesteel.rules.checker import check
from firesteel.values import Value, replace


class PlanningContext(Value):
    """What a plan needs besides the launch. Not the user's own measurements: they cover a few settings only,
    and a measured figure among estimates would decide the ranking."""

    images: Images
    realised: Mapping[str, MeasuredMemory] = {}
    recipes: tuple[Recipe, ...] = ()
    """All known recipes; another one of the same model may show how to draft."""


def propose(
    base: Proposal, changed: Mapping[str, FlagValue | None], context: PlanningContext
) -> Proposal | str:
    """The proposal with these flags, or the reason why there is none."""
    was, own_flags = base.plan, base.recipe.flags if base.recipe else {}
    flags = {
        name: value
        for name, value in was.launch.flags.items()
        if name not in changed and (name not in PLANNED_FLAGS or name in own_flags)
    }
    flags |= {name: value for name, value in changed.items() if value is not None}
    launch = with_flags(was.launch, flags)
    try:
        memory = context.realised.get(launch_key(launch))
        planned = plan(launch, was.shape, was.weights, was.host, memory)
        findings = check(planned.launch, hardware=was.host.hardware, images=context.images)
        proposal = replace(base, plan=planned, findings=findings)
        require_runnable(proposal)
    except FiresteelError as error:
        return error.what
    return proposal
