"""`docs/registries.md`: page.md, filled in from the data beside it and from the catalog."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

import yaml

from firesteel.catalog.catalog import Catalog, shipped
from firesteel.catalog.recipe import Recipe
from firesteel.engines.schema.releases import known_versions
from firesteel.facts.host.hardware import hardware, idle_host
from firesteel.launch import Ask, EngineName
from firesteel.planner.propose import propose
from firesteel.rules.checker import release_findings
from registries.differences import FOLDER, READ, differences, launches
from registries.others import OtherLaunch, others, reason_of

_RECENT = 9
"""Releases that recipes are held against."""
_READ_REPOSITORIES = 56
"""Those without such a launch included."""


def registries_page() -> str:
    parts = {
        "registries": _registries(), "models": _models(), "others": _others(), "differences": _differences(),
        "drafting": _drafting(), "releases": _releases(),
    }  # fmt: skip
    text = (FOLDER / "page.md").read_text()
    for name, part in parts.items():
        text = text.replace(f"{{{name}}}", part)
    return text


def _registries() -> str:
    read = []
    for row in _rows("registries.yaml"):
        where = f"[{row['repository']}](https://github.com/{row['repository']})"
        read.append(f"{where} (commit {row['commit']}, {row['day']}, {row['what']})")
    return f"Read on {READ}: {', '.join(read)}. `firesteel check` reads all of them."


def _models() -> str:
    rows = [(row["theirs"], _names(row["here"]), row["why"]) for row in _rows("models.yaml")]
    return _table(("launches (spark-arena, eugr)", "here", "taken in, or why not"), rows)


def _others() -> str:
    """Launches that say the same of the same model are one row."""
    found: dict[tuple[str, str, str, str], list[OtherLaunch]] = {}
    for launch in others():
        row = reason_of(launch)
        if row is None:
            raise SystemExit(
                f"{launch.repository} {launch.path}: {launch.model} has no reason in others.yaml"
            )
        model = f"`{launch.model}`" if "/" in launch.model else "not named"
        key = (launch.kind, model, _names(row.get("here", ())), row.get("why", "taken in"))
        found.setdefault(key, []).append(launch)
    kinds = Counter(launch.kind for launch in others())
    taken = sum(len(each) for (_, _, here, _), each in found.items() if here != "-")
    counts = ", ".join(f"{count} of {kind}" for kind, count in sorted(kinds.items()))
    head = (
        f"In {_READ_REPOSITORIES} public repositories about the Spark, guides and scripts included (read on "
        f"{READ}), `firesteel check` reads {len(others())} such launches: {counts}. {taken} of them are here "
        f"as recipes, {len(others()) - taken} are not. Two recipes come from text that is no launch: "
        "SGLang's page for Nemotron 3.5 Lightning, and an owner's report of Gemma 4 31B by AWQ.\n\n"
    )
    rows = []
    for (kind, model, here, why), each in sorted(found.items()):
        where = ", ".join(sorted({launch.repository for launch in each}))
        rows.append((kind, model, str(len(each)), where, here, why))
    return head + _table(("kind", "model", "launches", "in", "here", "why"), rows)


def _differences() -> str:
    said: dict[tuple[str, str, str, str, str], set[str]] = {}
    for each in differences():
        if each.reason is None:
            raise SystemExit(
                f"{each.launch.path}: no reason for --{each.flag} {each.theirs}, see scripts/registries"
            )
        key = (each.recipe, each.flag, _value(each.ours), _value(each.theirs), each.reason)
        said.setdefault(key, set()).add(each.launch.registry)
    head = (
        f"{len(launches())} launches of models that the catalog has, each against the recipe that is nearest "
        "to it; sizes, addresses and the split over nodes are left out, since `plan` decides them. "
        f"{len(said)} differences:\n\n"
    )
    rows = [
        (f"`{recipe}`", f"`--{flag}`", ours, theirs, ", ".join(sorted(names)), why)
        for (recipe, flag, ours, theirs, why), names in sorted(said.items())
    ]
    return head + _table(("recipe", "flag", "ours", "theirs", "of", "why"), rows)


def _drafting() -> str:
    by_load = [
        recipe.name
        for recipe in shipped().recipes.values()
        if "num_speculative_tokens_per_batch_size" in json.dumps(_flag(recipe, "speculative-config"))
    ]
    rows = [(row["engine"], row["how"], row["releases"]) for row in _rows("drafting.yaml")]
    used = f"\n\nRecipes that draft for few users and stop for many: {_names(sorted(by_load))}."
    return _table(("engine", "what turns drafting off under load", "releases"), rows) + used


def _releases() -> str:
    """How the latest releases that are known judge the recipes of their engine."""
    known, host = shipped(), idle_host(hardware("gb10"))
    lines = []
    for engine in get_args(EngineName):
        names = [recipe.name for recipe in known.recipes.values() if recipe.engine == engine]
        planned = [propose(known, host, Ask(name))[0].plan.launch for name in names]
        lines += [_judged(engine, version, planned, known) for version in known_versions(engine)[-_RECENT:]]
    return _table(("engine", "release", "recipes", "stopped", "warned of"), lines)


def _judged(engine: EngineName, version: str, planned: Sequence[Any], known: Catalog) -> tuple[str, ...]:
    found = [each for launch in planned for each in release_findings(launch, version, "gb10", known.images)]
    stopped = {each.recipe for each in found if each.level == "stop"}
    warned = {each.recipe for each in found} - stopped
    return (engine, version, str(len(planned)), _names(sorted(stopped)), _names(sorted(warned)))


def _flag(recipe: Recipe, name: str) -> object:
    return recipe.flags[name].value if name in recipe.flags else None


def _rows(name: str) -> list[Mapping[str, Any]]:
    return list(yaml.safe_load((FOLDER / name).read_text()))


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "-"


def _value(value: object) -> str:
    if value is None:
        return "-"
    return "`" + (value if isinstance(value, str) else json.dumps(value)).replace("|", "\\|") + "`"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)
