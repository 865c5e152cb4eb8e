"""The catalog: recipes, models and images together, found by name.

What ships is read from package data. A user's folder lies over it: the same three kinds of file, a recipe or
a model of the same name takes the place of ours, and every mistake has its file and line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import PurePosixPath

from firesteel import shipped_data
from firesteel.catalog.image import Images, read_images
from firesteel.catalog.model import Model, read_model
from firesteel.catalog.recipe import Recipe, read_recipe
from firesteel.errors import UsageError
from firesteel.facts.model.tensors import Role, Weights
from firesteel.values import Value, YamlFile, replace

File = tuple[str, str]
"""A path as the user would write it, and the text of the file."""


class Catalog(Value):
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
        kind = _kind(path)
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
            _once(seen, f"model `{model.id}`", file)
            own_models[model.id] = model
        else:
            recipe = read_recipe(PurePosixPath(path).stem, file)
            _once(seen, f"recipe `{recipe.name}`", file)
            own_recipes[recipe.name], written[recipe.name] = recipe, file
    recipes, models = {**catalog.recipes, **own_recipes}, {**catalog.models, **own_models}
    for name, file in written.items():
        check_recipe(recipes[name], file, models, images)
    return Catalog(recipes, models, images)


def _once(seen: dict[str, str], what: str, file: YamlFile) -> None:
    if what in seen:
        raise file.mistake((), f"{what} is also in {seen[what]}")
    seen[what] = file.name


def _kind(path: str) -> str | None:
    """`recipes`, `models` or `images`, told by the nearest folder of that name or the file's own."""
    parts = PurePosixPath(path).parts
    if parts[-1] == "images.yaml":
        return "images"
    return next((part for part in reversed(parts[:-1]) if part in ("recipes", "models")), None)


def check_recipe(recipe: Recipe, file: YamlFile, models: Mapping[str, Model], images: Images) -> None:
    """What only the whole catalog can tell: the model and the image exist and suit the recipe."""
    if recipe.model not in models:
        raise file.mistake(("model",), _unknown("model", recipe.model, models))
    if recipe.image not in images.named:
        raise file.mistake(("image",), _unknown("image", recipe.image, images.named))
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
    rope = _rope(recipe.flags["hf-overrides"].value) if "hf-overrides" in recipe.flags else {}
    native, factor = rope.get("original_max_position_embeddings"), rope.get("factor")
    stretched = int(native * factor) if isinstance(native, int) and isinstance(factor, int | float) else 0
    allowed = recipe.context if "VLLM_ALLOW_LONG_MAX_MODEL_LEN" in recipe.env and not rope else 0
    return max(model.architecture.max_context, stretched, allowed)


def _rope(overrides: object) -> Mapping[str, object]:
    """`rope_parameters`, of the model itself or of the language model in it."""
    if not isinstance(overrides, dict):
        return {}
    inner = overrides.get("text_config")
    holder = inner if isinstance(inner, dict) else overrides
    rope = holder.get("rope_parameters") or holder.get("rope_scaling")
    return rope if isinstance(rope, dict) else {}


def _unknown(kind: str, name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), n=1)
    return f"no {kind} is called `{name}`" + (f"; did you mean `{near[0]}`?" if near else "")


def find(catalog: Catalog, name: str) -> tuple[Recipe, ...]:
    """The recipes that a name means: a recipe's own, a Hub id, or what people call the model."""
    wanted = name.lower()
    for known in catalog.recipes:
        if known.lower() == wanted:
            return (catalog.recipes[known],)
    found = [recipe for recipe in catalog.recipes.values() if wanted in _names(catalog.models[recipe.model])]
    if found:
        return tuple(sorted(found, key=lambda recipe: recipe.name))
    raise UsageError(_no_such(catalog, name), next="firesteel models")


def _names(model: Model) -> set[str]:
    names = (model.id, model.repository, model.repository.partition("/")[2], model.family)
    return {name.lower() for name in names}


def _no_such(catalog: Catalog, name: str) -> str:
    known = {recipe.name.lower(): recipe.name for recipe in catalog.recipes.values()}
    for recipe in catalog.recipes.values():
        model = catalog.models[recipe.model]
        known |= {model.id.lower(): model.id, model.family.lower(): model.family}
    near = get_close_matches(name.lower(), list(known), n=3, cutoff=0.5)
    hint = f"; the nearest are {', '.join(f'`{known[each]}`' for each in near)}" if near else ""
    return f"the catalog has nothing called `{name}`{hint}"


def weights(catalog: Catalog, recipe: Recipe) -> Weights:
    """What the recipe's engine loads: the model's own weights, and the drafts that come from elsewhere."""
    own = catalog.models[recipe.model].weights
    drafts = sum(asset.bytes or 0 for asset in recipe.assets if asset.kind == "draft")
    if not drafts:
        return own
    held = own.bytes_by_role.get(Role.DRAFTER, 0)
    return replace(own, bytes_by_role={**own.bytes_by_role, Role.DRAFTER: held + drafts})
