"""Recipes for images: what is built from which pinned sources, in which stages, each step with its reason.

A YAML file in `data/image_recipes`. `render.dockerfile` writes it as a Dockerfile, `firesteel image build`
builds and proves it. A base without a digest is pinned when it is built, to what its registry has then.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Literal

from firesteel import shipped_data, values
from firesteel.errors import UsageError
from firesteel.facts.evidence import Sources
from firesteel.launch import EngineName
from firesteel.values import NOT_EMPTY, ExpandText, FileValue


def _one_line(text: str) -> str:
    if "\n" in text:
        raise ValueError("should be one line: a Dockerfile ends a comment or a command there")
    return text


Line = Annotated[str, ExpandText(_one_line)]


class PinnedSource(FileValue, kw_only=True):
    """What is compiled, installed or built on: a commit, a file with its digest, an image with its digest."""

    name: str
    url: str
    commit: str | None = None
    package: str | None = None
    """A PyPI requirement with one version."""
    image: str | None = None
    """In a registry; `sha256` is the digest of its manifest."""
    sha256: str | None = None

    def __post_init__(self) -> None:
        is_pinned_image = bool(self.image and self.sha256)
        if not (self.commit or is_pinned_image or (self.package and "==" in self.package)):
            raise ValueError("needs a `commit`, a `package` with its version, or an `image` with its sha256")

    @property
    def pin(self) -> str:
        return self.commit or self.sha256 or (self.package or "").partition("==")[2]


class SourcePatch(FileValue, kw_only=True):
    """A change that is merged upstream and not released."""

    pull_request: Line
    url: Line
    """Of the patch file: https://github.com/ORG/NAME/commit/COMMIT.patch"""
    sha256: Line
    """Of that file."""
    folder: Line
    """The checkout."""


class BuildVariable(FileValue, kw_only=True):
    value: Line
    why: Line


class BuildStep(FileValue, kw_only=True):
    """One of `run`, `copy` and `patch`."""

    why: Line
    run: str | None = None
    cache: tuple[Line, ...] = ()
    """Folders that BuildKit keeps between builds."""
    copy: Line | None = None
    """What follows COPY."""
    patch: SourcePatch | None = None

    def __post_init__(self) -> None:
        if sum(bool(what) for what in (self.run, self.copy, self.patch)) != 1:
            raise ValueError("needs one of `run`, `copy` and `patch`")


class BuildStage(FileValue, kw_only=True):
    name: Line
    base: Line
    """An image with its tag, `scratch`, or the name of an earlier stage."""
    digest: str | None = None
    steps: tuple[BuildStep, ...] = ()
    env: dict[str, BuildVariable] = {}


class LeftOut(FileValue, kw_only=True):
    what: Line
    why: Line


class ImageRecipe(FileValue, kw_only=True):
    title: Line
    engine: EngineName
    version: Line
    """Of the engine; `here`: of the one that `firesteel engine build` made on this machine."""
    status: Literal["measured", "untried"]
    gpu: bool
    """It must have machine code for a GB10 in the engine's own libraries."""
    platform: Line
    """`linux/arm64`; `here`: this machine's."""
    pins: tuple[PinnedSource, ...]
    stages: Annotated[tuple[BuildStage, ...], NOT_EMPTY]
    entrypoint: tuple[Line, ...]
    left_out: tuple[LeftOut, ...] = ()
    prove: Line
    """What it has to serve before it gets its tag: a recipe, or a checkpoint where there is no GPU."""
    python: Line | None = None
    """Of the base, as 3.11: wheels that a step copies from `wheels/` are fetched for it."""
    products: tuple[Literal["bf16", "fp8", "nvfp4"], ...] = ()
    """Formats in which its torch has to multiply matrices on this GPU."""
    sources: Sources
    note: Line | None = None


def image_recipe_names() -> tuple[str, ...]:
    return tuple(PurePosixPath(path).stem for path in shipped_data.names("image_recipes"))


def image_recipe(name: str) -> ImageRecipe:
    """A shipped one by its name; raises UsageError."""
    if name not in image_recipe_names():
        raise UsageError(
            f"there is no recipe for an image `{name[:60]}`",
            next=f"one of {', '.join(image_recipe_names())}, or a file: ./NAME.yaml",
        )
    return shipped_data.load(f"image_recipes/{name}.yaml", ImageRecipe)


def read_image_recipe(path: str, text: str) -> ImageRecipe:
    return values.load(path, text, ImageRecipe)
