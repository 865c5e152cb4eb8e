"""Releases of the engine that a model runs: builds of its program, versions of its package, or tags of its
image.

A release that the user asks for may be abbreviated: `b11600`, `0.29.0` and `v0.29.0` mean a release of the
same kind as the one that runs. Without a request it is the newest that is newer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from firesteel.edge.docker.registry import Registry, parse_reference
from firesteel.edge.home import EngineRelease, Home
from firesteel.edge.host.process import run
from firesteel.edge.programs import wheels
from firesteel.edge.programs.installed import find_program, installed_engines
from firesteel.errors import HostNotReady, UsageError
from firesteel.planner.propose import Proposal

_NUMBER = re.compile(r"\d+")


def release_of(proposal: Proposal) -> EngineRelease:
    """The engine release that a proposal would run."""
    launch, image = proposal.plan.launch, proposal.image
    version = launch.version or "unknown"
    if launch.program:
        return EngineRelease(launch.engine, version, engine_path=launch.program.argv[0])
    if launch.container:
        return EngineRelease(launch.engine, version, image=launch.container.image)
    return EngineRelease(launch.engine, version, package=image.package if image else None)


async def find_release(home: Home, current: EngineRelease, to: str | None) -> EngineRelease | None:
    """The requested release, or the newest; None: there is no newer one."""
    if current.engine_path:
        return _find_program_release(home, current, to)
    if current.package:
        return await _find_package_release(home, current, to)
    return _find_image_release(current, to)


def newest(current: str, others: Iterable[str]) -> str | None:
    """The newest of the others, by their numbers; None: none is newer than the current one."""

    def order(version: str) -> tuple[int, ...]:
        return tuple(map(int, _NUMBER.findall(version)))

    return max((one for one in others if order(one) > order(current)), key=order, default=None)


# --- a program of this machine ---


def _find_program_release(home: Home, current: EngineRelease, to: str | None) -> EngineRelease | None:
    """An installed build, or the program at a path."""
    if to and "/" in to:
        found = find_program(current.engine, home, to)
        return EngineRelease(current.engine, found.version or "unknown", engine_path=found.argv[0])
    there = {
        engine.version: str(folder / engine.program[0])
        for folder, engine in reversed([*installed_engines(home).items()])
        if engine.engine == current.engine
    }
    wanted = to.removeprefix("b") if to else newest(current.version, there)
    if wanted is None:
        return None
    if wanted not in there:
        raise UsageError(
            f"no {current.engine} {wanted} is installed here; there is {', '.join(there) or 'none'}",
            next=f"firesteel engine install {current.engine}=={wanted}, or --to PATH",
        )
    return EngineRelease(current.engine, wanted, engine_path=there[wanted])


# --- the embedded engine ---


async def _find_package_release(home: Home, current: EngineRelease, to: str | None) -> EngineRelease | None:
    """A release of the package on the index, asked for by its version or by its build of llama.cpp."""
    name, _, version = (current.package or "").partition("==")
    if to and re.fullmatch(r"\d+(\.\d+){2,}", to.removeprefix(f"{name}==")):
        wanted: str | None = to.removeprefix(f"{name}==")
    else:
        versions = await _list_published(home, name)
        builds = {_llamacpp_build_of(one): one for one in reversed(versions)}
        wanted = builds.get(to.removeprefix("b")) if to else newest(version, versions)
        if to and wanted is None:
            what = f"{name} has no release with llama.cpp {to[:40]}"
            raise UsageError(what, next=f"pip index versions {name}")
    if wanted is None:
        return None
    return EngineRelease(current.engine, _llamacpp_build_of(wanted), package=f"{name}=={wanted}")


def _llamacpp_build_of(version: str) -> str:
    """`2026.10.11549` -> `11549`, the build of llama.cpp."""
    return version.split(".")[2] if version.count(".") >= 2 else version


async def _list_published(home: Home, name: str) -> list[str]:
    """The releases of a package, listed by the pip of this user from the index of this user."""
    async for _ in wheels.pull_engine(home, "pip"):
        pass
    pip = (str(wheels.engine_python(home, "pip")), "-P", "-m", "pip", "--disable-pip-version-check")
    code, output = await run(*pip, "index", "versions", name)
    listed = re.search(r"^Available versions: (.+)$", output, re.M)
    if code or listed is None:
        what = f"pip does not list the releases of {name}"
        raise HostNotReady(what, next="check the network, or --to VERSION")
    return [version.strip() for version in listed[1].split(",")]


# --- an image ---


def _find_image_release(current: EngineRelease, to: str | None) -> EngineRelease | None:
    """A tag of the same repository, or the image that was asked for."""
    reference = (current.image or "").partition("@")[0]
    folder, slash, last = reference.rpartition("/")
    name, _, tag = last.partition(":")
    repository = f"{folder}{slash}{name}"
    if to and ("/" in to or ":" in to):
        return EngineRelease(current.engine, _read_version(to.rpartition(":")[2]), image=to)
    if to:
        wanted: str | None = _apply_to_tag(current, tag, to)
    else:
        tags = Registry(parse_reference(reference)).tags()
        wanted = newest(tag, (one for one in tags if re.fullmatch(_pattern_of_same_tags(current, tag), one)))
    if wanted is None:
        return None
    return EngineRelease(current.engine, _read_version(wanted), image=f"{repository}:{wanted}")


def _pattern_of_same_tags(current: EngineRelease, tag: str) -> str:
    """A pattern for releases of the same thing: `v0.29.0-cu130` of `v0.28.0-cu130`."""
    if current.engine == "llamacpp":
        return rf"{re.escape(_remove_build(tag))}-b\d+"
    return r"\d+".join(map(re.escape, _NUMBER.split(tag)))


def _apply_to_tag(current: EngineRelease, tag: str, to: str) -> str:
    """`v0.28.0` and `0.29.0` -> `v0.29.0`; `server-cuda13` and `b11600` -> `server-cuda13-b11600`."""
    if current.engine == "llamacpp" and re.fullmatch(r"b?\d+", to):
        return f"{_remove_build(tag)}-b{to.removeprefix('b')}"
    if not to[0].isdigit():
        return to
    return re.sub(r"\d+(\.\d+)*", to, tag, count=1) if re.search(r"\d", tag) else to


def _remove_build(tag: str) -> str:
    """llama.cpp's tags end with the build, and the CUDA release stands before it."""
    return re.sub(r"-b[0-9]+$", "", tag)


def _read_version(tag: str) -> str:
    """The version in a tag, or the tag if there is none in it."""
    match = re.search(r"(?<=-b)\d+$", tag) or re.search(r"\d+(\.\d+)*", tag)
    return match[0] if match else tag
