"""firesteel's own recipe -> the launch that the catalog makes of it, with the context and users it names.

The image of a recipe is a name in `images.yaml`, not a reference. A name that ships with firesteel is looked
up; for any other only the engine is known, and the recipe is read as a process of unknown version.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from firesteel.catalog.catalog import shipped
from firesteel.catalog.image import Image
from firesteel.catalog.launches import DEFAULT_PORT, in_container, with_assets
from firesteel.catalog.recipe import Recipe, read_recipe
from firesteel.engines import engine
from firesteel.engines.engine import argv, format_flag, merged, size_flags
from firesteel.launch import Container, FlagValue, Launch
from firesteel.reads.docker import DockerOption, EngineStart
from firesteel.reads.shell import Word
from firesteel.reads.template import implied_word
from firesteel.reads.yaml_nodes import Node, node_word
from firesteel.values import YamlFile

_KEYS = frozenset({"title", "model", "engine", "image", "serves", "status"})


def starts(document: Node) -> Iterable[EngineStart] | None:
    keys = {name for name, _ in document.items()}
    if not keys >= _KEYS or document.source.text != document.file.text:
        return None
    recipe = read_recipe("recipe", YamlFile.parse(document.file.path, document.file.text))
    image = shipped().images.named.get(recipe.image)
    return [_start(document, recipe, image)]


def _start(document: Node, recipe: Recipe, image: Image | None) -> EngineStart:
    process = Launch("", recipe.model, recipe.engine, port=DEFAULT_PORT)
    launch = in_container(process, image) if image else process
    container, near = launch.container, _word_at(document, "image")
    args = tuple(_arguments(document, recipe, launch))
    settings = ((name, setting.get("value")) for name, setting in document.items("env"))
    env = {name: node_word(value) for name, value in settings if value}
    if container is None or image is None:
        program = (implied_word(word, near) for word in engine.program(recipe.engine))
        return EngineStart((*program, *args), env=env)
    container = with_assets(container, image, recipe)
    words = (*(implied_word(word, near) for word in container.program), *args)
    if container.program[:2] == ("bash", "-c"):
        script = f"{container.program[2]} {shlex.join(word.text for word in args)}"
        words = (*words[:2], implied_word(script, _word_at(document, "assets")))
    options = [
        *_options(container, near),
        *(DockerOption("env", f"{name}={value}", near) for name, value in launch.env.items()),
        *(DockerOption("env", f"{name}={word.text}", word) for name, word in env.items()),
    ]
    return EngineStart(words, implied_word(container.image, near), tuple(options))


def _arguments(document: Node, recipe: Recipe, launch: Launch) -> Iterator[Word]:
    """The model and the address as the catalog writes them, then the flags, at their position."""
    yield from (implied_word(word, _word_at(document, "model")) for word in argv(launch))
    own = {name: setting.value for name, setting in recipe.flags.items()}
    defaults = recipe.requests.launch_flags(recipe.engine, launch.version)
    flags: list[tuple[str, FlagValue, Word]] = [
        (name, value, _word_at(document, *(("flags", name) if name in own else ("requests",))))
        for name, value in merged(defaults, own).items()
    ]
    sizes = size_flags(recipe.engine, recipe.context, recipe.users)
    flags += [(name, value, _word_at(document, "serves")) for name, value in sizes.items()]
    for name, value, near in flags:
        yield from (implied_word(word, near) for word in format_flag(recipe.engine, name, value))


def _options(container: Container, near: Word) -> Iterator[DockerOption]:
    for name in ("gpus", "ipc", "entrypoint"):
        value = getattr(container, name)
        if value is not None:
            yield DockerOption(name, value, near)
    yield from (DockerOption("publish", port, near) for port in container.publish)
    yield from (DockerOption("volume", f"{mount.source}:{mount.target}", near) for mount in container.mounts)
    yield from (DockerOption(name, value, near) for name, value in container.options)


def _word_at(document: Node, *keys: str) -> Word:
    return node_word(document.get(*keys) or document)
