"""firesteel's own recipe -> the launch that the catalog makes of it, at the sizes it names.

An image is a name in `images.yaml` here, not a reference. A name that ships with firesteel is looked up; for
another only the engine is known, and the recipe is read as a process of an engine of unknown version.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from firesteel import engines
from firesteel.catalog import PORT, Image, Recipe, contain, shipped
from firesteel.catalog.catalog import prepared
from firesteel.catalog.recipe import read_recipe
from firesteel.launch import Container, FlagValue, Launch
from firesteel.reads.container_start import EngineStart
from firesteel.reads.docker import DockerOption
from firesteel.reads.nodes import Node
from firesteel.reads.shell import Word
from firesteel.reads.template import implied
from firesteel.reads.yaml_values import place

_KEYS = frozenset({"title", "model", "engine", "image", "serves", "status"})


def starts(document: Node) -> Iterable[EngineStart] | None:
    keys = {name for name, _ in document.items()}
    if not keys >= _KEYS or document.source.text != document.page.text:
        return None
    recipe = read_recipe("recipe", document.page.path, document.page.text)
    image = shipped().images.named.get(recipe.image)
    return [_start(document, recipe, image)]


def _start(document: Node, recipe: Recipe, image: Image | None) -> EngineStart:
    bare = Launch("", recipe.model, recipe.engine, port=PORT)
    launch = contain(bare, image) if image else bare
    box, at = launch.container, _at(document, "image")
    args = tuple(_arguments(document, recipe, launch))
    env = dict(_environment(document))
    if box is None or image is None:
        return EngineStart((*(implied(word, at) for word in engines.program(recipe.engine)), *args), env=env)
    box = prepared(box, image, recipe)
    words = (*(implied(word, at) for word in box.program), *args)
    if box.program[:2] == ("bash", "-c"):
        script = f"{box.program[2]} {shlex.join(word.text for word in args)}"
        words = (*words[:2], implied(script, _at(document, "assets")))
    given = [DockerOption("env", f"{name}={value}", at) for name, value in launch.env.items()]
    given += [DockerOption("env", f"{name}={word.text}", word) for name, word in env.items()]
    return EngineStart(words, implied(box.image, at), (*_options(box, at), *given))


def _arguments(document: Node, recipe: Recipe, launch: Launch) -> Iterator[Word]:
    """The model and the address as the catalog writes them, then each flag where it stands in the file."""
    yield from (implied(word, _at(document, "model")) for word in engines.argv(launch))
    flags: list[tuple[str, FlagValue, Word]] = [
        (name, setting.value, _at(document, "flags", name)) for name, setting in recipe.flags.items()
    ]
    sizes = engines.size_flags(recipe.engine, recipe.context, recipe.users)
    flags += [(name, value, _at(document, "serves")) for name, value in sizes.items()]
    for name, value, at in flags:
        yield from (implied(word, at) for word in engines.format_flag(recipe.engine, name, value))


def _environment(document: Node) -> Iterator[tuple[str, Word]]:
    env = document.get("env")
    for name, setting in env.items() if env else ():
        value = setting.get("value")
        if value:
            yield name, place(value)


def _options(box: Container, at: Word) -> Iterator[DockerOption]:
    for name, value in (("gpus", box.gpus), ("ipc", box.ipc), ("entrypoint", box.entrypoint)):
        if value is not None:
            yield DockerOption(name, value, at)
    yield from (DockerOption("publish", each, at) for each in box.publish)
    yield from (DockerOption("volume", f"{mount.source}:{mount.target}", at) for mount in box.mounts)


def _at(document: Node, *keys: str) -> Word:
    return place(document.get(*keys) or document)
