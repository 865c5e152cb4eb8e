"""What `recipe` prints with `--json`."""

from __future__ import annotations

from typing import Literal

from firesteel.catalog.catalog import RefusedRecipe
from firesteel.library.documents.document import Document
from firesteel.library.documents.proposals import PlanJson


class RecipeNewJson(Document, kw_only=True):
    """`firesteel recipe new NAME --json`"""

    document: Literal["firesteel.recipe-new/1"] = "firesteel.recipe-new/1"
    name: str
    text: str
    path: str | None
    """Where it was written; null: nowhere."""


class RecipeTestJson(Document, kw_only=True):
    """`firesteel recipe test NAME --json`"""

    document: Literal["firesteel.recipe-test/1"] = "firesteel.recipe-test/1"
    name: str
    path: str
    more_than_flags: tuple[str, ...]
    """What a recipe by others may not have, and this one has."""
    plan: PlanJson
    passed: bool


class RecipeShareJson(Document, kw_only=True):
    """`firesteel recipe share NAME --json`"""

    document: Literal["firesteel.recipe-share/1"] = "firesteel.recipe-share/1"
    name: str
    files: tuple[str, ...]
    more_than_flags: tuple[str, ...]
    """Why others must adopt it by name, after reading it."""


class RecipeListJson(Document, kw_only=True):
    """`firesteel recipe list --json`"""

    document: Literal["firesteel.recipe-list/1"] = "firesteel.recipe-list/1"
    own: tuple[str, ...]
    others: tuple[str, ...]
    refused: tuple[RefusedRecipe, ...]


class RecipeAdoptJson(Document, kw_only=True):
    """`firesteel recipe adopt NAME --json`"""

    document: Literal["firesteel.recipe-adopt/1"] = "firesteel.recipe-adopt/1"
    name: str
    path: str
    more_than_flags: tuple[str, ...]
