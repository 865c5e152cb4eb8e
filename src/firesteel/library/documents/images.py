"""What `image` prints with `--json`."""

from __future__ import annotations

from firesteel.catalog.image import ImageProblem
from firesteel.library.documents.document import Document
from firesteel.workshop.images.contents import Component, GpuLibrary, Part
from firesteel.workshop.images.factory.policy import ReleaseProgress
from firesteel.workshop.images.inspect import RecipeVerdict
from firesteel.workshop.images.report import ImageLayer, StartSettings
from firesteel.workshop.images.retention import OwnImage


class ImageInspectJson(Document, tag_field="document", tag="firesteel.image-inspect/1"):
    """`firesteel image inspect REF --json`"""

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


class ImageRecipeJson(Document):
    name: str
    title: str
    status: str


class ImageRecipesJson(Document, tag_field="document", tag="firesteel.image-recipes/1"):
    """`firesteel image build --list --json`"""

    recipes: tuple[ImageRecipeJson, ...]


class ImagePruneJson(Document, tag_field="document", tag="firesteel.image-prune/1"):
    """`firesteel image prune --json`"""

    removed: bool
    """False: they are only listed."""
    images: tuple[OwnImage, ...]
    kept: int


class FactoryImageJson(Document):
    name: str
    looked: str | None
    """When, in UTC; None: never."""
    current: str | None
    """The release that was promoted last."""
    releases: tuple[ReleaseProgress, ...]
    done: tuple[str, ...]
    """What this run did, in order."""


class ImageWatchJson(Document, tag_field="document", tag="firesteel.image-watch/1"):
    """`firesteel image watch --json`"""

    images: tuple[FactoryImageJson, ...]
