"""What `engine` prints with `--json`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from firesteel.launch import EngineName
from firesteel.library.documents.document import Document
from firesteel.rules.checker import ReleaseFinding

if TYPE_CHECKING:
    from firesteel.edge.programs.installed import InstalledEngine


class LearnJson(Document, tag_field="document", tag="firesteel.learn/1"):
    """`firesteel engine learn ENGINE VERSION --json`"""

    engine: str
    version: str
    was_known: bool
    flags: int
    variables: int
    path: str | None


class LearnImageJson(Document, tag_field="document", tag="firesteel.learn-image/1"):
    """`firesteel engine learn --image IMAGE --json`"""

    image: str
    digests: tuple[str, ...]
    engine: str
    version: str
    was_known: bool
    flags: int
    variables: int
    entrypoint: tuple[str, ...] | None
    path: str | None


class LearnListJson(Document, tag_field="document", tag="firesteel.learn-list/1"):
    """`firesteel engine learn ENGINE --list --json`"""

    engine: str
    versions: tuple[str, ...]


class LearnRecipesJson(Document, tag_field="document", tag="firesteel.learn-recipes/1"):
    """`firesteel engine learn ENGINE VERSION --recipes --json`"""

    engine: str
    version: str
    recipes: int
    findings: tuple[ReleaseFinding, ...]
    """What a recipe has with this release, and not with its own."""


class EngineJson(Document):
    name: str
    engine: EngineName
    version: str
    program: tuple[str, ...]
    uses_gpu: bool
    made: str
    made_from: str
    made_on: str


class EngineListJson(Document, tag_field="document", tag="firesteel.engine-list/1"):
    """`firesteel engine list --json`"""

    engines: tuple[EngineJson, ...]


class EngineInstallJson(Document, tag_field="document", tag="firesteel.engine-install/1"):
    """`firesteel engine install|build ENGINE --json`"""

    engine: EngineJson


class EngineRemoveJson(Document, tag_field="document", tag="firesteel.engine-remove/1"):
    """`firesteel engine remove NAME --json`"""

    name: str


def engine_json(folder: Path, engine: InstalledEngine) -> EngineJson:
    program = (str(folder / engine.program[0]), *engine.program[1:])
    return EngineJson.of(engine, name=folder.name, program=program)
