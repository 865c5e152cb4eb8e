"""What is known to work: recipes, the models they serve, the images they run in.

Finds recipes by name and identifies images by their references.
Pure: shipped files are package data and count as code; a user's files come in as (path, text).
Never plans, checks rules or does I/O.
"""

from typing import TYPE_CHECKING

from firesteel.lazy import lazy_exports

if TYPE_CHECKING:
    from firesteel.catalog.catalog import Catalog, find, max_context, overlay, shipped, weights
    from firesteel.catalog.docker_options import SWITCHES, container_name, plain_reference
    from firesteel.catalog.image import (
        Image,
        ImageProblem,
        Images,
        VersionRange,
        identify,
        is_upstream,
        other_image,
        with_learned,
    )
    from firesteel.catalog.inspection import ImageInspection, with_inspections
    from firesteel.catalog.model import Model
    from firesteel.catalog.recipe import Asset, Recipe
    from firesteel.catalog.request_settings import RecipeRequests

__all__ = [
    "SWITCHES", "Asset", "Catalog", "Image", "ImageInspection", "ImageProblem", "Images", "Model", "Recipe",
    "RecipeRequests", "VersionRange", "container_name", "find", "identify", "is_upstream", "max_context",
    "other_image", "overlay", "plain_reference", "shipped", "weights", "with_inspections", "with_learned",
]  # fmt: skip

if not TYPE_CHECKING:  # a type checker would take any name for one of these
    __getattr__ = lazy_exports(
        __name__,
        {
            "catalog": ("Catalog", "find", "max_context", "overlay", "shipped", "weights"),
            "docker_options": ("SWITCHES", "container_name", "plain_reference"),
            "image": (
                "Image", "ImageProblem", "Images", "VersionRange", "identify", "is_upstream", "other_image",
                "with_learned",
            ),
            "inspection": ("ImageInspection", "with_inspections"),
            "model": ("Model",),
            "recipe": ("Asset", "Recipe"),
            "request_settings": ("RecipeRequests",),
        },
    )  # fmt: skip
