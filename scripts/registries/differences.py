"""Which flags of other registries' launches differ from our recipes of the same model, and why.

launches.json   what the registries say, written by `scripts/compare-registries`
reasons.yaml    why a flag of theirs is not in our recipe, or ours not in theirs
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from firesteel.catalog.catalog import shipped
from firesteel.catalog.recipe import Recipe

FOLDER = Path(__file__).parent
READ = "2026-11-16"
"""The day on which the registries were read for launches.json."""
SIZES = {
    "max-model-len", "max-num-seqs", "gpu-memory-utilization", "kv-cache-memory-bytes", "host", "port",
    "served-model-name", "tensor-parallel-size", "pipeline-parallel-size", "distributed-executor-backend",
    "nnodes", "node-rank", "master-addr", "master-port", "headless",
}  # fmt: skip
"""Of the machine, the number of users and the node: what `plan` decides."""


@dataclass(frozen=True, slots=True)
class RegistryLaunch:
    registry: str
    path: str
    model: str
    sparks: int
    flags: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Difference:
    """`theirs` or `ours` is None where a side does not say the flag."""

    launch: RegistryLaunch
    recipe: str
    flag: str
    theirs: Any
    ours: Any
    reason: str | None


def launches() -> tuple[RegistryLaunch, ...]:
    return tuple(RegistryLaunch(**row) for row in json.loads((FOLDER / "launches.json").read_text()))


def reasons() -> list[dict[str, Any]]:
    return list(yaml.safe_load((FOLDER / "reasons.yaml").read_text()))


def differences() -> Iterator[Difference]:
    """Of each launch against the recipe that is nearest to it."""
    why = reasons()
    for launch in launches():
        recipe = nearest(launch)
        for flag in differing(launch, recipe):
            theirs, ours = launch.flags.get(flag), _value(recipe, flag)
            reason = next((row["why"] for row in why if _speaks_of(row, launch, flag, theirs)), None)
            yield Difference(launch, recipe.name, flag, theirs, ours, reason)


def nearest(launch: RegistryLaunch) -> Recipe:
    recipes = [recipe for recipe in shipped().recipes.values() if recipe.model == launch.model]
    return min(recipes, key=lambda recipe: (len(differing(launch, recipe)), recipe.name))


def differing(launch: RegistryLaunch, recipe: Recipe) -> list[str]:
    names = (launch.flags.keys() | recipe.flags.keys()) - SIZES
    return sorted(flag for flag in names if _text(launch.flags.get(flag)) != _text(_value(recipe, flag)))


def _value(recipe: Recipe, flag: str) -> Any:
    return recipe.flags[flag].value if flag in recipe.flags else None


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True).lower()


def _speaks_of(row: dict[str, Any], launch: RegistryLaunch, flag: str, theirs: Any) -> bool:
    if row["flag"] != flag or ("model" in row and row["model"] not in launch.model):
        return False
    return "theirs" not in row or _text(row["theirs"]) == _text(theirs)
