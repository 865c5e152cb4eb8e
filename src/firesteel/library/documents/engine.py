"""What `firesteel engine` prints with `--json`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from firesteel.edge.programs.installed import InstalledEngine
from firesteel.launch import EngineName
from firesteel.library.documents.document import Document


class EngineJson(Document, kw_only=True):
    name: str
    engine: EngineName
    version: str
    program: tuple[str, ...]
    uses_gpu: bool
    made: str
    made_from: str
    made_on: str


class EngineListJson(Document, kw_only=True):
    """`firesteel engine list --json`"""

    document: Literal["firesteel.engine-list/1"] = "firesteel.engine-list/1"
    engines: tuple[EngineJson, ...]


def engine_json(folder: Path, engine: InstalledEngine) -> EngineJson:
    program = (str(folder / engine.program[0]), *engine.program[1:])
    return EngineJson.of(engine, name=folder.name, program=program)
