"""`firesteel learn ENGINE VERSION` and `firesteel learn --image IMAGE`"""

from __future__ import annotations

import asyncio
from datetime import date
from typing import get_args

import click

from firesteel.catalog.image import InspectedImage
from firesteel.cli.options import common
from firesteel.cli.output.show import err
from firesteel.edge.docker import image_sources
from firesteel.edge.docker.image_sources import ContainerRuntime, InspectedContainerImage
from firesteel.edge.files import learned_engines
from firesteel.edge.files.home import Home, find_home
from firesteel.engines.schema import releases as schemas
from firesteel.engines.schema.symbols import Schema
from firesteel.errors import UsageError
from firesteel.launch import Ask, EngineName
from firesteel.library import documents
from firesteel.workspace import find_workspace


@click.command("learn")
@click.argument("engine", type=click.Choice(get_args(EngineName)), required=False)
@click.argument("version", required=False)
@click.option(
    "--image", metavar="IMAGE", help="Read an image that is on this machine instead; pulls nothing."
)
@click.option("--list", "is_list", is_flag=True, help="List the known releases; downloads nothing.")
@click.option("--recipes", "is_recipes", is_flag=True, help="Say which recipes the release breaks.")
@click.option("--again", is_flag=True, help="Read it again even if it is known.")
@common.json_option
def command(
    engine: EngineName | None,
    version: str | None,
    image: str | None,
    is_list: bool,
    is_recipes: bool,
    again: bool,
    as_json: bool,
) -> int:
    """Read the flags of an engine release from its sources, so that `check` knows them.

    Write VERSION as the engine does: 0.33.0, or 11549 for llama.cpp. This takes about a minute. The engine
    is read, not run; for llama.cpp pip prepares a source package, which runs that package's own setup.

    With --image the sources are copied out of an image that docker has on this machine, for example a
    nightly, a fork or your own build. A llama.cpp image is run with `--version` and `--help`.

    With --recipes every recipe of the engine, yours included, is held against the release for a Spark:
    flags, values, JSON keys and parsers. Exits 3 when a rule stops one that runs with its own release.
    """
    home = find_home()
    if image:
        _learn_image(
            home,
            image,
            engine,
            learned_engines.release_name(engine, version) if version else "",
            again,
            as_json,
        )
        return 0
    if engine is None:
        raise UsageError(
            "which engine?",
            next="firesteel learn vllm VERSION (or --list), or: firesteel learn --image IMAGE",
        )
    if is_list:
        _show_known(home, engine, as_json)
        return 0
    if not version:
        raise UsageError("which release?", next=f"firesteel learn {engine} VERSION, or --list")
    version = learned_engines.release_name(engine, version)
    if is_recipes:
        if again or learned_engines.known_release(home, engine, version) is None:
            learned_engines.save_schema(home, asyncio.run(_download(home, engine, version)))
        return _show_broken(engine, version, as_json)
    _learn_release(home, engine, version, again, as_json)
    return 0


def _show_broken(engine: EngineName, version: str, as_json: bool) -> int:
    from firesteel.rules.release_findings import release_findings  # plans every recipe

    workspace = find_workspace()
    host, images = workspace.host("gb10"), workspace.images()
    recipes = [each for each in workspace.catalog.recipes.values() if each.engine == engine]
    launches = [workspace.propose(Ask(recipe.name), host)[0].plan.launch for recipe in recipes]
    found = [each for launch in launches for each in release_findings(launch, version, host.hardware, images)]
    stopped = {each.recipe for each in found if each.level == "stop"}
    if as_json:
        document = documents.learn.LearnRecipesJson(
            engine=engine, version=version, recipes=len(recipes), findings=tuple(found)
        )
        common.print_json(document)
        return 3 if stopped else 0
    for each in found:
        click.echo(f"{each.level}  {each.recipe}: {each.rule}: {each.says}")
        if each.instead:
            click.echo(f"      use    {each.instead}")
    warned = {each.recipe for each in found} - stopped
    click.echo(
        f"{engine} {version}: of {len(recipes)} recipes it stops {len(stopped)} and warns of {len(warned)}"
    )
    return 3 if stopped else 0


def _counts(schema: Schema) -> str:
    return f"{len(schema.flags)} flags, {len(schema.variables)} environment variables"


def _show_known(home: Home, engine: EngineName, as_json: bool) -> None:
    known = schemas.known_versions(engine, learned_engines.learned_releases(home, engine))
    if as_json:
        common.print_json(documents.learn.LearnListJson(engine=engine, versions=tuple(known)))
    else:
        click.echo("\n".join(known))


# --- a release ---


def _learn_release(home: Home, engine: EngineName, version: str, again: bool, as_json: bool) -> None:
    known = None if again else learned_engines.known_release(home, engine, version)
    schema = known or asyncio.run(_download(home, engine, version))
    path = None if known else str(learned_engines.save_schema(home, schema))
    if as_json:
        counts = {"flags": len(schema.flags), "variables": len(schema.variables)}
        common.print_json(documents.learn.LearnJson.of(schema, was_known=path is None, path=path, **counts))
    else:
        state = f"saved in {path}" if path else "known already"
        click.echo(f"{engine} {version}: {_counts(schema)}, {state}")


async def _download(home: Home, engine: EngineName, version: str) -> Schema:
    package = learned_engines.SOURCES[engine].package
    err.print(f"fetch   {package}, for the sources of {engine} {version} ...")
    schema = await learned_engines.learn(engine, version, home.learned)
    err.print(f"read    {_counts(schema)}")
    return schema


# --- an image ---


def _learn_image(
    home: Home, reference: str, engine: EngineName | None, version: str, again: bool, as_json: bool
) -> None:
    runtime = image_sources.find_container_runtime()
    container = image_sources.inspect(runtime, reference)
    known = None if again else learned_engines.known_image(home, container)
    image = known or _read_image(runtime, container, version)
    _require(image, engine, version)
    path = None if known else str(learned_engines.save_learned_image(home, image))
    if as_json:
        counts = {"flags": len(image.schema.flags), "variables": len(image.schema.variables)}
        common.print_json(
            documents.learn.LearnImageJson.of(
                image, image=image.reference, was_known=path is None, path=path, **counts
            )
        )
    else:
        state = f"saved in {path}" if path else "known already"
        click.echo(f"{reference}: {image.engine} {image.version}, {_counts(image.schema)}, {state}")


def _read_image(
    runtime: ContainerRuntime, container: InspectedContainerImage, version: str
) -> InspectedImage:
    err.print(f"open    {container.reference}, to read its engine ...")
    image = learned_engines.learn_image(runtime, container, date.today(), version)
    err.print(f"read    {image.engine} {image.version}: {_counts(image.schema)}")
    return image


def _require(image: InspectedImage, engine: EngineName | None, version: str) -> None:
    """The engine and version on the command line must be those in the image."""
    asked, found = f"{engine or image.engine} {version or image.version}", f"{image.engine} {image.version}"
    if asked != found:
        raise UsageError(
            f"{image.reference} holds {found}, not {asked}", next=f"firesteel learn --image {image.reference}"
        )
