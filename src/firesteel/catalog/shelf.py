"""Recipes by others: a second folder over the catalog, trusted with flags and nothing else.

    catalog, refused = with_shelf(catalog, files)

Such a recipe names a model and an image that the catalog has already, and flags of a closed list
(`data/shelf.yaml`) with values that name no file, host or program. It brings no environment, no assets (they
run a shell before the engine), no models or images of its own, and takes no name that is taken. One that says
more is refused with the reason, and the others of the folder are still read: a stranger's mistake must not
stop `ps`. The user may adopt a refused recipe by name, after reading what it does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath

from firesteel import shipped_data
from firesteel.catalog.catalog import Catalog, File, check_recipe
from firesteel.catalog.recipe import Recipe, read_recipe
from firesteel.errors import UsageError, printable
from firesteel.launch import EngineName
from firesteel.values import FileValue, Value, YamlFile, replace

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._,:+=-]{0,99}\Z", re.ASCII)
"""A value without a path, a variable, an address, an escape or a second word, which may be another flag."""
_DRIVE = re.compile(r"\.\.|://")
_MAX_TEXT = 2000
_MAX_FLAGS = 60
_MAX_SPARKS = 8


class RefusedRecipe(Value):
    name: str
    path: str
    why: str


class ShelfSchema(FileValue, kw_only=True):
    flags: dict[EngineName, frozenset[str]]
    keys: dict[str, frozenset[str]]


def with_shelf(catalog: Catalog, files: Iterable[File]) -> tuple[Catalog, tuple[RefusedRecipe, ...]]:
    """The catalog with the recipes of others that ask for no more than flags, and those that do not."""
    taken: dict[str, Recipe] = {}
    refused = []
    known = {name.lower() for name in catalog.recipes}  # `find` looks for names without regard to case
    for path, text in files:
        name = PurePosixPath(path).stem
        try:
            file = YamlFile.parse(path, text)
            recipe = read_recipe(name, file)
            reason = next(reasons(recipe, catalog), None)
            if name.lower() in known:
                reason = "a recipe of this name exists already"
            if reason is None:
                check_recipe(recipe, file, catalog.models, catalog.images)
        except UsageError as error:
            reason = error.what
        if reason is None and name in taken:
            reason = f"{taken[name].path} has the same name"
        if reason:
            refused.append(RefusedRecipe(printable(name, 100), printable(path, 300), printable(reason, 500)))
        else:
            taken[name] = _labelled(recipe)
    if not taken:
        return catalog, tuple(refused)
    return replace(catalog, recipes={**catalog.recipes, **taken}), tuple(refused)


def _labelled(recipe: Recipe) -> Recipe:
    """What others measured is not known here."""
    return replace(recipe, title=f"{recipe.title} (by others)", status="untried")


def reasons(recipe: Recipe, catalog: Catalog) -> Iterator[str]:
    """Why a recipe asks for more than flags."""
    if recipe.image not in catalog.images.named:
        yield f"image `{recipe.image}` is none that firesteel knows"
    if recipe.model not in catalog.models:
        yield f"model `{recipe.model}` is not in the catalog"
    for asset in recipe.assets:
        yield f"it brings {asset.kind} `{asset.name}`, which runs commands or code before or in the engine"
    for name in recipe.adapters:
        yield f"it brings the adapter `{name}`, which is weights of its author's"
    for variable in recipe.env:
        yield f"it sets the environment variable {variable}"
    if len(recipe.flags) > _MAX_FLAGS:
        yield f"it has {len(recipe.flags)} flags"
    if recipe.sparks > _MAX_SPARKS:
        yield f"it is for {recipe.sparks:,} Sparks"
    if recipe.fallback is not None and recipe.fallback not in catalog.recipes:
        yield "its `fallback` is no recipe of the catalog"
    allowed = shipped_data.load("shelf.yaml", ShelfSchema)
    for flag, setting in recipe.flags.items():
        if flag not in allowed.flags[recipe.engine]:
            yield f"--{flag} is not among the flags that recipes by others may set"
        elif reason := _unsafe_value(setting.value, flag, allowed.keys):
            yield f"--{flag}: {reason}"
    settings = recipe.requests
    for body in (settings.body, settings.for_tools, *settings.instead.values(), settings.system_prompt):
        if reason := _unsafe_value(body, "requests", allowed.keys):
            yield f"requests: {reason}"
    for text in _texts(recipe):
        if len(text) > _MAX_TEXT or printable(text, _MAX_TEXT) != text:
            yield "its texts are longer than 2,000 characters or move a terminal's cursor"


def _unsafe_value(value: object, name: str, keys: Mapping[str, frozenset[str]]) -> str | None:
    """Why the value of this name is not plain; `keys`: those that a JSON value may have, by its name."""
    if isinstance(value, Mapping):
        unknown = next((key for key in value if key not in keys.get(name, ())), None)
        if unknown is not None:
            return f"`{printable(unknown, 80)}` is not among the keys that recipes by others may set"
        found = (_unsafe_value(item, key, keys) for key, item in value.items())
    elif isinstance(value, list | tuple):
        found = (_unsafe_value(item, name, keys) for item in value)
    else:
        is_plain = not isinstance(value, str) or (_PLAIN.match(value) and not _DRIVE.search(value))
        return None if is_plain else f"`{printable(str(value), 80)}` may name a file, an address or a program"
    return next((reason for reason in found if reason), None)


def _texts(recipe: Recipe) -> Iterator[str]:
    yield from (recipe.title, recipe.note or "", recipe.requests.why or "", *recipe.requests.instead)
    yield from (setting.why for setting in recipe.flags.values())
    yield from (source.url for source in recipe.sources)
    yield from (source.note or "" for source in recipe.sources)
    yield from (f"{row.was} {row.why}" for row in recipe.corrects)
    yield from (score.suite for score in recipe.quality)
