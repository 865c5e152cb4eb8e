"""A setting that was found -> a recipe file, as the user's own catalog takes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import yaml

from firesteel import engines
from firesteel.catalog import Recipe
from firesteel.catalog.recipe import read_recipe
from firesteel.facts.evidence import Evidence
from firesteel.rules import Proposal

_PLANNED = ("kv-cache-memory-bytes", "gpu-memory-utilization")
_END = "-tuned"


def tuned_name(name: str) -> str:
    """A recipe that was tuned before keeps its name, and its file is written anew."""
    return name if name.endswith(_END) else f"{name}{_END}"


def recipe_text(base: Recipe, best: Proposal, why: Mapping[str, str], note: str) -> str:
    """`why`: by flag, what is said of those that were changed."""
    launch = best.plan.launch
    offered = engines.served_capacity(launch)
    context, users = offered.context or base.context, offered.users or base.users
    sized = engines.size_flags(base.engine, context, users)
    flags = {
        name: {"value": value, "why": why.get(name) or _why(base, name)}
        for name, value in launch.flags.items()
        if name not in sized and (name not in _PLANNED or name in base.flags)
    }
    sheet = {
        "title": f"{base.title}, tuned here", "model": base.model, "engine": base.engine, "image": base.image,
        "sparks": base.sparks, "serves": {"context": context, "users": users}, "flags": flags,
        "env": {name: asdict(each) for name, each in base.env.items()},
        "assets": [_asset(asdict(each), each.source) for each in base.assets],
        "requests": dict(base.requests), "status": "measured",
        "sources": [_source(each) for each in base.sources], "note": note,
    }  # fmt: skip
    plain = {name: value for name, value in sheet.items() if value not in ({}, [])}
    text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=110)
    read_recipe(tuned_name(base.name), "recipe", text)  # what cannot be read back is not handed out
    return text


def _why(base: Recipe, flag: str) -> str:
    return base.flags[flag].why if flag in base.flags else "as it was"


def _source(source: Evidence) -> dict[str, Any]:
    found = {"url": source.url, "seen": source.seen.isoformat(), "note": source.note}
    return {name: value for name, value in found.items() if value is not None}


def _asset(asset: dict[str, Any], source: Evidence | None) -> dict[str, Any]:
    told = {**asset, "source": _source(source) if source else None}
    return {name: value for name, value in told.items() if value is not None}
