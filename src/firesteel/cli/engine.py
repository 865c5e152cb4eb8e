"""`firesteel engine list|install|build|remove`, and `learn`, for the flags of a release."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from firesteel.cli import options
from firesteel.cli.output.invocation import typed
from firesteel.cli.output.progress import last_of, told_on_interrupt
from firesteel.cli.output.show import err, out
from firesteel.errors import UsageError
from firesteel.launch import EngineName
from firesteel.library import documents, engines

if TYPE_CHECKING:
    from firesteel.engines.schema.symbols import Schema
    from firesteel.library.engines import BrokenRecipes, LearnedImage, LearnedRelease
    from firesteel.library.images import BuildProgress


@click.group("engine")
def command() -> None:
    """Install, build, list and remove engines that run without a container; learn the flags of a release.

    Engines live under FIRESTEEL_HOME and never touch your own Python. `firesteel up MODEL --native` uses the
    newest of them; an engine of your own is used with --engine-path.
    """


@command.command("list")
@options.json_option
def list_(as_json: bool) -> None:
    """List the engines under FIRESTEEL_HOME."""
    installed = engines.installed_engines()
    if as_json:
        rows = tuple(documents.engines.engine_json(folder, engine) for folder, engine in installed.items())
        options.print_json(documents.engines.EngineListJson.of(engines=rows))
        return
    if not installed:
        click.echo("no engine is installed under FIRESTEEL_HOME")
        click.echo(
            typed("next: firesteel engine install llamacpp, or firesteel engine install vllm"), err=True
        )
    for folder, engine in installed.items():
        runs_on = "GPU" if engine.uses_gpu else "CPU"
        out.print(
            f"{folder.name:<32} {engine.engine} {engine.version}, {runs_on}, {engine.made} {engine.made_on}"
        )


@command.command("install")
@click.argument("what", metavar="ENGINE[==VERSION]")
@options.json_option
def install(what: str, as_json: bool) -> None:
    """Install an engine from wheels, by package name, in a separate environment.

    vllm, on a machine without a GPU its build for CPUs; sglang; llamacpp as xllamacpp has it, for the CPU.
    """
    _follow(engines.install_engine(what), as_json)


@command.command("build")
@click.argument("what", metavar="llamacpp[==bNUMBER]")
@click.option("--source", type=options.PATH, help="Use this checkout or archive of llama.cpp.")
@click.option("--cpu", is_flag=True, help="Build for the CPU, though there is a GPU.")
@options.json_option
def build(what: str, source: Path | None, cpu: bool, as_json: bool) -> None:
    """Build llama.cpp from pinned sources for the GPU of this machine, or for its CPU.

    An interrupted build resumes where it left off. It also builds llama-bench,
    llama-quantize and ggml-rpc-server.
    """
    _follow(engines.build_engine(what, source=source, for_cpu=cpu), as_json)


@command.command("remove")
@click.argument("name")
@options.json_option
def remove(name: str, as_json: bool) -> None:
    """Remove an engine by the name that `firesteel engine list` shows."""
    engines.remove_engine(name)
    if as_json:
        options.print_json(documents.engines.EngineRemoveJson.of(name=name))
        return
    click.echo(f"{name} is removed")


def _follow(events: AsyncIterator[BuildProgress | Path], as_json: bool) -> None:
    with told_on_interrupt("the same command resumes where it left off"):
        folder = asyncio.run(last_of(events, Path))
    engine = engines.installed_engines()[folder]
    if as_json:
        shown = documents.engines.engine_json(folder, engine)
        options.print_json(documents.engines.EngineInstallJson.of(engine=shown))
        return
    click.echo(f"{folder.name}: {engine.engine} {engine.version}, {'GPU' if engine.uses_gpu else 'CPU'}")
    click.echo(typed("next: firesteel up MODEL --native"), err=True)


# --- releases ---


@command.command("learn")
@click.argument("engine", type=click.Choice(get_args(EngineName)), required=False)
@click.argument("version", required=False)
@click.option(
    "--image", metavar="IMAGE", help="Read an image that is on this machine instead; pulls nothing."
)
@click.option("--list", "is_list", is_flag=True, help="List the known releases; downloads nothing.")
@click.option("--recipes", "is_recipes", is_flag=True, help="Say which recipes the release breaks.")
@click.option("--again", is_flag=True, help="Read it again even if it is known.")
@options.json_option
def learn(
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

    With --recipes every recipe of the engine, yours included, is checked against the release for a Spark:
    flags, values, JSON keys and parsers. Exits 3 when a rule stops one that runs with its own release.
    """
    if image:
        _show_image(
            engines.learn_from_image(image, engine, version, again=again, report=_report), image, as_json
        )
        return 0
    if engine is None:
        raise UsageError(
            "which engine?",
            next="firesteel engine learn vllm VERSION (or --list), or: firesteel engine learn --image IMAGE",
        )
    if is_list:
        known = engines.known_releases(engine)
        if as_json:
            options.print_json(documents.engines.LearnListJson.of(engine=engine, versions=known))
        else:
            click.echo("\n".join(known))
        return 0
    if not version:
        raise UsageError("which release?", next=f"firesteel engine learn {engine} VERSION, or --list")
    found = asyncio.run(engines.learn_release(engine, version, again=again, report=_report))
    if is_recipes:
        return _show_broken(found.schema, engines.recipes_against(engine, version), as_json)
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


def _show_release(found: LearnedRelease, as_json: bool) -> None:
    schema, path = found.schema, found.path
    if as_json:
        counts = {"flags": len(schema.flags), "variables": len(schema.variables)}
        options.print_json(
            documents.engines.LearnJson.of(schema, was_known=path is None, path=path, **counts)
        )
    else:
        state = f"saved in {path}" if path else "known already"
        click.echo(f"{schema.engine} {schema.version}: {engines.counts(schema)}, {state}")


def _show_image(found: LearnedImage, reference: str, as_json: bool) -> None:
    image, path = found.image, found.path
    if as_json:
        counts = {"flags": len(image.schema.flags), "variables": len(image.schema.variables)}
        options.print_json(
            documents.engines.LearnImageJson.of(
                image, image=image.reference, was_known=path is None, path=path, **counts
            )
        )
    else:
        state = f"saved in {path}" if path else "known already"
        click.echo(f"{reference}: {image.engine} {image.version}, {engines.counts(image.schema)}, {state}")
