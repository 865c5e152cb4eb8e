"""The engine that was built on this machine as the files of an image: programs, and all that they load."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from firesteel.edge.home import Home
from firesteel.edge.programs.installed import InstalledEngine, installed_engines
from firesteel.errors import HostNotReady

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
