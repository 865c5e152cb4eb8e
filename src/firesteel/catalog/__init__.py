"""What we know to work: recipes, the models they serve, the images they run in.

Pure: what ships is package data and counts as code; a user's files come in as (path, text).
It never plans, checks rules or touches the machine. Door: `shipped`, `overlay`, `find`,
`identify`, `other`, `with_learned`, the values `Catalog`, `Recipe`, `Model`, `Image`, `Images`,
and docker's own words.
"""

from firesteel.catalog.catalog import Catalog, find, max_context, overlay, shipped, weights
from firesteel.catalog.docker_options import SWITCHES, container_name, plain_reference
from firesteel.catalog.image import (
    Image,
    Images,
    InspectedImage,
    OtherImage,
    VersionRange,
    identify,
    is_upstream,
    other_image,
    with_learned,
)
from firesteel.catalog.model import Model, ModelFile, Published
from firesteel.catalog.recipe import Asset, Correction, Quality, Recipe, Setting

__all__ = [
    "SWITCHES",
    "Asset",
    "Catalog",
    "Correction",
    "Image",
    "Images",
    "InspectedImage",
    "Model",
    "ModelFile",
    "OtherImage",
    "Published",
    "Quality",
    "Recipe",
    "Setting",
    "VersionRange",
    "container_name",
    "find",
    "identify",
    "is_upstream",
    "max_context",
    "other_image",
    "overlay",
    "plain_reference",
    "shipped",
    "weights",
    "with_learned",
]  # fmt: skip
