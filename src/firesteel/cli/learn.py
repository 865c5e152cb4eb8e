"""`firesteel learn ENGINE VERSION` and `firesteel learn --image IMAGE`"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, get_args

import click

from firesteel.cli import options
from firesteel.cli.output.show import err
from firesteel.errors import UsageError
from firesteel.launch import EngineName
from firesteel.library import documents
from firesteel.library import engines as learned

if TYPE_CHECKING:
    from firesteel.engines.schema.symbols import Schema
    from firesteel.library.engines import BrokenRecipes, LearnedImage, LearnedRelease


@click.command("learn")
@click.argument("engine", type=click.Choice(get_args(EngineName)), required=False)
@click.argument("version", required=False)
@click.option(
    "--image", metavar="IMAGE", help="Read an image that is on this machine instead; pulls nothing."
)
@click.option("--list", "is_list", is_flag=True, help="List the known releases; downloads nothing.")
@click.option("--recipes", "is_recipes", is_flag=True, help="Say which recipes the release breaks.")
@click.option("--again", is_flag=True, help="Read it again even if it is known.")
@options.json_option
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
    if image:
        _show_image(
            learned.learn_from_image(image, engine, version, again=again, report=_report), image, as_json
        )
        return 0
    if engine is None:
        raise UsageError(
            "which engine?",
            next="firesteel learn vllm VERSION (or --list), or: firesteel learn --image IMAGE",
        )
    if is_list:
        _show_known(engine, as_json)
        return 0
    if not version:
        raise UsageError("which release?", next=f"firesteel learn {engine} VERSION, or --list")
    found = asyncio.run(learned.learn_release(engine, version, again=again, report=_report))
    if is_recipes:
        return _show_broken(found.schema, learned.recipes_against(engine, version), as_json)
    _show_release(found, as_json)
    return 0


def _report(text: str) -> None:
    err.print(text)


def _show_broken(schema: Schema, broken: BrokenRecipes, as_json: bool) -> int:
    code = 3 if broken.stopped else 0
    if as_json:
        document = documents.engines.LearnRecipesJson.of(
            engine=schema.engine, version=schema.version, recipes=broken.recipes, findings=broken.findings
        )
        options.print_json(document)
        return code
    for each in broken.findings:
        click.echo(f"{each.level}  {each.recipe}: {each.rule}: {each.says}")
        if each.instead:
            click.echo(f"      use    {each.instead}")
    click.echo(
        f"{schema.engine} {schema.version}: of {broken.recipes} recipes it stops {len(broken.stopped)} "
        f"and warns of {len(broken.warned)}"
    )
    return code


def _show_known(engine: EngineName, as_json: bool) -> None:
    known = learned.known_releases(engine)
    if as_json:
        options.print_json(documents.engines.LearnListJson.of(engine=engine, versions=known))
    else:
        click.echo("\n".join(known))


def _show_release(found: LearnedRelease, as_json: bool) -> None:
    schema, path = found.schema, str(found.path) if found.path else None
    if as_json:
        counts = {"flags": len(schema.flags), "variables": len(schema.variables)}
        options.print_json(
            documents.engines.LearnJson.of(schema, was_known=path is None, path=path, **counts)
        )
    else:
        state = f"saved in {path}" if path else "known already"
        click.echo(f"{schema.engine} {schema.version}: {learned.counts(schema)}, {state}")


def _show_image(found: LearnedImage, reference: str, as_json: bool) -> None:
    image, path = found.image, str(found.path) if found.path else None
    if as_json:
        counts = {"flags": len(image.schema.flags), "variables": len(image.schema.variables)}
        options.print_json(
            documents.engines.LearnImageJson.of(
                image, image=image.reference, was_known=path is None, path=path, **counts
            )
        )
    else:
        state = f"saved in {path}" if path else "known already"
        click.echo(f"{reference}: {image.engine} {image.version}, {learned.counts(image.schema)}, {state}")
