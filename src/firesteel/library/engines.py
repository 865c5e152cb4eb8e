"""Engines: those that run without a container, installed, built and removed; and the flags of releases.

firesteel ships with the flags of many releases. Those of another are learned from its sources, or from an
image on this machine, and stored, so that `check` knows them.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import AsyncIterator, Mapping
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from firesteel.edge import learned_engines
from firesteel.edge.docker import image_sources
from firesteel.edge.home import find_home
from firesteel.edge.programs import installed
from firesteel.edge.programs.build import BuildProgress, build_llamacpp
from firesteel.edge.programs.installed import InstalledEngine
from firesteel.errors import UsageError
from firesteel.launch import Ask, EngineName
from firesteel.library import plans, run
from firesteel.values import Value
from firesteel.workspace import find_workspace

if TYPE_CHECKING:
    from collections.abc import Callable

    from firesteel.catalog.image import ImageFlags
    from firesteel.engines.schema.symbols import Schema
    from firesteel.rules.checker import ReleaseFinding


def installed_engines() -> Mapping[Path, InstalledEngine]:
    """By folder, the newest first."""
    return installed.installed_engines(find_home())


def install_engine(what: str) -> AsyncIterator[BuildProgress | Path]:
    """From wheels: `vllm`, `sglang==0.5.6`, `llamacpp` as xllamacpp has it. The last event is the folder."""
    from firesteel.edge.programs import build

    engine, version = _parse(what.replace("xllamacpp", "llamacpp"))
    gpus = plans.host().gpus
    if engine != "llamacpp":
        return build.install_engine(find_home(), engine, version, gpus)
    package = f"xllamacpp=={version}" if version else plans.catalog().images.named["xllamacpp"].package
    assert package
    return build.install_llamacpp(find_home(), package, gpus)


def build_engine(
    what: str, *, source: Path | None = None, for_cpu: bool = False
) -> AsyncIterator[BuildProgress | Path]:
    """llama.cpp from pinned sources, or from a checkout or an archive. The last event is its folder."""
    engine, version = _parse(what)
    if engine != "llamacpp":
        raise UsageError(f"{engine} is installed from wheels", next=f"firesteel engine install {what}")
    gpus = () if for_cpu else plans.host().gpus
    return build_llamacpp(find_home(), version, source.absolute() if source else None, gpus)


def remove_engine(name: str) -> None:
    """By the name of its folder; not one that serves something."""
    engines = {folder.name: folder for folder in installed_engines()}
    if name not in engines:
        raise UsageError(f"no engine is called `{name[:80]}`", next="firesteel engine list")
    users = [
        service.name
        for service in run.services()
        if service.phase != "dead" and any(str(engines[name]) in word for word in service.spec.start)
    ]
    if users:
        raise UsageError(f"{name} serves {', '.join(users)}", next=f"firesteel down {users[0]}")
    shutil.rmtree(engines[name])


def _parse(what: str) -> tuple[EngineName, str | None]:
    match = re.fullmatch(r"(\w+)(?:==(\w[\w.]*))?", what)
    engines: tuple[EngineName, ...] = get_args(EngineName)
    engine = next((engine for engine in engines if match and engine == match[1]), None)
    if match is None or engine is None:
        raise UsageError(
            f"`{what[:60]}` is not an engine",
            next="one of vllm, sglang, llamacpp, with a version: vllm==0.32.0",
        )
    return engine, match[2]


# --- the flags of releases ---


class LearnedRelease(Value):
    schema: Schema
    path: Path | None
    """Where it was stored; None: it was known already."""


class LearnedImage(Value):
    image: ImageFlags
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


def learn_image(reference: str, *, again: bool = False) -> ImageFlags:
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
    """Every recipe of the engine, checked against one of its releases, for a Spark."""
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


def _require(image: ImageFlags, engine: EngineName | None, version: str) -> None:
    """The engine and version on the command line must be those in the image."""
    asked, found = f"{engine or image.engine} {version or image.version}", f"{image.engine} {image.version}"
    if asked != found:
        raise UsageError(
            f"{image.reference} holds {found}, not {asked}",
            next=f"firesteel engine learn --image {image.reference}",
        )
