"""Recipes for images by name, or from a file of the user's."""

from __future__ import annotations

import re
from pathlib import Path

from firesteel.catalog.image_recipe import ImageRecipe, image_recipe, read_image_recipe
from firesteel.edge.files.text_files import read_text
from firesteel.errors import UsageError


def load_image_recipe(what: str) -> tuple[str, ImageRecipe]:
    """Name and recipe; a file's name is the recipe's, as docker allows it in a tag."""
    if not what.endswith((".yaml", ".yml")):
        return what, image_recipe(what)
    path = Path(what)
    if not re.fullmatch(r"[a-z0-9]+([._-][a-z0-9]+)*", path.stem):
        raise UsageError(
            f"{path.name} cannot name an image: only lower case letters, digits, and dots or dashes between",
            next=f"mv {path} my-image.yaml",
        )
    text = read_text(path, next="firesteel image build --list")
    return path.stem, read_image_recipe(str(path), text)
