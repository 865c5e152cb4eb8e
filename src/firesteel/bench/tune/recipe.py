"""Write the best setting as a recipe file for the user's own catalog."""

from __future__ import annotations

from collections.abc import Mapping

from firesteel.catalog.recipe import Recipe, dump_recipe
from firesteel.planner.propose import Proposal
from firesteel.planner.rendered import recipe_of_launch
from firesteel.values import replace

_SUFFIX = "-tuned"


def tuned_name(name: str) -> str:
    """A recipe that was tuned before keeps its name, and its file is overwritten."""
    return name if name.endswith(_SUFFIX) else f"{name}{_SUFFIX}"


def recipe_text(base: Recipe, best: Proposal, why: Mapping[str, str], note: str) -> str:
    """`why`: the reason of each flag that was changed."""
    tuned = replace(
        recipe_of_launch(base, best, why),
        name=tuned_name(base.name),
        title=f"{base.title}, tuned here",
        status="measured",
        quality=(),
        corrects=(),
        note=note,
    )
    return dump_recipe(tuned)
