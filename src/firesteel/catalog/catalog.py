"""The catalog: recipes, models and images together, found by name.

What ships is read from package data. A user's folder lies over it (`overlay`): the same three kinds of file,
a recipe or a model of the same name takes the place of ours, and every mistake has its file and line.

Recipes by others lie over both (`with_shelf`), trusted with flags of a closed list and nothing else. One that
says more is refused with the reason, and the others of the folder are still read: a stranger's mistake must
not stop `ps`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import PurePosixPath

from firesteel import shipped_data
from firesteel.catalog.image import Images, read_images
from firesteel.catalog.model import Model, read_model
from firesteel.catalog.recipe import Recipe, read_recipe
from firesteel.errors import UsageError, printable
from firesteel.facts.model.tensors import Role, Weights
from firesteel.launch import EngineName
from firesteel.values import FileValue, Value, YamlFile, replace

File = tuple[str, str]
"""A path as the user would write it, and the text of the file."""


class Catalog(Value):
    """Recipes by name, models by id, and images."""

    recipes: Mapping[str, Recipe]
    models: Mapping[str, Model]
    images: Images


@cache
def shipped() -> Catalog:
    """What comes with firesteel."""
    models = [shipped_data.load(path, Model) for path in shipped_data.names("models")]
    recipes = [
        read_recipe(PurePosixPath(path).stem, shipped_data.yaml_file(path))
        for path in shipped_data.names("recipes")
    ]
    return Catalog(
        {recipe.name: recipe for recipe in recipes},
        {model.id: model for model in models},
        read_images(shipped_data.yaml_file("images.yaml"), Images()),
    )


# --- recipes by name ---


def find_recipes(catalog: Catalog, name: str) -> tuple[Recipe, ...]:
    """The recipes that a name means: a recipe's own, a Hub id, or what people call the model."""
    wanted = name.lower()
    for known in catalog.recipes:
        if known.lower() == wanted:
            return (catalog.recipes[known],)
    found = [
        recipe
        for recipe in catalog.recipes.values()
        if wanted in _names_of_model(catalog.models[recipe.model])
    ]
    if found:
        return tuple(sorted(found, key=lambda recipe: recipe.name))
    raise UsageError(_nothing_called(catalog, name), next="firesteel models")


def _names_of_model(model: Model) -> set[str]:
    """What people call the model, in lower case."""
    names = (model.id, model.repository, model.repository.partition("/")[2], model.family)
    return {name.lower() for name in names}


def _nothing_called(catalog: Catalog, name: str) -> str:
    """An error text with the nearest names that the catalog knows."""
    known = {recipe.name.lower(): recipe.name for recipe in catalog.recipes.values()}
    for recipe in catalog.recipes.values():
        model = catalog.models[recipe.model]
        known |= {model.id.lower(): model.id, model.family.lower(): model.family}
    near = get_close_matches(name.lower(), list(known), n=3, cutoff=0.5)
    hint = f"; the nearest are {', '.join(f'`{known[each]}`' for each in near)}" if near else ""
    return f"the catalog has nothing called `{name}`{hint}"


def loaded_weights(catalog: Catalog, recipe: Recipe) -> Weights:
    """The weights that the recipe's engine loads: the model's own weights, and the drafts that come from
    elsewhere."""
    own = catalog.models[recipe.model].weights
    drafts = sum(asset.bytes or 0 for asset in recipe.assets if asset.kind == "draft")
    if not drafts:
        return own
    held = own.bytes_by_role.get(Role.DRAFTER, 0)
    return replace(own, bytes_by_role={**own.bytes_by_role, Role.DRAFTER: held + drafts})


# --- a user's own folder ---


def overlay(catalog: Catalog, files: Iterable[File]) -> Catalog:
    """`catalog` with a folder of files laid over it.

    The folder holds `recipes/**.yaml` (a recipe's name is its file's), `models/**.yaml` and
    `images.yaml`; the paths may have anything in front.
    """
    own_recipes: dict[str, Recipe] = {}
    own_models: dict[str, Model] = {}
    images = catalog.images
    seen: dict[str, str] = {}
    written: dict[str, YamlFile] = {}
    for path, text in files:
        kind = _kind_of_file(path)
        if kind is None:
            raise UsageError(
                f"{path} is none of `recipes/NAME.yaml`, `models/ORG/NAME.yaml` and `images.yaml`",
                next=f"move {path} into `recipes` or `models`",
            )
        file = YamlFile.parse(path, text)
        if kind == "images":
            images = read_images(file, images)
        elif kind == "models":
            model = read_model(file)
            _require_unique(seen, f"model `{model.id}`", file)
            own_models[model.id] = model
        else:
            recipe = read_recipe(PurePosixPath(path).stem, file)
            _require_unique(seen, f"recipe `{recipe.name}`", file)
            own_recipes[recipe.name], written[recipe.name] = recipe, file
    recipes, models = {**catalog.recipes, **own_recipes}, {**catalog.models, **own_models}
    for name, file in written.items():
        check_recipe(recipes[name], file, models, images)
    return Catalog(recipes, models, images)


def _require_unique(seen: dict[str, str], what: str, file: YamlFile) -> None:
    """Refuse a name that another file of the folder has already."""
    if what in seen:
        raise file.mistake((), f"{what} is also in {seen[what]}")
    seen[what] = file.name


def _kind_of_file(path: str) -> str | None:
    """`recipes`, `models` or `images`, told by the nearest folder of that name or the file's own."""
    parts = PurePosixPath(path).parts
    if parts[-1] == "images.yaml":
        return "images"
    return next((part for part in reversed(parts[:-1]) if part in ("recipes", "models")), None)


def check_recipe(recipe: Recipe, file: YamlFile, models: Mapping[str, Model], images: Images) -> None:
    """What only the whole catalog can tell: the model and the image exist and suit the recipe."""
    if recipe.model not in models:
        raise file.mistake(("model",), _unknown_name("model", recipe.model, models))
    if recipe.image not in images.named:
        raise file.mistake(("image",), _unknown_name("image", recipe.image, images.named))
    image = images.named[recipe.image]
    if image.engine != recipe.engine:
        what = f"image `{recipe.image}` runs {image.engine}, and the recipe says {recipe.engine}"
        raise file.mistake(("engine",), what)
    limit = max_context(recipe, models[recipe.model])
    if recipe.context > limit:
        what = f"serves {recipe.context:,} tokens, and `{recipe.model}` takes {limit:,}"
        raise file.mistake(("serves", "context"), what)
    if not image.reference and any(asset.target or asset.kind == "package" for asset in recipe.assets):
        what = f"`{recipe.image}` is no container, so nothing can be put into it before it starts"
        raise file.mistake(("assets",), what)


def max_context(recipe: Recipe, model: Model) -> int:
    """The most tokens: the config's own limit, or more where the recipe stretches positions (YaRN) or, for a
    model without positions, allows what its card says."""
    rope = _read_rope(recipe.flags["hf-overrides"].value) if "hf-overrides" in recipe.flags else {}
    native, factor = rope.get("original_max_position_embeddings"), rope.get("factor")
    stretched = int(native * factor) if isinstance(native, int) and isinstance(factor, int | float) else 0
    allowed = recipe.context if "VLLM_ALLOW_LONG_MAX_MODEL_LEN" in recipe.env and not rope else 0
    return max(model.architecture.max_context, stretched, allowed)


def _read_rope(overrides: object) -> Mapping[str, object]:
    """`rope_parameters`, of the model itself or of the language model in it."""
    if not isinstance(overrides, dict):
        return {}
    inner = overrides.get("text_config")
    holder = inner if isinstance(inner, dict) else overrides
    rope = holder.get("rope_parameters") or holder.get("rope_scaling")
    return rope if isinstance(rope, dict) else {}


def _unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), n=1)
    return f"no {kind} is called `{name}`" + (f"; did you mean `{near[0]}`?" if near else "")


# --- recipes by others ---

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._,:+=-]{0,99}\Z", re.ASCII)
"""A value without a path, a variable, an address, an escape or a second word, which may be another flag."""
_PARENT_OR_URL = re.compile(r"\.\.|://")
"""The parent folder and the beginning of a URL, which plain characters can spell, too."""
_MAX_TEXT, _MAX_FLAGS, _MAX_SPARKS = 2000, 60, 8
"""Bounds for a file that anybody may have written; a real recipe is far below them."""


class RefusedRecipe(Value):
    """A recipe by others that asks for more than flags; its texts are safe to print."""

    name: str
    path: str
    why: str


class ShelfSchema(FileValue, kw_only=True):
    """`data/shelf.yaml`: what recipes by others may set."""

    flags: dict[EngineName, frozenset[str]]
    keys: dict[str, frozenset[str]]
    """Those of a JSON value, by the name of the flag or of the key that holds it."""


def with_shelf(catalog: Catalog, files: Iterable[File]) -> tuple[Catalog, tuple[RefusedRecipe, ...]]:
    """The catalog with the recipes of others that ask for no more than flags, and those that do not.

    Such a recipe names a model and an image that the catalog has already, and flags of a closed list
    (`data/shelf.yaml`) with values that name no file, host or program. It brings no environment, no assets
    (they run a shell before the engine), no models or images of its own, and takes no name that is taken.
    The user may adopt a refused recipe by name, after reading what it does.
    """
    taken: dict[str, Recipe] = {}
    refused = []
    known = {name.lower() for name in catalog.recipes}  # `find_recipes` ignores case
    for path, text in files:
        name = PurePosixPath(path).stem
        try:
            file = YamlFile.parse(path, text)
            recipe = read_recipe(name, file)
            reason = next(reasons_to_refuse(recipe, catalog), None)
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
            # What others measured is not known here.
            title = f"{recipe.title} (by others)"
            taken[name] = replace(recipe, title=title, status="untried")
    if not taken:
        return catalog, tuple(refused)
    return replace(catalog, recipes={**catalog.recipes, **taken}), tuple(refused)


def reasons_to_refuse(recipe: Recipe, catalog: Catalog) -> Iterator[str]:
    """Why a recipe by others is refused: what it asks for besides plain flags."""
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
    for text in _list_texts(recipe):
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
        is_plain = not isinstance(value, str) or (_PLAIN.match(value) and not _PARENT_OR_URL.search(value))
        return None if is_plain else f"`{printable(str(value), 80)}` may name a file, an address or a program"
    return next((reason for reason in found if reason), None)


def _list_texts(recipe: Recipe) -> Iterator[str]:
    yield from (recipe.title, recipe.note or "", recipe.requests.why or "", *recipe.requests.instead)
    yield from (setting.why for setting in recipe.flags.values())
    yield from (source.url for source in recipe.sources)
    yield from (source.note or "" for source in recipe.sources)
    yield from (f"{row.was} {row.why}" for row in recipe.corrects)
    yield from (score.suite for score in recipe.quality)
