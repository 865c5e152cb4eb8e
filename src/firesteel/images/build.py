"""`image build`: a recipe -> an image that was built, inspected, started and verified; only then tagged.

Everything about one build is in FIRESTEEL_HOME/builds/NAME-TIME: the Dockerfile, the log, and at the end
where it came from (`provenance.json`). What fails keeps these and gets no tag.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from firesteel import engines
from firesteel.catalog.image_recipe import ImageRecipe
from firesteel.dataclass import dataclass
from firesteel.edge.docker.containers import last_line, require_docker
from firesteel.edge.docker.registry import Registry, parse_reference
from firesteel.edge.files.home import Home, write_text
from firesteel.edge.host import process
from firesteel.edge.native.build import BuildProgress
from firesteel.errors import FiresteelError, HostNotReady
from firesteel.images.inspect import inspect_image, save_inspection
from firesteel.images.local_engine import lay_out_engine
from firesteel.images.prove import prove_image
from firesteel.images.provenance import catalog_entry, provenance
from firesteel.images.report import ImageReport
from firesteel.images.sources import open_image
from firesteel.render.dockerfile import dockerfile, uses_buildkit
from firesteel.units import MIB

_STEP = re.compile(
    r"^(?:#\d+ \[(?P<stage>[^\]]*?) ?\d+/\d+\] (?P<what>.{1,100})|Step \d+/\d+ : (?P<step>.{1,100}))", re.M
)
_NO_BUILDX = "buildx component is missing"
_POLL_S = 0.2
_ONLY_ON_SPARK = ("wrong-processor",)
"""Problems that an image for this machine has only elsewhere."""


@dataclass(frozen=True, slots=True)
class BuiltImage:
    tag: str
    id: str
    """`sha256:...`"""
    engine: str
    version: str
    bytes: int
    seconds: float
    verified: tuple[str, ...]
    """The checks that it passed."""
    folder: str
    """Dockerfile, log and provenance."""


async def build_image(
    home: Home, name: str, recipe: ImageRecipe
) -> AsyncIterator[BuildProgress | BuiltImage]:
    """The last item is the image."""
    await require_docker()
    started = datetime.now(UTC)
    began = time.monotonic()
    folder = home.root / "builds" / f"{name}-{started:%Y%m%d-%H%M%S-%f}"
    context = folder / "context"
    context.mkdir(parents=True)
    try:
        digests = {}
        for base in _unpinned(recipe):
            yield BuildProgress(f"pinning {base}")
            digests[base] = await _base_digest(base)
        if recipe.version == "here":
            yield BuildProgress("laying out the engine of this machine")
            engine = await asyncio.to_thread(lay_out_engine, home, context / "root")
            recipe = replace(recipe, version=engine.version, gpu=recipe.gpu or engine.uses_gpu)
        write_text(folder / "Dockerfile", dockerfile(name, recipe, digests))
        async for progress in _docker_build(recipe, folder, context):
            yield progress
    finally:
        shutil.rmtree(context, ignore_errors=True)
    image_id = (folder / "image-id").read_text().strip()
    yield BuildProgress("inspecting what was built")
    report = await asyncio.to_thread(lambda: inspect_image(open_image(image_id), home.root / "tmp"))
    require_contents(recipe, report)
    yield BuildProgress(f"starting {recipe.prove} on it")
    checks = await prove_image(home, name, recipe, image_id, report)
    tag = image_tag(name, recipe, started)
    code, output = await process.run("docker", "tag", image_id, tag)
    if code:
        raise FiresteelError(
            f"docker could not tag {image_id[:19]}: {last_line(output)}", next=f"docker tag {image_id} {tag}"
        )
    report = replace(report, reference=tag)
    save_inspection(home, report)
    write_text(folder / "provenance.json", provenance(name, recipe, digests, tag, report, checks, started))
    write_text(home.catalog / "built" / name / "images.yaml", catalog_entry(name, recipe, tag, report))
    yield BuiltImage(
        tag,
        image_id,
        recipe.engine,
        recipe.version,
        report.bytes,
        time.monotonic() - began,
        checks,
        str(folder),
    )


def image_tag(name: str, recipe: ImageRecipe, built: datetime) -> str:
    """`firesteel/llamacpp-here:11434-20261116-b0a2feb`"""
    return f"firesteel/{name}:{recipe.version}-{built:%Y%m%d}-{recipe.pins[0].pin[:7]}"


def require_contents(recipe: ImageRecipe, report: ImageReport) -> None:
    """The engine is inside in the version that was asked for, with its kernels; raises otherwise."""
    stops = [problem for problem in report.problems if problem.level == "stop"]
    if recipe.platform == "here":
        stops = [problem for problem in stops if problem.check not in _ONLY_ON_SPARK]
    if stops:
        raise _refused(f"{stops[0].says} ({stops[0].evidence})", stops[0].instead)
    if report.engine != recipe.engine:
        raise _refused(
            f"it has no {recipe.engine} inside", "read the log: did the step that installs it run?"
        )
    if (report.version or "").removeprefix("b").partition("+")[0] != recipe.version:
        raise _refused(
            f"it has {recipe.engine} {report.version} inside, and the recipe says {recipe.version}",
            "the pinned source is another one than the recipe's version",
        )
    if recipe.gpu and not any(library.on_gb10 == "as it is" for library in report.gpu_libraries):
        raise _refused(
            "no library in it has code for a GB10: the build dropped the architecture",
            "the arch list of the recipe: 121a-real for llama.cpp, 12.0 for vLLM",
        )


def _refused(what: str, hint: str) -> FiresteelError:
    return FiresteelError(f"the image was built and gets no tag: {what}", next=hint)


# --- bases ---


def _unpinned(recipe: ImageRecipe) -> tuple[str, ...]:
    stages = {stage.name for stage in recipe.stages}
    bases = (stage.base for stage in recipe.stages if stage.digest is None)
    return tuple(dict.fromkeys(base for base in bases if base not in stages and base != "scratch"))


async def _base_digest(base: str) -> str:
    """What its registry has under that tag today."""
    address = parse_reference(base)
    _, digest = await asyncio.to_thread(Registry(address).manifest, address.version)
    return digest


# --- docker build ---


async def _docker_build(recipe: ImageRecipe, folder: Path, context: Path) -> AsyncIterator[BuildProgress]:
    log = folder / "build.log"
    platform = () if recipe.platform == "here" else ("--platform", recipe.platform)
    words = (
        "--file",
        str(folder / "Dockerfile"),
        "--iidfile",
        str(folder / "image-id"),
        *platform,
        str(context),
    )
    steps = sum(len(stage.steps) for stage in recipe.stages)
    code = -1
    for argv, env in (
        (("docker", "build", "--progress", "plain", *words), {"DOCKER_BUILDKIT": "1"}),
        (("docker", "build", *words), {"DOCKER_BUILDKIT": "0"}),
    ):
        child = await _started(argv, env, log)
        async for progress in _follow(child, log, steps):
            yield progress
        code = child.returncode or 0
        if not code or _NO_BUILDX not in _tail(log):
            break
        if uses_buildkit(recipe):
            raise HostNotReady(
                "docker has no buildx, and the recipe keeps caches between builds with BuildKit",
                next="sudo apt install docker-buildx",
            )
    if code:
        raise build_failure(_tail(log), log)


async def _started(argv: tuple[str, ...], env: Mapping[str, str], log: Path) -> asyncio.subprocess.Process:
    with log.open("wb") as file:
        return await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.DEVNULL, stdout=file, stderr=file, env={**os.environ, **env}
        )


async def _follow(child: asyncio.subprocess.Process, log: Path, steps: int) -> AsyncIterator[BuildProgress]:
    """The step that runs. The time left is what the steps so far took, for those that are left."""
    began, shown = time.monotonic(), 0
    try:
        while child.returncode is None:
            try:
                await asyncio.wait_for(child.wait(), timeout=_POLL_S)
            except TimeoutError:
                found = [match for match in _STEP.finditer(_tail(log)) if match["stage"] != "internal"]
                if len(found) > shown:
                    shown = len(found)
                    done, spent = shown - 1, time.monotonic() - began
                    left = spent / done * (steps - done) if 0 < done < steps else None
                    last = found[-1]
                    stage = f"{last['stage']}: " if last["stage"] else ""
                    yield BuildProgress(f"{stage}{last['what'] or last['step']}", left)
    finally:
        if child.returncode is None:
            child.terminate()
            await child.wait()


def _tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 8 * MIB))
        return file.read().decode(errors="replace")


def build_failure(text: str, log: Path) -> FiresteelError:
    """What the log says, by the known lines of `diagnose`; else its last error."""
    plain = re.sub(r"^#\d+ (?:\d+\.\d+ )?", "", text, flags=re.M)
    cause = engines.diagnose(plain).cause
    if cause is not None:
        return FiresteelError(f"the image was not built: {cause.says}", next=cause.next or f"less {log}")
    errors = [line.strip() for line in plain.splitlines() if re.search(r"\berror\b", line, re.IGNORECASE)]
    return FiresteelError(
        f"the image was not built: {last_line(chr(10).join(errors) or plain)}", next=f"less {log}"
    )
