"""`image build`: a recipe -> an image that was built, inspected, started and verified; only then tagged.

Everything about one build is in FIRESTEEL_HOME/builds/NAME-TIME: the Dockerfile, the log, and at the end
where it came from (in-toto, SLSA), what is in it (CycloneDX, from what `inspect` read: syft and its like come
by no package name) and its catalog entry. What fails keeps these and gets no tag. For llama.cpp, the engine
that was built on this machine is laid out with all that it loads.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from firesteel import __version__
from firesteel.catalog.image_recipe import ImageRecipe, PinnedSource
from firesteel.edge.docker.containers import last_line, require_docker
from firesteel.edge.docker.registry import Registry, parse_reference
from firesteel.edge.home import Home, write_state, write_text
from firesteel.edge.host import process
from firesteel.edge.programs.build import BuildProgress, fetch_source, fetch_wheels
from firesteel.edge.programs.installed import InstalledEngine, installed_engines
from firesteel.engines.diagnosis import diagnose
from firesteel.errors import FiresteelError, HostNotReady
from firesteel.render.dockerfile import dockerfile, uses_buildkit
from firesteel.units import MIB
from firesteel.values import plain, replace
from firesteel.workshop.images.built import VERIFIED, BuiltImage, VerifiedImage
from firesteel.workshop.images.inspect import inspect_image, save_inspection
from firesteel.workshop.images.report import ImageReport
from firesteel.workshop.images.sources import open_image
from firesteel.workshop.images.verify import verify_image

INSIDE = "opt/engine"
_LOADED = re.compile(r"(?:=> )?(/\S+) \(0x")
_FROM_THE_DRIVER = ("libcuda.so", "libnvidia")
"""The container toolkit brings those of the host into the container."""


def lay_out_engine(home: Home, root: Path) -> InstalledEngine:
    """Copies the newest llama.cpp that was built here, with every library of the system that it loads."""
    built = [
        (folder, engine)
        for folder, engine in installed_engines(home).items()
        if engine.engine == "llamacpp" and engine.made == "built"
    ]
    if not built:
        raise HostNotReady("no llama.cpp was built on this machine", next="firesteel engine build llamacpp")
    folder, engine = built[0]
    programs = folder / "bin"
    shutil.copytree(programs, root / INSIDE / "bin", symlinks=True)
    loaded = {library for program in programs.iterdir() for library in _libraries(program)}
    for library in sorted(loaded):
        if not library.is_relative_to(folder.resolve()) and not library.name.startswith(_FROM_THE_DRIVER):
            target = root / str(library).lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, target)
    return engine


def _libraries(program: Path) -> set[Path]:
    done = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False)
    paths = {Path(path) for path in _LOADED.findall(done.stdout)}
    folder = program.resolve().parent
    return {path for path in paths if path.resolve().parent != folder}


# --- what goes with an image ---

_STATEMENT = "https://in-toto.io/Statement/v1"
_PREDICATE = "https://slsa.dev/provenance/v1"


def provenance(name: str, recipe: ImageRecipe, tag: str, report: ImageReport, verified: VerifiedImage) -> str:
    """JSON. The packages inside stand under `byproducts`, each with the path that shows it."""
    bases = {stage.base: stage.digest or verified.digests.get(stage.base) for stage in recipe.stages}
    dependencies: list[dict[str, Any]] = [
        {"uri": pin.url, "name": pin.name, "digest": {"gitCommit" if pin.commit else "sha256": pin.pin}}
        for pin in recipe.pins
    ]
    dependencies += [
        {"uri": f"docker:{base}", "digest": {"sha256": digest.removeprefix("sha256:")}}
        for base, digest in bases.items()
        if digest
    ]
    statement = {
        "_type": _STATEMENT,
        "subject": [{"name": tag, "digest": {"sha256": report.digests[-1].removeprefix("sha256:")}}],
        "predicateType": _PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": "https://docs.docker.com/build/buildkit/",
                "externalParameters": {"recipe": name, "contents": plain(recipe)},
                "resolvedDependencies": dependencies,
            },
            "runDetails": {
                "builder": {"id": f"firesteel/{__version__}"},
                "metadata": {"startedOn": verified.started},
                "byproducts": [
                    {"name": "components", "annotations": [plain(found) for found in report.components]},
                    {"name": "verification", "annotations": list(verified.checks)},
                    {
                        "name": "matrix products",
                        "annotations": [plain(product) for product in verified.products],
                    },
                ],
            },
        },
    }
    return json.dumps(statement, indent=1, default=str) + "\n"


def sbom(tag: str, report: ImageReport) -> str:
    """CycloneDX 1.6, JSON: every package that `inspect` found, with the path that shows it."""
    digest = report.digests[-1].removeprefix("sha256:")
    components = [
        {
            "type": "library",
            "name": found.name,
            "version": found.version,
            "evidence": {"occurrences": [{"location": found.how}]},
        }
        for found in report.packages
    ]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "tools": {"components": [{"type": "application", "name": "firesteel", "version": __version__}]},
            "component": {
                "type": "container",
                "name": tag.partition(":")[0],
                "version": tag.partition(":")[2],
                "hashes": [{"alg": "SHA-256", "content": digest}],
            },
        },
        "components": components,
    }
    return json.dumps(document, indent=1) + "\n"


def catalog_entry(name: str, recipe: ImageRecipe, tag: str, report: ImageReport) -> str:
    """An `images.yaml` with the image under its recipe's name, for recipes of models to use."""
    arch = json.dumps([report.architecture] if report.architecture else [])
    return (
        "# Written by `firesteel image build`; the next build of the recipe replaces it.\n"
        "images:\n"
        f"  {name}:\n"
        f"    reference: {tag}\n"
        f"    engine: {recipe.engine}\n"
        f'    version: "{recipe.version}"\n'
        f"    entrypoint: {json.dumps(list(recipe.entrypoint))}\n"
        f"    arch: {arch}\n"
        f"    gpu: {'true' if recipe.gpu else 'false'}\n"
        f"    note: built and verified here on {report.on}, image {report.digests[-1]}\n"
    )


# --- the build ---

_STEP = re.compile(
    r"^(?:#\d+ \[(?P<stage>[^\]]*?) ?\d+/\d+\] (?P<what>.{1,100})|Step \d+/\d+ : (?P<step>.{1,100}))", re.M
)
_NO_BUILDX = re.compile("buildx component is missing|unknown command: docker buildx|'buildx' is not a docker")
_POLL_S = 0.2
_ONLY_ON_SPARK = ("wrong-processor",)
"""Problems that an image for this machine only has on others."""


async def build_image(
    home: Home, name: str, recipe: ImageRecipe, builder: str | None = None
) -> AsyncIterator[BuildProgress | BuiltImage]:
    """The last item is the image, with its tag."""
    async for item in build_and_verify(home, name, recipe, builder):
        if isinstance(item, BuildProgress):
            yield item
        else:
            yield await tag_image(home, name, recipe, item)


async def build_and_verify(
    home: Home, name: str, recipe: ImageRecipe, builder: str | None = None
) -> AsyncIterator[BuildProgress | VerifiedImage]:
    """The last item is the image, still without a tag. `builder`: one of `docker buildx ls`."""
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
            address = parse_reference(base)
            _, digests[base] = await asyncio.to_thread(Registry(address).manifest, address.version)
        if recipe.version == "here":
            yield BuildProgress("laying out the engine of this machine")
            engine = await asyncio.to_thread(lay_out_engine, home, context / "root")
            recipe = replace(recipe, version=engine.version, gpu=recipe.gpu or engine.uses_gpu)
        for pin in fetched_pins(recipe):
            yield BuildProgress(f"fetching {pin.package}")
            archive = await fetch_source(home, pin.package or "", pin.sha256 or "", home.root / "tmp/sources")
            (context / "sources").mkdir(exist_ok=True)
            shutil.copy(archive, context / "sources" / f"{pin.name}.tar.gz")
        if packages := wheel_packages(recipe):
            yield BuildProgress(f"fetching {', '.join(packages)} and what it needs, as wheels")
            await fetch_wheels(home, packages, recipe.python, context / "wheels")
        write_text(folder / "Dockerfile", dockerfile(name, recipe, digests))
        async for progress in docker_build(recipe, folder, context, builder):
            yield progress
    finally:
        shutil.rmtree(context, ignore_errors=True)
    image_id = (folder / "image-id").read_text().strip()
    yield BuildProgress("inspecting what was built")
    report = await asyncio.to_thread(inspect_local, home, image_id)
    require_contents(recipe, report)
    yield BuildProgress(f"starting {recipe.prove} on it")
    checks, products = await verify_image(home, name, recipe, image_id, report)
    verified = VerifiedImage(
        image_id, recipe.version, recipe.gpu, started.isoformat(), time.monotonic() - began, digests, checks,
        str(folder), products,
    )  # fmt: skip
    write_state(folder / VERIFIED, verified)
    yield verified


async def tag_image(home: Home, name: str, recipe: ImageRecipe, verified: VerifiedImage) -> BuiltImage:
    """The tag, the inspection, the provenance, the catalog's entry: each may be written again."""
    recipe = replace(recipe, version=verified.version, gpu=verified.uses_gpu)
    started, folder = datetime.fromisoformat(verified.started), Path(verified.folder)
    report = await asyncio.to_thread(inspect_local, home, verified.id)
    tag = image_tag(name, recipe, started)
    code, output = await process.run("docker", "tag", verified.id, tag)
    if code:
        raise FiresteelError(
            f"docker could not tag {verified.id[:19]}: {last_line(output)}",
            next=f"docker tag {verified.id} {tag}",
        )
    report = replace(report, reference=tag)
    save_inspection(home, report)
    statement = provenance(name, recipe, tag, report, verified)
    write_text(folder / "provenance.json", statement)
    write_text(folder / "sbom.json", sbom(tag, report))
    write_text(home.catalog / "built" / name / "images.yaml", catalog_entry(name, recipe, tag, report))
    return BuiltImage(
        tag, verified.id, recipe.engine, recipe.version, report.bytes, verified.seconds, verified.checks,
        verified.products, verified.folder,
    )  # fmt: skip


def inspect_local(home: Home, image_id: str) -> ImageReport:
    return inspect_image(open_image(image_id), home.root / "tmp")


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


# --- sources and bases ---


def fetched_pins(recipe: ImageRecipe) -> tuple[PinnedSource, ...]:
    """Packages whose archives a step copies from `sources/`: fetched here, by this machine's pip."""
    copied = _copied(recipe)
    return tuple(pin for pin in recipe.pins if pin.package and f"sources/{pin.name}.tar.gz" in copied)


def wheel_packages(recipe: ImageRecipe) -> tuple[str, ...]:
    """Packages that are fetched as wheels with all that they need, where a step copies `wheels/`."""
    return tuple(pin.package for pin in recipe.pins if pin.package) if "wheels/" in _copied(recipe) else ()


def _copied(recipe: ImageRecipe) -> list[str]:
    """What steps take from the build's own folder."""
    return [word for stage in recipe.stages for step in stage.steps for word in (step.copy or "").split()]


def _unpinned(recipe: ImageRecipe) -> tuple[str, ...]:
    stages = {stage.name for stage in recipe.stages}
    bases = (stage.base for stage in recipe.stages if stage.digest is None)
    return tuple(dict.fromkeys(base for base in bases if base not in stages and base != "scratch"))


# --- docker build ---


async def docker_build(
    recipe: ImageRecipe, folder: Path, context: Path, builder: str | None
) -> AsyncIterator[BuildProgress]:
    log = folder / "build.log"
    steps = sum(len(stage.steps) for stage in recipe.stages)
    for argv, env in build_commands(recipe, folder, context, builder):
        with log.open("wb") as file:
            child = await asyncio.create_subprocess_exec(
                *argv, stdin=asyncio.subprocess.DEVNULL, stdout=file, stderr=file, env={**os.environ, **env}
            )
        async for progress in _follow(child, log, steps):
            yield progress
        if not child.returncode:
            return
        if not _NO_BUILDX.search(_tail(log)):
            raise build_failure(_tail(log), log)
    what = f"the builder {builder}" if builder else "what the recipe needs: caches, or another processor"
    raise HostNotReady(
        f"docker has no buildx for {what}", next="sudo apt install docker-buildx-plugin, or docker-buildx"
    )


def build_commands(
    recipe: ImageRecipe, folder: Path, context: Path, builder: str | None
) -> tuple[tuple[tuple[str, ...], dict[str, str]], ...]:
    """What to run, and where docker has no buildx, the next; each with its environment."""
    target = () if recipe.platform == "here" else ("--platform", recipe.platform)
    paths = ("--file", str(folder / "Dockerfile"), "--iidfile", str(folder / "image-id"))
    plain = ("docker", "build", *paths, *target, str(context))
    if builder or recipe.platform not in ("here", _own_platform()):
        # --load: the image is verified here, so a remote builder has to send it.
        where = ("--builder", builder) if builder else ()
        buildx = ("docker", "buildx", "build", *where, "--load", "--progress", "plain", *plain[2:])
        return ((buildx, {}),)
    # Docker 20.10 has BuildKit without buildx; later clients use buildx by themselves.
    buildkit = (("docker", "build", "--progress", "plain", *plain[2:]), {"DOCKER_BUILDKIT": "1"})
    return (buildkit,) if uses_buildkit(recipe) else (buildkit, (plain, {"DOCKER_BUILDKIT": "0"}))


def _own_platform() -> str:
    names = {"x86_64": "amd64", "aarch64": "arm64"}
    return f"linux/{names.get(platform.machine(), platform.machine())}"


async def _follow(child: asyncio.subprocess.Process, log: Path, steps: int) -> AsyncIterator[BuildProgress]:
    """The step that runs. The time left is what the steps so far took, for those that are left."""
    began, shown = time.monotonic(), 0
    try:
        while child.returncode is None:
            try:
                async with asyncio.timeout(_POLL_S):
                    await child.wait()
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
    """What the log says, by the known lines of `logs --why`; else its last error."""
    plain = re.sub(r"\x1b\[[0-9;]*m|^#\d+ (?:\d+\.\d+ )?", "", text, flags=re.M)
    cause = diagnose(plain, runtime="container").cause
    if cause is not None:
        hint = f"{cause.next}; the log: {log}" if cause.next else f"less {log}"
        return FiresteelError(f"the image was not built: {cause.says}", next=hint)
    errors = [line.strip() for line in plain.splitlines() if re.search(r"\berror\b", line, re.IGNORECASE)]
    return FiresteelError(
        f"the image was not built: {last_line(chr(10).join(errors) or plain)}", next=f"less {log}"
    )
