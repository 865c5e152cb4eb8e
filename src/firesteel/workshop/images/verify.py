"""Verifies an image before it gets a tag: its engine serves a model behind the guard and answers correctly.

Without a GPU, and for llama.cpp, a script that runs the image replaces the engine's program: it serves a
small model. For vLLM and SGLang on a GPU the image replaces the recipe's own.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath
from shlex import join
from uuid import uuid4

from firesteel.catalog.image import with_inspections
from firesteel.catalog.image_recipe import ImageRecipe
from firesteel.edge.docker.containers import last_line
from firesteel.edge.home import Home, write_text
from firesteel.edge.host import process
from firesteel.errors import FiresteelError, HostNotReady
from firesteel.launch import Ask
from firesteel.planner.propose import Proposal, propose
from firesteel.run.down import stop
from firesteel.run.events import ServiceReady
from firesteel.run.service import load
from firesteel.run.up import bring_up
from firesteel.values import replace
from firesteel.workshop.images.built import MatrixProduct, measure_products
from firesteel.workshop.images.report import ImageReport, inspection
from firesteel.workspace import Workspace

_SHM = "1g"
"""vLLM's processes pass tensors by shared memory; docker gives a container 64 MB of it."""


async def verify_image(
    home: Home, name: str, recipe: ImageRecipe, image_id: str, report: ImageReport
) -> tuple[tuple[str, ...], tuple[MatrixProduct, ...]]:
    """The names of the checks that it passed, and its products; raises with the reason when one fails."""
    try:
        products = await measure_products(image_id, recipe.products)
        async with started_image(home, f"proof-{name}"[:40], recipe, image_id, report) as ready:
            return tuple(check.name for check in ready.report.checks if check.passed), products
    except HostNotReady:
        raise
    except FiresteelError as error:
        raise FiresteelError(f"the image was built and gets no tag: {error.what}", next=error.next) from error


@asynccontextmanager
async def started_image(
    home: Home, service: str, recipe: ImageRecipe, image_id: str, report: ImageReport
) -> AsyncIterator[ServiceReady]:
    """The image with its model as a service of that name, verified; stopped and removed at the end."""
    label = f"firesteel-proof={service}"
    program = "llama-server" if recipe.engine == "llamacpp" else "python3"
    script = home.root / "tmp" / f"proof-{uuid4().hex[:12]}" / program
    await _stop(home, service, label)  # what a process that was killed here has left
    try:
        if recipe.engine == "llamacpp":
            await _require_program(image_id)
        if _is_program(recipe):
            write_script(script, home, recipe, image_id, label)
        proposal = _proposal(home, service, recipe, script, report, image_id)
        ready = [event async for event in bring_up(proposal, home) if isinstance(event, ServiceReady)]
        if not ready:
            raise FiresteelError("it never became ready", next=f"firesteel logs {service}")
        yield ready[-1]
    finally:
        await _stop(home, service, label)
        script.unlink(missing_ok=True)
        if script.parent.exists():
            script.parent.rmdir()


async def _stop(home: Home, service: str, label: str) -> None:
    running = load(home, service)
    if running is not None:
        async for _ in stop(running):
            pass
    # A container whose `docker run` was killed would run on.
    _, output = await process.run("docker", "ps", "--all", "--quiet", "--filter", f"label={label}")
    for container in output.split():
        await process.run("docker", "rm", "--force", container)


async def _require_program(image_id: str) -> None:
    """A program that fails to print its version gives the clearest error."""
    code, output = await process.run("docker", "run", "--rm", "--network", "none", image_id, "--version")
    if code:
        raise FiresteelError(
            f"its program does not start: {last_line(output)}", next=f"docker run --rm {image_id} --version"
        )


def _is_program(recipe: ImageRecipe) -> bool:
    """Whether a script stands for it: recipes of vLLM and SGLang for a container need a GPU."""
    return recipe.engine == "llamacpp" or not recipe.gpu


def write_script(script: Path, home: Home, recipe: ImageRecipe, image_id: str, label: str) -> None:
    """It passes the engine's variables on: a container has only those that `docker run` lists."""
    gpus = ("--gpus", "all") if recipe.gpu else ()
    folders = [str(home.weights), *([recipe.prove] if Path(recipe.prove).is_absolute() else [])]
    volumes = [word for folder in folders for word in ("--volume", f"{folder}:{folder}:ro")]
    start: tuple[str, ...] = ()
    if recipe.engine != "llamacpp":  # `python3 -m MODULE`, and what it asks for its release
        start = (
            "--shm-size",
            _SHM,
            "--entrypoint",
            str(PurePosixPath(recipe.entrypoint[0]).with_name("python3")),
        )
    options = ("--rm", "--init", "--network", "host", "--label", label, *volumes, *gpus, *start)
    variables = r"$(env | sed -n 's/^\(\(VLLM\|SGLANG\|HF\|OMP\)_[A-Z0-9_]*\)=.*/--env \1/p')"
    write_text(script, f'#!/bin/sh\nexec docker run {variables} {join((*options, image_id))} "$@"\n')
    script.chmod(0o700)


def _proposal(
    home: Home, service: str, recipe: ImageRecipe, script: Path, report: ImageReport, image_id: str
) -> Proposal:
    workspace = Workspace(home)
    host = workspace.host()
    ask = Ask(recipe.prove, name=service, port=_free_port(), engine=recipe.engine)
    if _is_program(recipe):
        return workspace.propose(replace(ask, runtime="native", engine_path=str(script)), host)[0]
    catalog = workspace.catalog
    wanted = catalog.recipes[recipe.prove].image
    named = replace(catalog.images.named[wanted], reference=image_id, entrypoint=recipe.entrypoint)
    images = replace(catalog.images, named={**catalog.images.named, wanted: named})
    images = with_inspections(images, [replace(inspection(report), reference=image_id)])
    return propose(replace(catalog, images=images), host, ask)[0]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
