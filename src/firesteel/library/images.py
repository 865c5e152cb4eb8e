"""Container images and the flags of engines: inspected, built, learned."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from firesteel.edge.files.home import find_home
from firesteel.edge.native.build import BuildProgress
from firesteel.launch import EngineName

if TYPE_CHECKING:  # loaded only by those who use them
    from firesteel.catalog.image import InspectedImage
    from firesteel.engines.schema.symbols import Schema
    from firesteel.images.built import BuiltImage
    from firesteel.images.report import ImageReport

__all__ = ["BuildProgress"]


def inspect_image(
    reference: str, *, deep: bool = False, remote: bool = False, platform: str | None = None
) -> ImageReport:
    """What is inside an image; kept by digest for `check`, `plan` and `up`."""
    from firesteel.images import inspect
    from firesteel.images.sources import open_image

    opened = open_image(reference, platform=platform, deep=deep, remote=remote)
    report = inspect.inspect_image(opened, find_home().root / "tmp")
    inspect.save_inspection(find_home(), report)
    return report


def build_image(recipe: str) -> AsyncIterator[BuildProgress | BuiltImage]:
    """Builds, inspects, starts, verifies and tags an image. The last event is `BuiltImage`."""
    from firesteel.edge.files.image_recipes import load_image_recipe
    from firesteel.images import build

    return build.build_image(find_home(), *load_image_recipe(recipe))


async def learn(engine: EngineName, version: str, *, again: bool = False) -> Schema:
    """The flags of an engine's release; an unknown release is downloaded, read and stored."""
    from firesteel.edge.files import learned_engines  # loads the readers of engines' sources

    version = learned_engines.release_name(engine, version)
    known = None if again else learned_engines.known_release(find_home(), engine, version)
    if known:
        return known
    schema = await learned_engines.learn(engine, version, find_home().learned)
    learned_engines.save_schema(find_home(), schema)
    return schema


def learn_image(reference: str, *, again: bool = False) -> InspectedImage:
    """The engine in an image on this machine, with its flags; an unknown image is read and stored."""
    from datetime import date

    from firesteel.edge.docker import image_sources
    from firesteel.edge.files import learned_engines  # loads the readers of engines' sources

    runtime = image_sources.find_container_runtime()
    container = image_sources.inspect(runtime, reference)
    known = None if again else learned_engines.known_image(find_home(), container)
    if known:
        return known
    image = learned_engines.learn_image(runtime, container, date.today(), "")
    learned_engines.save_learned_image(find_home(), image)
    return image
