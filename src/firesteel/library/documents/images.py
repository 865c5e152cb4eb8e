"""What `image` prints with `--json`."""

from __future__ import annotations

from typing import Literal

from firesteel.catalog.image import ImageProblem
from firesteel.library.documents.document import Document
from firesteel.workshop.images.built import MatrixProduct
from firesteel.workshop.images.contents import Component, GpuLibrary, Part
from firesteel.workshop.images.factory.policy import ReleaseProgress
from firesteel.workshop.images.inspect import RecipeVerdict
from firesteel.workshop.images.report import ImageDifference, ImageLayer, StartSettings
from firesteel.workshop.images.retention import OwnImage


class ImageInspectJson(Document, kw_only=True):
    """`firesteel image inspect REF --json`"""

    document: Literal["firesteel.image-inspect/1"] = "firesteel.image-inspect/1"
    reference: str
    source: str
    digests: tuple[str, ...]
    on: str
    architecture: str | None
    platforms: tuple[str, ...]
    base: Component | None
    cuda: Component | None
    driver: Component | None
    engine: str | None
    version: str | None
    components: tuple[Component, ...]
    start: StartSettings
    gpu_libraries: tuple[GpuLibrary, ...]
    problems: tuple[ImageProblem, ...]
    recipes: tuple[RecipeVerdict, ...]
    layers: tuple[ImageLayer, ...]
    parts: tuple[Part, ...]
    waste: tuple[Part, ...]
    files: int
    bytes: int
    unread_layers: int
    unread_bytes: int
    unreadable: tuple[str, ...]
    saved: str | None
    """The file that `check`, `plan` and `up` read it from; None: it was read in part, or has no digest."""


class ImageCompareJson(Document, kw_only=True):
    """`firesteel image inspect REF --compare OTHER --json`"""

    document: Literal["firesteel.image-compare/1"] = "firesteel.image-compare/1"
    first: str
    second: str
    differences: tuple[ImageDifference, ...]
    first_bytes: int
    second_bytes: int
    parts: tuple[tuple[str, int], ...]
    new_problems: tuple[str, ...]
    gone_problems: tuple[str, ...]


class ImageRecipeJson(Document, kw_only=True):
    name: str
    title: str
    status: str


class ImageRecipesJson(Document, kw_only=True):
    """`firesteel image build --list --json`"""

    document: Literal["firesteel.image-recipes/1"] = "firesteel.image-recipes/1"
    recipes: tuple[ImageRecipeJson, ...]


class ImageBuildJson(Document, kw_only=True):
    """`firesteel image build RECIPE --json`"""

    document: Literal["firesteel.image-build/1"] = "firesteel.image-build/1"
    tag: str
    id: str
    engine: str
    version: str
    bytes: int
    seconds: float
    verified: tuple[str, ...]
    products: tuple[MatrixProduct, ...]
    folder: str


class ImagePruneJson(Document, kw_only=True):
    """`firesteel image prune --json`"""

    document: Literal["firesteel.image-prune/1"] = "firesteel.image-prune/1"
    removed: bool
    """False: they are only listed."""
    images: tuple[OwnImage, ...]
    kept: int


class FactoryImageJson(Document, kw_only=True):
    name: str
    looked: str | None
    """When, in UTC; None: never."""
    current: str | None
    """The release that was promoted last."""
    releases: tuple[ReleaseProgress, ...]
    done: tuple[str, ...]
    """What this run did, in order."""


class ImageWatchJson(Document, kw_only=True):
    """`firesteel image watch --json`"""

    document: Literal["firesteel.image-watch/1"] = "firesteel.image-watch/1"
    images: tuple[FactoryImageJson, ...]
