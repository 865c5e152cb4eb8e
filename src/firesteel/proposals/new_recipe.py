"""A recipe from a launch: its sizes and flags as a file, and as a patch for the shipped catalog. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import unified_diff

from firesteel.catalog.recipe import Recipe, Setting
from firesteel.engines.engine import served_capacity, size_flags
from firesteel.engines.kv_cache import PLANNED_FLAGS
from firesteel.proposals.propose import Proposal
from firesteel.values import replace


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
    return replace(base, context=context, users=users, flags=flags)


def catalog_patch(recipe: Recipe, text: str) -> str:
    """A patch that adds the recipe to the shipped catalog, for `git apply`."""
    repository = recipe.model.partition(":")[0]
    path = f"src/firesteel/data/recipes/{repository}/{recipe.name}.yaml"
    lines = text.splitlines(keepends=True)
    diff = unified_diff([], lines, "/dev/null", f"b/{path}")
    return f"diff --git a/{path} b/{path}\nnew file mode 100644\n" + "".join(diff)
