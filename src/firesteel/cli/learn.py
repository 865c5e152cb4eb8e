"""`firesteel learn ENGINE VERSION` and `firesteel learn --image IMAGE`"""

from __future__ import annotations

import asyncio
import re
from datetime import date
from typing import get_args

import click

from firesteel import library
from firesteel.catalog.image import InspectedImage
from firesteel.cli.options import common
from firesteel.cli.output.documents import KnownJson, LearnImageJson, LearnJson
from firesteel.cli.output.show import err
from firesteel.edge.docker import image_sources
from firesteel.edge.docker.image_sources import ContainerRuntime, InspectedContainerImage
from firesteel.edge.files import learned_engines
from firesteel.edge.files.home import Home
from firesteel.engines.schema import releases as schemas
from firesteel.engines.schema.symbols import Schema
from firesteel.errors import UsageError
from firesteel.launch import EngineName


@click.command("learn")
@click.argument("engine", type=click.Choice(get_args(EngineName)), required=False)
@click.argument("version", required=False)
@click.option("--image", metavar="IMAGE", help="Ask an image on this machine instead; pulls nothing.")
@click.option("--list", "is_list", is_flag=True, help="The releases that are known; fetches nothing.")
@click.option("--again", is_flag=True, help="Read it again even if it is known.")
@common.json_option
def command(
    engine: EngineName | None,
    version: str | None,
    image: str | None,
    is_list: bool,
    again: bool,
    as_json: bool,
) -> None:
    """Read the flags of an engine release out of its sources, so that `check` knows them.

    VERSION as the engine writes it: 0.33.0, or 11549 for llama.cpp. Takes about a minute. The engine is
    read, not run; for llama.cpp pip prepares a source package, which runs that package's own setup.

    With --image the sources are copied out of an image that docker has here, be it a nightly, a fork or your
    own build. A llama.cpp image is asked for its `--version` and `--help`.
    """
    home = library.home()
    if image:
        _learn_image(home, image, engine, _plain(engine, version) if version else "", again, as_json)
        return
    if engine is None:
        raise UsageError(
            "which engine?",
            next="firesteel learn vllm VERSION (or --list), or: firesteel learn --image IMAGE",
        )
    if is_list:
        _show_known(home, engine, as_json)
        return
    if not version:
        raise UsageError("which release?", next=f"firesteel learn {engine} VERSION, or --list")
    plain = _plain(engine, version)
    found = None if again else _known(home, engine, plain)
    learned = found or asyncio.run(_learn(home, engine, plain))
    path = None if found else str(learned_engines.save_schema(home, learned))
    if as_json:
        common.print_json(_document(learned, path, was_known=found is not None))
    else:
        kept = f"kept in {path}" if path else "known already"
        click.echo(f"{engine} {plain}: {_counted(learned)}, {kept}")


def _plain(engine: EngineName | None, version: str) -> str:
    plain = version.lstrip("vb")
    if not re.fullmatch(r"[0-9][0-9a-z.]{0,30}", plain):
        raise UsageError(f"`{version}` is not a release", next=f"firesteel learn {engine} --list")
    return plain


def _document(learned: Schema, path: str | None, was_known: bool) -> LearnJson:
    return LearnJson(
        engine=learned.engine,
        version=learned.version,
        was_known=was_known,
        flags=len(learned.flags),
        variables=len(learned.variables),
        path=path,
    )


def _counted(learned: Schema) -> str:
    return f"{len(learned.flags)} flags, {len(learned.variables)} environment variables"


def _known(home: Home, engine: EngineName, version: str) -> Schema | None:
    found = schemas.find_schema(engine, version, learned_engines.learned_releases(home, engine))
    return found if found and found.is_exact else None


def _show_known(home: Home, engine: EngineName, as_json: bool) -> None:
    known = schemas.known_versions(engine, learned_engines.learned_releases(home, engine))
    if as_json:
        common.print_json(KnownJson(engine=engine, versions=list(known)))
    else:
        click.echo("\n".join(known))


async def _learn(home: Home, engine: EngineName, version: str) -> Schema:
    package = learned_engines.SOURCES[engine].package
    err.print(f"fetch   {package}, for the sources of {engine} {version} ...")
    learned = await learned_engines.learn(engine, version, learned_engines.folder(home))
    err.print(f"read    {_counted(learned)}")
    return learned


def _learn_image(
    home: Home, reference: str, engine: EngineName | None, version: str, again: bool, as_json: bool
) -> None:
    runtime = image_sources.find_container_runtime()
    box = image_sources.inspect(runtime, reference)
    found = None if again else learned_engines.known_image(home, box)
    seen = found or _read_image(runtime, box, version)
    _insist(seen, engine, version)
    path = None if found else _keep(home, seen)
    if as_json:
        common.print_json(_image_document(seen, path))
    else:
        kept = f"kept in {path}" if path else "known already"
        click.echo(f"{reference}: {seen.engine} {seen.version}, {_counted(seen.schema)}, {kept}")


def _read_image(runtime: ContainerRuntime, box: InspectedContainerImage, version: str) -> InspectedImage:
    err.print(f"open    {box.reference}, to read the engine in it ...")
    seen = learned_engines.learn_image(runtime, box, date.today(), version)
    err.print(f"read    {seen.engine} {seen.version}: {_counted(seen.schema)}")
    return seen


def _insist(seen: InspectedImage, engine: EngineName | None, version: str) -> None:
    """What the user said of the image must be so."""
    said = f"{engine or seen.engine} {version or seen.version}"
    if said != (is_so := f"{seen.engine} {seen.version}"):
        raise UsageError(
            f"{seen.reference} holds {is_so}, not {said}", next=f"firesteel learn --image {seen.reference}"
        )


def _keep(home: Home, seen: InspectedImage) -> str:
    """An image of the engine's own makers tells of its release too."""
    if learned_engines.is_release(seen) and _known(home, seen.engine, seen.version) is None:
        learned_engines.save_schema(home, seen.schema)
    return str(learned_engines.save_image(home, seen))


def _image_document(seen: InspectedImage, path: str | None) -> LearnImageJson:
    return LearnImageJson(
        image=seen.reference,
        digests=list(seen.digests),
        engine=seen.engine,
        version=seen.version,
        was_known=path is None,
        flags=len(seen.schema.flags),
        variables=len(seen.schema.variables),
        entrypoint=None if seen.entrypoint is None else list(seen.entrypoint),
        path=path,
    )
