"""The catalog: recipes, models and images together, found by name and turned into launches.

What ships is read from package data. A user's folder lies over it: the same three kinds of file, a
recipe or a model of the same name takes the place of ours, and every mistake has its file and line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath

from firesteel import engines
from firesteel.catalog.image import Image, Images, read_images
from firesteel.catalog.mistake import mistake
from firesteel.catalog.model import Model, read_model
from firesteel.catalog.recipe import Recipe, read_recipe
from firesteel.errors import UsageError
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
    found = [("images.yaml", (data / "images.yaml").read_text("utf-8"))]
    for folder in ("models", "recipes"):
        found += _walk(data / folder, folder)
    return overlay(Catalog({}, {}, Images()), found)


def _walk(folder: Traversable, path: str) -> Iterable[File]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        inside = f"{path}/{entry.name}"
        if entry.is_dir():
            yield from _walk(entry, inside)
        elif entry.name.endswith(".yaml"):
            yield inside, entry.read_text("utf-8")


def overlay(catalog: Catalog, files: Iterable[File]) -> Catalog:
    """`catalog` with a folder of files laid over it.

    The folder holds `recipes/**.yaml` (a recipe's name is its file's), `models/**.yaml` and
    `images.yaml`; the paths may have anything in front.
    """
    recipes, models, images = dict(catalog.recipes), dict(catalog.models), catalog.images
    seen: dict[str, str] = {}
    texts: dict[str, str] = {}
    for path, text in files:
        kind = _kind(path)
        if kind == "images":
            images = read_images(path, text, images)
        elif kind == "models":
            model = read_model(path, text)
            _once(seen, f"model `{model.id}`", path, text)
            models[model.id] = model
        elif kind == "recipes":
            recipe = read_recipe(PurePosixPath(path).stem, path, text)
            _once(seen, f"recipe `{recipe.name}`", path, text)
            recipes[recipe.name], texts[recipe.name] = recipe, text
        else:
            raise UsageError(
                f"{path} is none of `recipes/NAME.yaml`, `models/ORG/NAME.yaml` and `images.yaml`",
                next=f"move {path} into `recipes` or `models`",
            )
    for name, text in texts.items():
        _check(recipes[name], text, models, images)
    return Catalog(recipes, models, images)


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
    limit = models[recipe.model].architecture.max_context
    if recipe.context > limit:
        what = f"serves {recipe.context:,} tokens, and `{recipe.model}` takes {limit:,}"
        raise mistake(recipe.path, text, ("serves", "context"), what)


def _unknown(kind: str, name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), n=1)
    return f"no {kind} is called `{name}`" + (f"; did you mean `{near[0]}`?" if near else "")


def find(catalog: Catalog, name: str) -> tuple[Recipe, ...]:
    """The recipes that a name means: a recipe's own, a Hub id, or what people call the model."""
    wanted = name.lower()
    for recipe in catalog.recipes.values():
        if recipe.name.lower() == wanted:
            return (recipe,)
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
    limit = model.architecture.max_context
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
