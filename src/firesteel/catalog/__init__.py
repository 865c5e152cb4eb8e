"""What we know to work: recipes, the models they serve, the images they run in.

Pure: what ships is package data and counts as code; a user's files come in as (path, text).
It never plans, checks rules or touches the machine. Door: `shipped`, `overlay`, `find`, `launch`,
`contain`, `identify`, `other`, `with_learned`, the values `Catalog`, `Recipe`, `Model`, `Image`, `Images`,
and docker's own words.
"""

from firesteel.catalog.catalog import PORT, Catalog, contain, find, launch, overlay, shipped, weights
from firesteel.catalog.docker_words import SWITCHES, container_name, plain_reference
from firesteel.catalog.image import (
    Image,
    Images,
    Other,
    Seen,
    VersionRange,
    identify,
    is_upstream,
    other,
    with_learned,
)
from firesteel.catalog.model import Model, ModelFile, Published
from firesteel.catalog.recipe import Asset, Correction, Quality, Recipe, Setting

__all__ = [
    "PORT", "SWITCHES", "Asset", "Catalog", "Correction", "Image", "Images", "Model", "ModelFile", "Other",
    "Published", "Quality", "Recipe", "Seen", "Setting", "VersionRange", "contain", "container_name",
    "find", "identify", "is_upstream", "launch", "other", "overlay", "plain_reference", "shipped",
    "weights", "with_learned",
]  # fmt: skip
