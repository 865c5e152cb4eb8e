"""`firesteel learn ENGINE VERSION`"""

from __future__ import annotations

import asyncio
import re
from typing import get_args

import click

from firesteel import library
from firesteel.cli import words
from firesteel.cli.documents import KnownJson, LearnJson
from firesteel.cli.show import err
from firesteel.edge import engine_data
from firesteel.edge.home import Home
from firesteel.engines import schema as schemas
from firesteel.engines.symbols import Schema
from firesteel.errors import UsageError
from firesteel.launch import EngineName


@click.command("learn")
@click.argument("engine", type=click.Choice(get_args(EngineName)))
@click.argument("version", required=False)
@click.option("--list", "is_list", is_flag=True, help="The releases that are known; fetches nothing.")
@click.option("--again", is_flag=True, help="Read it again even if it is known.")
@words.json_option
def command(engine: EngineName, version: str | None, is_list: bool, again: bool, as_json: bool) -> None:
    """Read the flags of an engine release out of its sources, so that `check` knows them.

    VERSION as the engine writes it: 0.33.0, or 11549 for llama.cpp. Takes about a minute. The engine is
    read, not run; for llama.cpp pip prepares a source package, which runs that package's own setup.
    """
    home = library.home()
    if is_list:
        _show_known(home, engine, as_json)
        return
    if not version:
        raise UsageError("which release?", next=f"firesteel learn {engine} VERSION, or --list")
    plain = version.lstrip("vb")
    if not re.fullmatch(r"[0-9][0-9a-z.]{0,30}", plain):
        raise UsageError(f"`{version}` is not a release", next=f"firesteel learn {engine} --list")
    found = None if again else _known(home, engine, plain)
    learned = found or asyncio.run(_learn(home, engine, plain))
    path = None if found else str(engine_data.keep(home, learned))
    if as_json:
        words.print_json(_document(learned, path, was_known=found is not None))
    else:
        kept = f"kept in {path}" if path else "known already"
        click.echo(f"{engine} {plain}: {_counted(learned)}, {kept}")


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
    found = schemas.schema(engine, version, engine_data.books(home, engine))
    return found if found and found.is_exact else None


def _show_known(home: Home, engine: EngineName, as_json: bool) -> None:
    known = schemas.versions(engine, engine_data.books(home, engine))
    if as_json:
        words.print_json(KnownJson(engine=engine, versions=list(known)))
    else:
        click.echo("\n".join(known))


async def _learn(home: Home, engine: EngineName, version: str) -> Schema:
    package = engine_data.ORIGINS[engine].package
    err.print(f"fetch   {package}, for the sources of {engine} {version} ...")
    learned = await engine_data.learn(engine, version, engine_data.folder(home))
    err.print(f"read    {_counted(learned)}")
    return learned
