"""The engines under FIRESTEEL_HOME: one folder each, complete once its `engine.json` is there."""

from __future__ import annotations

from pathlib import Path

from firesteel.edge.files import state_file
from firesteel.edge.files.home import Home
from firesteel.launch import EngineName
from firesteel.values import Value

RECORD = "engine.json"


class InstalledEngine(Value):
    """What `engine.json` says. Its paths are relative to the folder, so that a home can be moved."""

    engine: EngineName
    version: str
    program: tuple[str, ...]
    """The command that starts its server; the first word is a path inside the folder."""
    uses_gpu: bool
    made: str
    """`installed` from wheels or `built` from sources."""
    made_from: str
    """The package or the sources, with the flags of a build."""
    made_on: str
    """The date."""


def installed_engines(home: Home) -> dict[Path, InstalledEngine]:
    """By folder, those for the GPU first, then the newest release."""
    folders = [path.parent for path in home.engines.glob(f"*/{RECORD}")] if home.engines.is_dir() else []
    engines = ((folder, state_file.read_state(folder / RECORD, InstalledEngine)) for folder in folders)
    found = {
        folder: engine
        for folder, engine in engines
        if engine and engine.program and (folder / engine.program[0]).exists()
    }
    return dict(sorted(found.items(), key=lambda item: _rank(item[1]), reverse=True))


def _rank(engine: InstalledEngine) -> tuple[bool, tuple[int, ...]]:
    version = engine.version
    return engine.uses_gpu, tuple(
        int(part) for part in version.split(".") if part.isascii() and part.isdigit()
    )
