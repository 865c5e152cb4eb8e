"""The flags of engines' releases, read from their sources or from images on this machine."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING

from firesteel.edge import learned_engines
from firesteel.edge.docker import image_sources
from firesteel.edge.home import find_home
from firesteel.errors import UsageError
from firesteel.launch import Ask, EngineName
from firesteel.values import Value
from firesteel.workspace import find_workspace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from firesteel.catalog.image import InspectedImage
    from firesteel.engines.schema.symbols import Schema
    from firesteel.rules.checker import ReleaseFinding


class LearnedRelease(Value):
    schema: Schema
    path: Path | None
    """Where it was stored; None: it was known already."""


class LearnedImage(Value):
    image: InspectedImage
    path: Path | None


class BrokenRecipes(Value):
    """What a release says of every recipe of its engine."""

    recipes: int
    findings: tuple[ReleaseFinding, ...]

    @property
    def stopped(self) -> frozenset[str]:
        return frozenset(each.recipe for each in self.findings if each.level == "stop")

    @property
    def warned(self) -> frozenset[str]:
        return frozenset(each.recipe for each in self.findings) - self.stopped


async def learn(engine: EngineName, version: str, *, again: bool = False) -> Schema:
    """The flags of an engine's release; an unknown release is downloaded, read and stored."""
    return (await learn_release(engine, version, again=again)).schema


async def learn_release(
    engine: EngineName,
    version: str,
    *,
    again: bool = False,
    report: Callable[[str], None] = lambda text: None,
) -> LearnedRelease:
    """The same, and where it was stored. `report` gets what is done, when it takes a while."""
    home, version = find_home(), learned_engines.release_name(engine, version)
    known = None if again else learned_engines.known_release(home, engine, version)
    if known:
        return LearnedRelease(known, None)
    package = learned_engines.SOURCES[engine].package
    report(f"fetch   {package}, for the sources of {engine} {version} ...")
    schema = await learned_engines.learn(engine, version, home.learned)
    report(f"read    {counts(schema)}")
    return LearnedRelease(schema, learned_engines.save_schema(home, schema))


def learn_image(reference: str, *, again: bool = False) -> InspectedImage:
    """The engine in an image on this machine, with its flags; an unknown image is read and stored."""
    return learn_from_image(reference, again=again).image


def learn_from_image(
    reference: str,
    engine: EngineName | None = None,
    version: str | None = None,
    *,
    again: bool = False,
    report: Callable[[str], None] = lambda text: None,
) -> LearnedImage:
    """The same, and where it was stored. The engine and version must be those in the image, where given."""
    home = find_home()
    named = learned_engines.release_name(engine, version) if engine and version else version or ""
    runtime = image_sources.find_container_runtime()
    container = image_sources.inspect(runtime, reference)
    known = None if again else learned_engines.known_image(home, container)
    if known:
        _require(known, engine, named)
        return LearnedImage(known, None)
    report(f"open    {container.reference}, to read its engine ...")
    image = learned_engines.learn_image(runtime, container, date.today(), named)
    report(f"read    {image.engine} {image.version}: {counts(image.schema)}")
    _require(image, engine, named)
    return LearnedImage(image, learned_engines.save_learned_image(home, image))


def known_releases(engine: EngineName) -> tuple[str, ...]:
    """The releases whose flags are known."""
    from firesteel.engines.schema.releases import known_versions

    return tuple(known_versions(engine, learned_engines.learned_releases(find_home(), engine)))


def recipes_against(engine: EngineName, version: str) -> BrokenRecipes:
    """Every recipe of the engine, held against one of its releases, for a Spark."""
    from firesteel.rules.checker import release_findings  # plans every recipe

    version = learned_engines.release_name(engine, version)
    workspace = find_workspace()
    host, images = workspace.host("gb10"), workspace.images()
    recipes = [each for each in workspace.catalog.recipes.values() if each.engine == engine]
    launches = [workspace.propose(Ask(recipe.name), host)[0].plan.launch for recipe in recipes]
    found = [each for launch in launches for each in release_findings(launch, version, host.hardware, images)]
    return BrokenRecipes(len(recipes), tuple(found))


def counts(schema: Schema) -> str:
    return f"{len(schema.flags)} flags, {len(schema.variables)} environment variables"


def _require(image: InspectedImage, engine: EngineName | None, version: str) -> None:
    """The engine and version on the command line must be those in the image."""
    asked, found = f"{engine or image.engine} {version or image.version}", f"{image.engine} {image.version}"
    if asked != found:
        raise UsageError(
            f"{image.reference} holds {found}, not {asked}", next=f"firesteel learn --image {image.reference}"
        )
