"""`firesteel engine list|install|build|remove`"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from firesteel.cli import options
from firesteel.cli.output.invocation import typed
from firesteel.cli.output.progress import last_of, told_on_interrupt
from firesteel.cli.output.show import out
from firesteel.library import documents
from firesteel.library.engines import build_engine, install_engine, installed_engines, remove_engine

if TYPE_CHECKING:
    from firesteel.library.images import BuildProgress


@click.group("engine")
def command() -> None:
    """Install, build, list and remove engines that run without a container.

    They live under FIRESTEEL_HOME and never touch your own Python. `firesteel up MODEL --native` uses the
    newest of them; an engine of your own is used with --engine-path.
    """


@command.command("list")
@options.json_option
def list_(as_json: bool) -> None:
    """List the engines under FIRESTEEL_HOME."""
    engines = installed_engines()
    if as_json:
        rows = tuple(documents.engines.engine_json(folder, engine) for folder, engine in engines.items())
        options.print_json(documents.engines.EngineListJson.of(engines=rows))
        return
    if not engines:
        click.echo("no engine is installed under FIRESTEEL_HOME")
        click.echo(
            typed("next: firesteel engine install llamacpp, or firesteel engine install vllm"), err=True
        )
    for folder, engine in engines.items():
        runs_on = "GPU" if engine.uses_gpu else "CPU"
        out.print(
            f"{folder.name:<32} {engine.engine} {engine.version}, {runs_on}, {engine.made} {engine.made_on}"
        )


@command.command("install")
@click.argument("what", metavar="ENGINE[==VERSION]")
def install(what: str) -> None:
    """Install an engine from wheels, by package name, in an environment of its own.

    vllm, on a machine without a GPU its build for CPUs; sglang; llamacpp as xllamacpp has it, for the CPU.
    """
    _follow(install_engine(what))


@command.command("build")
@click.argument("what", metavar="llamacpp[==bNUMBER]")
@click.option("--source", type=options.PATH, help="Use this checkout or archive of llama.cpp.")
@click.option("--cpu", is_flag=True, help="Build for the CPU, though there is a GPU.")
def build(what: str, source: Path | None, cpu: bool) -> None:
    """Build llama.cpp from pinned sources for the GPU of this machine, or for its CPU.

    An interrupted build goes on where it was. llama-bench, llama-quantize and ggml-rpc-server come along.
    """
    _follow(build_engine(what, source=source, for_cpu=cpu))


@command.command("remove")
@click.argument("name")
def remove(name: str) -> None:
    """Remove an engine by the name that `firesteel engine list` shows."""
    remove_engine(name)
    click.echo(f"{name} is removed")


def _follow(events: AsyncIterator[BuildProgress | Path]) -> None:
    with told_on_interrupt("the same command goes on where it was"):
        folder = asyncio.run(last_of(events, Path))
    engine = installed_engines()[folder]
    click.echo(f"{folder.name}: {engine.engine} {engine.version}, {'GPU' if engine.uses_gpu else 'CPU'}")
    click.echo(typed("next: firesteel up MODEL --native"), err=True)
