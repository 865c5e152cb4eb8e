"""Write the best setting as a recipe file for the user's own catalog."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import yaml

from firesteel import engines
from firesteel.bench.tune.proposals import PLANNED_FLAGS
from firesteel.catalog import Recipe, RecipeRequests
from firesteel.catalog.recipe import read_recipe
from firesteel.facts.evidence import Evidence
from firesteel.proposals import Proposal

_SUFFIX = "-tuned"


def tuned_name(name: str) -> str:
    """A recipe that was tuned before keeps its name, and its file is overwritten."""
    return name if name.endswith(_SUFFIX) else f"{name}{_SUFFIX}"


def recipe_text(base: Recipe, best: Proposal, why: Mapping[str, str], note: str) -> str:
    """`why`: the reason of each flag that was changed."""
    launch = best.plan.launch
    served_capacity = engines.served_capacity(launch)
    context, users = served_capacity.context or base.context, served_capacity.users or base.users
    sized = engines.size_flags(base.engine, context, users)
    defaults = base.requests.launch_flags(base.engine, launch.version)  # `requests` says them
    old_reasons = {name: flag.why for name, flag in base.flags.items()}
    flags = {
        name: {"value": value, "why": why.get(name) or old_reasons.get(name, "as it was")}
        for name, value in launch.flags.items()
        if name not in sized and (name not in (*PLANNED_FLAGS, *defaults) or name in base.flags)
    }
    document = {
        "title": f"{base.title}, tuned here", "model": base.model, "engine": base.engine, "image": base.image,
        "sparks": base.sparks, "serves": {"context": context, "users": users}, "flags": flags,
        "env": {name: asdict(variable) for name, variable in base.env.items()},
        "assets": [
            _known({**asdict(asset), "source": _source(asset.source) if asset.source else None})
            for asset in base.assets
        ],
        "requests": _requests(base.requests), "status": "measured",
        "sources": [_source(source) for source in base.sources], "note": note,
    }  # fmt: skip
    filled = {name: value for name, value in document.items() if value not in ({}, [])}
    text = yaml.safe_dump(filled, sort_keys=False, allow_unicode=True, width=110)
    read_recipe(tuned_name(base.name), "recipe", text)  # never write a recipe that cannot be read back
    return text


def _requests(settings: RecipeRequests) -> dict[str, Any]:
    """As a recipe file has them: without what is not said."""
    fields = {**asdict(settings), "source": _source(settings.source) if settings.source else None}
    return {name: value for name, value in fields.items() if value not in (None, {})}


def _source(source: Evidence) -> dict[str, Any]:
    return _known({"url": source.url, "seen": source.seen.isoformat(), "note": source.note})


def _known(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
