"""Recipes: written from what runs, tested, shared, and those by others, adopted."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from firesteel.catalog.catalog import Catalog, RefusedRecipe, overlay, reasons_to_refuse
from firesteel.catalog.recipe import Recipe, Setting, dump_recipe, flag_value, read_recipe
from firesteel.edge.files import read_text, write_new
from firesteel.edge.home import find_home, write_text
from firesteel.edge.host.machine_files import SIM
from firesteel.errors import UsageError, printable
from firesteel.launch import Ask
from firesteel.library import run
from firesteel.values import Value, YamlFile, plain, replace
from firesteel.workspace import find_workspace

if TYPE_CHECKING:
    from firesteel.planner.propose import Proposal


class NewRecipe(Value, tag_field="document", tag="firesteel.recipe-new/1"):
    """`firesteel recipe new NAME --json`"""

    name: str
    text: str
    path: Path | None
    """Where it was written; None: nowhere."""


class PlannedRecipe(Value):
    recipe: Recipe
    proposal: Proposal
    more: tuple[str, ...]
    """What it asks for beyond flags."""


class SharedRecipe(Value):
    name: str
    files: tuple[Path, ...]
    is_measured: bool
    """The figures of a start on this host were written too."""
    more: tuple[str, ...]


class RecipeList(Value, tag_field="document", tag="firesteel.recipe-list/1"):
    """`firesteel recipe list --json`"""

    own: tuple[str, ...]
    others: tuple[str, ...]
    refused: tuple[RefusedRecipe, ...]


class ForeignRecipe(Value):
    """A recipe by others, which may be adopted."""

    name: str
    path: Path
    text: str
    more: tuple[str, ...]


def new_recipe(
    name: str,
    base: str,
    *,
    context: int | None = None,
    users: int | None = None,
    port: int | None = None,
    flags: Sequence[str] = (),
    why: str = "set by hand",
    write: bool = False,
) -> NewRecipe:
    """A recipe like a running service or another recipe; `flags` as `NAME=VALUE`, `why` is their reason."""
    from firesteel.planner.rendered import recipe_of_launch  # the planner

    services = {service.name: service for service in run.services()}
    ask = replace(services[base].spec.ask, name=None) if base in services else Ask(base)
    ask = replace(ask, context=context or ask.context, users=users or ask.users, port=port)
    workspace = find_workspace()
    proposal = workspace.propose(ask, workspace.host("gb10"))[0]
    if proposal.recipe is None:
        raise UsageError(f"{base} has no recipe to begin with", next="firesteel models")
    recipe = recipe_of_launch(proposal.recipe, proposal, {})
    settings = {**recipe.flags, **_settings(flags, why)}
    recipe = replace(recipe, name=name, title=f"{recipe.title}, as {name}", flags=settings, status="untried")
    text = dump_recipe(recipe)
    return NewRecipe(name, text, _write_own(name, text) if write else None)


def _settings(flags: Sequence[str], why: str) -> dict[str, Setting]:
    settings = {}
    for given in flags:
        name, equals, value = given.removeprefix("--").partition("=")
        settings[name] = Setting(flag_value(value) if equals else True, why)
    return settings


def _write_own(name: str, text: str) -> Path:
    path = find_home().catalog / "recipes" / f"{name}.yaml"
    if path.exists():
        raise UsageError(f"{path} exists already", next="another NAME, or remove the file")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    return path


def plan_recipe(name: str, host_name: str | None = None) -> PlannedRecipe:
    """A recipe of the catalog or a file, planned and checked."""
    from firesteel.planner.propose import propose  # the planner

    workspace = find_workspace()
    known = workspace.catalog
    if name.endswith(".yaml"):
        path = Path(name)
        known = overlay(known, [(f"recipes/{path.name}", read_text(path))])
        name = path.stem
    found = _known(known, name)
    proposal = propose(known, workspace.host(host_name or "gb10"), Ask(name))[0]
    return PlannedRecipe(found, proposal, tuple(reasons_to_refuse(found, known)))


def _known(catalog: Catalog, name: str) -> Recipe:
    if name not in catalog.recipes:
        raise UsageError(f"there is no recipe `{printable(name, 80)}`", next="firesteel recipe list")
    return catalog.recipes[name]


def share_recipe(name: str, folder: Path, *, patch: bool = False) -> SharedRecipe:
    """Write it as a file that others can drop in, together with what was measured here.

    `patch`: and as a patch for the shipped catalog.
    """
    from firesteel.planner.rendered import catalog_patch

    workspace = find_workspace()
    recipe = _known(workspace.catalog, name)
    text = dump_recipe(recipe)
    folder.mkdir(parents=True, exist_ok=True)
    files = {folder / f"{name}.yaml": text}
    if measured := _measured(name):
        files[folder / f"{name}.measured.json"] = measured
    if patch:
        files[folder / f"{name}.patch"] = catalog_patch(recipe, text)
    for path, content in files.items():
        write_new(path, content)
    more = tuple(reasons_to_refuse(recipe, workspace.catalog))
    return SharedRecipe(name, tuple(files), measured is not None, more)


def _measured(name: str) -> str | None:
    """Planned and measured figures of the last start here, as JSON."""
    from firesteel.run.report import read_report
    from firesteel.run.service import load

    service = load(find_home(), name)
    try:
        report = read_report(service.report or {}) if service else None
    except ValueError:
        report = None
    if report is None:
        return None
    document = {
        "engine": report.engine, "version": report.version, "first_token_ms": report.first_token_ms,
        "start_s": report.start_s, "verified": report.is_verified, "simulated": SIM in os.environ,
        "compared": [plain(row) for row in report.compared],
    }  # fmt: skip
    return json.dumps(document, indent=1) + "\n"


def list_recipes() -> RecipeList:
    """The user's own, those by others, and those that were refused, with the reason."""
    workspace, home = find_workspace(), find_home()
    paths = {name: Path(recipe.path) for name, recipe in workspace.catalog.recipes.items()}
    return RecipeList(
        own=tuple(name for name, path in paths.items() if path.is_relative_to(home.catalog)),
        others=tuple(name for name, path in paths.items() if path.is_relative_to(home.others)),
        refused=workspace.refused_recipes,
    )


def others_folder() -> Path:
    """Where recipes by others go."""
    return find_home().others


def foreign_recipe(name: str) -> ForeignRecipe:
    """A recipe by others, and what it asks for beyond flags."""
    files = {Path(path).stem: (path, text) for path, text in find_home().others_files()}
    if name not in files:
        raise UsageError(
            f"no recipe by others is called `{printable(name, 80)}`", next="firesteel recipe list"
        )
    path, text = files[name]
    recipe = read_recipe(name, YamlFile.parse(path, text))
    return ForeignRecipe(name, Path(path), text, tuple(reasons_to_refuse(recipe, find_workspace().catalog)))


def adopt_recipe(recipe: ForeignRecipe) -> Path:
    """Make it one's own, with everything that it asks for; the file that was written."""
    return _write_own(recipe.name, recipe.text)
