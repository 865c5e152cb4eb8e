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
        is_preview,
        is_upstream,
        other_image,
        with_learned,
    )
    from firesteel.catalog.inspection import ImageInspection, with_inspections
    from firesteel.catalog.model import Model
    from firesteel.catalog.recipe import Asset, Recipe
    from firesteel.catalog.request_settings import RecipeRequests
else:  # a type checker would take any name for one of these
    __getattr__ = lazy_exports(__name__)
