"""The catalog: recipes, models and images together, found by name and turned into launches.

What ships is read from package data, each file when it is first asked for: its path has its name. A user's
folder lies over it: the same three kinds of file, a recipe or a model of the same name takes the place of
ours, and every mistake has its file and line.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache, partial
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath
from typing import TypeVar

from firesteel import engines
from firesteel.catalog.errors import mistake
from firesteel.catalog.image import Image, Images, read_images
from firesteel.catalog.lazy_dict import LazyDict
from firesteel.catalog.model import Model, check_model, read_model
from firesteel.catalog.recipe import Asset, Recipe, read_recipe
from firesteel.errors import UsageError
from firesteel.facts import Role, Weights
from firesteel.launch import Ask, Container, EngineName, FlagValue, Launch, Mount

HUB_CACHE = "~/.cache/huggingface"
"""On the host. Whoever runs or prints a launch puts the user's home in place of `~`."""
HUB_INSIDE = "/hub"
"""Where a container sees it, whoever its user is: each engine is told by the variable that it reads."""
_HUB_ENV: Mapping[EngineName, Mapping[str, str]] = {
    "vllm": {"HF_HOME": HUB_INSIDE},
    "sglang": {"HF_HOME": HUB_INSIDE},
    "llamacpp": {"LLAMA_CACHE": f"{HUB_INSIDE}/hub"},
}
PORT = 8000
MODELS_INSIDE = "/models"

T = TypeVar("T")
File = tuple[str, str]
"""A path as the user would write it, and the text of the file."""


@dataclass(frozen=True, slots=True)
class Catalog:
    recipes: Mapping[str, Recipe]
    models: Mapping[str, Model]
    images: Images


@cache
def shipped() -> Catalog:
    """What comes with firesteel."""
    data = files("firesteel") / "data"
    images = read_images("images.yaml", (data / "images.yaml").read_text("utf-8"), Images())
    models: dict[str, Callable[[], Model]] = {
        _model_id(path): partial(_open_model, path, entry) for path, entry in _walk(data / "models", "models")
    }
    recipes: dict[str, Callable[[], Recipe]] = {
        PurePosixPath(path).stem: partial(_open_recipe, path, entry)
        for path, entry in _walk(data / "recipes", "recipes")
    }
    return Catalog(LazyDict(recipes), LazyDict(models), images)


def _walk(folder: Traversable, path: str) -> Iterable[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        inside = f"{path}/{entry.name}"
        if entry.is_dir():
            yield from _walk(entry, inside)
        elif entry.name.endswith(".yaml"):
            yield inside, entry


def _model_id(path: str) -> str:
    """`models/ORG/NAME.yaml`, and `models/ORG/NAME/QUANTIZATION.yaml` for one file of a GGUF repository."""
    _, organisation, name, *quantization = path.removesuffix(".yaml").split("/")
    return ":".join([f"{organisation}/{name}", *quantization])


def _open_model(path: str, entry: Traversable) -> Model:
    return read_model(path, entry.read_text("utf-8"))


def _open_recipe(path: str, entry: Traversable) -> Recipe:
    return read_recipe(PurePosixPath(path).stem, path, entry.read_text("utf-8"))


def overlay(catalog: Catalog, files: Iterable[File]) -> Catalog:
    """`catalog` with a folder of files laid over it.

    The folder holds `recipes/**.yaml` (a recipe's name is its file's), `models/**.yaml` and
    `images.yaml`; the paths may have anything in front.
    """
    own_recipes: dict[str, Recipe] = {}
    own_models: dict[str, Model] = {}
    images = catalog.images
    seen: dict[str, str] = {}
    texts: dict[str, str] = {}
    for path, text in files:
        kind = _kind(path)
        if kind == "images":
            images = read_images(path, text, images)
        elif kind == "models":
            model = read_model(path, text)
            check_model(model, path, text)
            _once(seen, f"model `{model.id}`", path, text)
            own_models[model.id] = model
        elif kind == "recipes":
            recipe = read_recipe(PurePosixPath(path).stem, path, text)
            _once(seen, f"recipe `{recipe.name}`", path, text)
            own_recipes[recipe.name], texts[recipe.name] = recipe, text
        else:
            raise UsageError(
                f"{path} is none of `recipes/NAME.yaml`, `models/ORG/NAME.yaml` and `images.yaml`",
                next=f"move {path} into `recipes` or `models`",
            )
    recipes, models = _over(own_recipes, catalog.recipes), _over(own_models, catalog.models)
    for name, text in texts.items():
        _check(recipes[name], text, models, images)
    return Catalog(recipes, models, images)


def _over(own: dict[str, T], under: Mapping[str, T]) -> Mapping[str, T]:
    """Both, without opening what lies under."""
    if not own:
        return under
    readers: dict[str, Callable[[], T]] = {name: partial(under.__getitem__, name) for name in under}
    return LazyDict({**readers, **{name: partial(own.__getitem__, name) for name in own}})


def _once(seen: dict[str, str], what: str, path: str, text: str) -> None:
    if what in seen:
        raise mistake(path, text, (), f"{what} is also in {seen[what]}")
    seen[what] = path


def _kind(path: str) -> str | None:
    """`recipes`, `models` or `images`, told by the nearest folder of that name or the file's own."""
    parts = PurePosixPath(path).parts
    if parts[-1] == "images.yaml":
        return "images"
    return next((part for part in reversed(parts[:-1]) if part in ("recipes", "models")), None)


def _check(recipe: Recipe, text: str, models: Mapping[str, Model], images: Images) -> None:
    """What only the whole catalog can tell: the model and the image exist and suit the recipe."""
    if recipe.model not in models:
        raise mistake(recipe.path, text, ("model",), _unknown("model", recipe.model, models))
    if recipe.image not in images.named:
        raise mistake(recipe.path, text, ("image",), _unknown("image", recipe.image, images.named))
    image = images.named[recipe.image]
    if image.engine != recipe.engine:
        what = f"image `{recipe.image}` runs {image.engine}, and the recipe says {recipe.engine}"
        raise mistake(recipe.path, text, ("engine",), what)
    limit = _longest(recipe, models[recipe.model])
    if recipe.context > limit:
        what = f"serves {recipe.context:,} tokens, and `{recipe.model}` takes {limit:,}"
        raise mistake(recipe.path, text, ("serves", "context"), what)
    if not image.reference and any(asset.target or asset.kind == "package" for asset in recipe.assets):
        what = f"`{recipe.image}` is no container, so nothing can be put into it before it starts"
        raise mistake(recipe.path, text, ("assets",), what)


def _longest(recipe: Recipe, model: Model) -> int:
    """The most tokens: the config's own, or more where the recipe stretches its positions (YaRN)."""
    rope = _rope(recipe.flags["hf-overrides"].value) if "hf-overrides" in recipe.flags else {}
    native, factor = rope.get("original_max_position_embeddings"), rope.get("factor")
    stretched = int(native * factor) if isinstance(native, int) and isinstance(factor, int | float) else 0
    return max(model.architecture.max_context, stretched)


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


def launch(catalog: Catalog, recipe: Recipe, ask: Ask) -> Launch:
    """A recipe at the sizes asked for. The planner adds what the memory allows.

    The port is published on the loopback address alone: Docker's published ports pass a host
    firewall by, and an engine asks nobody for a key.
    """
    model = catalog.models[recipe.model]
    image = catalog.images.named[recipe.image]
    context, users, port = _sizes(recipe, model, ask)
    flags: dict[str, FlagValue] = {flag: setting.value for flag, setting in recipe.flags.items()}
    box = _container(image, port)
    if box is None:
        _refuse_assets(recipe)
    else:
        box = prepared(box, image, recipe)
    hub = _HUB_ENV[recipe.engine] if box else {}
    return Launch(
        name=ask.name or recipe.name,
        model=model.id,
        engine=recipe.engine,
        version=image.version,
        flags={**flags, **engines.size_flags(recipe.engine, context, users)},
        env={**hub, **{variable: str(setting.value) for variable, setting in recipe.env.items()}},
        port=port,
        container=box,
        sparks=recipe.sparks,
    )


def _sizes(recipe: Recipe, model: Model, ask: Ask) -> tuple[int, int, int]:
    context = recipe.context if ask.context is None else ask.context
    users = recipe.users if ask.users is None else ask.users
    port = PORT if ask.port is None else ask.port
    limit = _longest(recipe, model)
    if context > limit:
        raise UsageError(
            f"{model.title} takes {limit:,} tokens at most, and {context:,} were asked for",
            next=f"--context {limit}",
        )
    if context < 1 or users < 1:
        raise UsageError(f"context {context} and users {users} must both be at least 1", next="--users 1")
    if not 0 < port < 65536:
        raise UsageError(f"{port} is not a port", next=f"--port {PORT}")
    return context, users, port


def _container(image: Image, port: int) -> Container | None:
    if image.reference is None:
        return None
    return Container(
        image=image.reference,
        program=() if image.entrypoint else engines.program(image.engine),
        gpus="all" if image.gpu else None,
        ipc=image.ipc,
        publish=(f"127.0.0.1:{port}:{port}",),
        mounts=(Mount(HUB_CACHE, HUB_INSIDE),),
    )


def prepared(box: Container, image: Image, recipe: Recipe) -> Container:
    """The container with what the recipe needs in it: its program becomes a script that fetches first."""
    steps = [step for asset in recipe.assets if (step := _step(asset))]
    if not steps:
        return box
    script = " && ".join([*steps, " ".join(engines.program(image.engine))])
    return replace(box, entrypoint="" if image.entrypoint else None, program=("bash", "-c", script))


def _refuse_assets(recipe: Recipe) -> None:
    for asset in recipe.assets:
        if _step(asset):
            raise UsageError(
                f"{recipe.name} needs {asset.name} beside its engine, which runs in no container here",
                next="firesteel models",
            )


def _step(asset: Asset) -> str | None:
    """`hf download` prints the path in the cache, which is mounted: the second start needs no network."""
    if asset.kind == "package":
        return f"python3 -m pip install --no-cache-dir {shlex.quote(asset.name)}"
    if asset.target is None:
        return None
    words = shlex.join(["hf", "download", "--quiet", asset.name, *([asset.path] if asset.path else [])])
    folder = PurePosixPath(asset.target).parent
    return f'mkdir -p {shlex.quote(str(folder))} && ln -sfn "$({words})" {shlex.quote(asset.target)}'


def weights(catalog: Catalog, recipe: Recipe) -> Weights:
    """What the recipe's engine loads: the model's own weights, and the drafts that come from elsewhere."""
    own = catalog.models[recipe.model].weights
    drafts = sum(asset.bytes or 0 for asset in recipe.assets if asset.kind == "draft")
    if not drafts:
        return own
    held = own.bytes_by_role.get(Role.DRAFTER, 0)
    return replace(own, bytes_by_role={**own.bytes_by_role, Role.DRAFTER: held + drafts})


def contain(launch: Launch, image: Image) -> Launch:
    """A launch without a container, in this image, reached through the loopback address alone.

    A model on disk is mounted, read-only; a Hub id stays one, with the host's cache mounted.
    """
    box = _container(image, launch.port)
    if box is None:
        return replace(launch, container=None)
    flags = {name: value for name, value in launch.flags.items() if name != "host"}
    if not _is_on_disk(launch.model):
        return replace(launch, flags=flags, env={**_HUB_ENV[launch.engine], **launch.env}, container=box)
    folder, _, name = launch.model.rpartition("/")
    is_file = name.lower().endswith(".gguf")
    source, target = (folder or ".", MODELS_INSIDE) if is_file else (launch.model, f"{MODELS_INSIDE}/{name}")
    boxed = replace(box, mounts=(Mount(source, target, read_only=True),))
    return replace(launch, model=f"{MODELS_INSIDE}/{name}", flags=flags, container=boxed)


def _is_on_disk(model: str) -> bool:
    return model.startswith("/") or model.lower().endswith(".gguf")
