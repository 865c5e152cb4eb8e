"""`firesteel learn --json`"""

from __future__ import annotations

from typing import Literal

from firesteel.library.documents.document import Document
from firesteel.rules.checker import ReleaseFinding


class LearnJson(Document, kw_only=True):
    """`firesteel learn ENGINE VERSION --json`"""

    document: Literal["firesteel.learn/1"] = "firesteel.learn/1"
    engine: str
    version: str
    was_known: bool
    flags: int
    variables: int
    path: str | None


class LearnImageJson(Document, kw_only=True):
    """`firesteel learn --image IMAGE --json`"""

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
    """`firesteel learn ENGINE --list --json`"""

    document: Literal["firesteel.learn-list/1"] = "firesteel.learn-list/1"
    engine: str
    versions: tuple[str, ...]


class LearnRecipesJson(Document, kw_only=True):
    """`firesteel learn ENGINE VERSION --recipes --json`"""

    document: Literal["firesteel.learn-recipes/1"] = "firesteel.learn-recipes/1"
    engine: str
    version: str
    recipes: int
    findings: tuple[ReleaseFinding, ...]
    """What a recipe has with this release, and not with its own."""
