"""`image prune`: which images that `image build` made can go. Decides from values; `remove` does it.

Of each recipe the newest stay, and whatever a container has, running or stopped, or the user's catalog names.
Images of failed builds never had a tag; they go unless a container has them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from firesteel.edge.docker.containers import last_line
from firesteel.edge.docker.image_sources import ContainerRuntime
from firesteel.edge.home import Home
from firesteel.errors import FiresteelError
from firesteel.values import Value

_OWN = re.compile(
    r"firesteel/(?P<recipe>[a-z0-9._-]+):(?P<version>[\w.]+)-(?P<day>\d{8})-(?P<pin>[0-9a-f]{1,7})"
)


class OwnImage(Value):
    """An image that `image build` made."""

    id: str
    """`sha256:...`"""
    tag: str | None
    """None: it was refused."""
    created: str
    """As docker says it; of an equal build that docker had in its cache, the first one's."""
    bytes: int

    @property
    def recipe(self) -> str | None:
        match = _OWN.fullmatch(self.tag or "")
        return match["recipe"] if match else None

    @property
    def age(self) -> tuple[str, str]:
        """Sorts by time: the day in the tag, then docker's own."""
        match = _OWN.fullmatch(self.tag or "")
        return match["day"] if match else "", self.created


class ImageStock(Value):
    """The images that `image build` made, and what keeps them from being removed."""

    images: tuple[OwnImage, ...] = ()
    used: frozenset[str] = frozenset()
    """Ids of images that a container has."""
    named: frozenset[str] = frozenset()
    """Tags that the user's catalog names."""


def image_stock(runtime: ContainerRuntime, home: Home) -> ImageStock:
    return ImageStock(_own_images(runtime, home), _used_ids(runtime), _named_tags(home))


def removable(
    images: Iterable[OwnImage], used: frozenset[str], named: frozenset[str], keep: int
) -> tuple[OwnImage, ...]:
    """`used`: ids that containers have; `named`: tags in the catalog; `keep`: how many of each recipe."""
    kept: dict[str | None, int] = {}
    found = []
    for image in sorted(images, key=lambda image: image.age, reverse=True):
        kept[image.recipe] = kept.get(image.recipe, 0) + 1
        is_new = image.recipe is not None and kept[image.recipe] <= keep
        if not is_new and image.id not in used and image.tag not in named:
            found.append(image)
    # A tag and a refused build may be the same image, for equal inputs give an equal one.
    stays = {image.id for image in images if image not in found}
    return tuple(image for image in found if image.tag or image.id not in stays)


def _own_images(runtime: ContainerRuntime, home: Home) -> tuple[OwnImage, ...]:
    """Those with a firesteel tag, and those that a build under FIRESTEEL_HOME made but did not tag."""
    refused = {path.read_text().strip() for path in home.root.glob("builds/*/image-id")}
    code, output = runtime.run("images", "--all", "--no-trunc", "--quiet")
    ids = dict.fromkeys(output.split()) if not code else {}
    found = []
    for id in ids:
        document = _inspected(runtime, id)
        tags = [tag for tag in document.get("RepoTags") or () if _OWN.fullmatch(tag)]
        for tag in tags or ([None] if id in refused and not document.get("RepoTags") else []):
            found.append(OwnImage(id, tag, str(document.get("Created")), int(document.get("Size") or 0)))
    return tuple(found)


def _inspected(runtime: ContainerRuntime, id: str) -> dict[str, Any]:
    code, output = runtime.run("image", "inspect", id)
    document = json.loads(output)[0] if not code else {}
    return document if isinstance(document, dict) else {}


def _used_ids(runtime: ContainerRuntime) -> frozenset[str]:
    """The images of all containers, including stopped ones: `docker start` would need them."""
    code, output = runtime.run("ps", "--all", "--quiet", "--no-trunc")
    if code:
        raise FiresteelError(f"docker does not list its containers: {last_line(output)}", next="docker ps")
    containers = output.split()
    if not containers:
        return frozenset()
    code, output = runtime.run("container", "inspect", "--format", "{{.Image}}", *containers)
    if code:  # one ended meanwhile: what is in use is not known, so nothing may go
        raise FiresteelError(f"docker did not describe its containers: {last_line(output)}", next="try again")
    return frozenset(output.split())


def _named_tags(home: Home) -> frozenset[str]:
    """What the user's catalog names, in whatever file."""
    texts = [path.read_text("utf-8", errors="replace") for path in home.catalog.rglob("*.yaml")]
    return frozenset(match[0] for text in texts for match in _OWN.finditer(text))


def remove(runtime: ContainerRuntime, image: OwnImage) -> None:
    """By tag, which leaves the same image under another tag; docker itself refuses one that runs.

    A tag that names another image by now stays, and what is gone already needs no removal.
    """
    if _inspected(runtime, image.tag or image.id).get("Id") != image.id:
        return
    code, output = runtime.run("image", "rm", image.tag or image.id)
    if code:
        raise FiresteelError(
            f"docker did not remove {image.tag or image.id[:19]}: {last_line(output)}", next="docker ps --all"
        )
