"""What `engine` prints with `--json`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from firesteel.launch import EngineName
from firesteel.library.documents.document import Document
from firesteel.rules.checker import ReleaseFinding

if TYPE_CHECKING:
    from firesteel.edge.programs.installed import InstalledEngine


class LearnJson(Document, kw_only=True):
    """`firesteel engine learn ENGINE VERSION --json`"""

    document: Literal["firesteel.learn/1"] = "firesteel.learn/1"
    engine: str
    version: str
    was_known: bool
    flags: int
    variables: int
    path: str | None


class LearnImageJson(Document, kw_only=True):
    """`firesteel engine learn --image IMAGE --json`"""

    document: Literal["firesteel.learn-image/1"] = "firesteel.learn-image/1"
    image: str
    digests: tuple[str, ...]
    engine: str
    version: str
    was_known: bool
    flags: int
    variables: int
    entrypoint: tuple[str, ...] | None
    path: str | None


class LearnListJson(Document, kw_only=True):
    """`firesteel engine learn ENGINE --list --json`"""

    document: Literal["firesteel.learn-list/1"] = "firesteel.learn-list/1"
    engine: str
    versions: tuple[str, ...]


class LearnRecipesJson(Document, kw_only=True):
    """`firesteel engine learn ENGINE VERSION --recipes --json`"""

    document: Literal["firesteel.learn-recipes/1"] = "firesteel.learn-recipes/1"
    engine: str
    version: str
    recipes: int
    findings: tuple[ReleaseFinding, ...]
    """What a recipe has with this release, and not with its own."""


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


class EngineInstallJson(Document, kw_only=True):
    """`firesteel engine install|build ENGINE --json`"""

    document: Literal["firesteel.engine-install/1"] = "firesteel.engine-install/1"
    engine: EngineJson


class EngineRemoveJson(Document, kw_only=True):
    """`firesteel engine remove NAME --json`"""

    document: Literal["firesteel.engine-remove/1"] = "firesteel.engine-remove/1"
    name: str


def engine_json(folder: Path, engine: InstalledEngine) -> EngineJson:
    program = (str(folder / engine.program[0]), *engine.program[1:])
    return EngineJson.of(engine, name=folder.name, program=program)
