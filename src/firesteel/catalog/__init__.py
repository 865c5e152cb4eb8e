"""What we know to work: recipes, the models they serve, the images they run in.

Pure: what ships is package data and counts as code; a user's files come in as (path, text).
It never plans, checks rules or touches the machine. Door: `shipped`, `overlay`, `find`, `launch`,
`contain`, `identify`, and the values `Catalog`, `Recipe`, `Model`, `Image`, `Images`.
"""

from firesteel.catalog.catalog import PORT, Catalog, contain, find, launch, overlay, shipped
from firesteel.catalog.image import Image, Images, identify
from firesteel.catalog.model import Model, ModelFile, Published
from firesteel.catalog.recipe import Correction, Quality, Recipe, Setting

__all__ = [
    "PORT", "Catalog", "Correction", "Image", "Images", "Model", "ModelFile", "Published", "Quality",
    "Recipe", "Setting", "contain", "find", "identify", "launch", "overlay", "shipped",
]  # fmt: skip
