"""The policy of the factory: a file of the user's, read with a strict schema.

images:
  llamacpp:
    recipe: llamacpp-git.yaml
    releases: {git: https://github.com/ggml-org/llama.cpp}
    tags: b(\\d+)
    every: 1d
    keep: 2
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from firesteel import values
from firesteel.bench.upgrade.trial import AnswerPolicy
from firesteel.catalog.image_recipe import BuildStage, BuildStep, ImageRecipe, PinnedSource
from firesteel.edge.docker.registry import parse_reference
from firesteel.edge.files import read_text
from firesteel.edge.records import load_image_recipe
from firesteel.errors import UsageError
from firesteel.service_settings import seconds
from firesteel.values import NOT_EMPTY, Expand, FileValue, PositiveInt, Regex, Value, replace

_SAFE_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
"""A tag comes from outside and ends in a Dockerfile."""
_NAME = re.compile(r"[a-z0-9]+([._-][a-z0-9]+)*")
Seconds = Annotated[int, Expand(seconds)]


class ReleaseSource(FileValue, kw_only=True):
    """Where releases appear: one of the two."""

    git: str | None = None
    registry: str | None = None

    def __post_init__(self) -> None:
        if bool(self.git) == bool(self.registry):
            raise ValueError("needs one of `git` and `registry`")
        if (self.git or "").startswith("-"):
            raise ValueError("is no address of a git repository")

    @property
    def kind(self) -> Literal["git", "registry"]:
        return "git" if self.git else "registry"


class ImagePolicy(FileValue, kw_only=True):
    recipe: str
    """A recipe for images: its name, or a file beside this one."""
    releases: ReleaseSource
    tags: Regex
    """A pattern for whole tags; its first group, or else all of the tag, is the version."""
    every: Seconds = 86400
    """How often to look."""
    keep: PositiveInt = 2
    """So many promoted images stay."""
    answers: AnswerPolicy = "equal"
    budget: Seconds = 240
    """For measuring the candidate beside the current image."""


class FactoryFile(FileValue, kw_only=True):
    images: Annotated[dict[str, ImagePolicy], NOT_EMPTY]

    def __post_init__(self) -> None:
        for name in self.images:
            if not _NAME.fullmatch(name):
                raise ValueError(
                    f"`{name[:60]}` cannot name an image: lower case letters, digits, dots, dashes"
                )


class UpstreamRelease(Value):
    tag: str
    version: str
    pin: str
    """The commit, or the digest in the registry; empty until it is asked for."""

    @property
    def order(self) -> tuple[int, ...]:
        """Sorts releases by the numbers of their tags: v0.9.1 before v0.10.0."""
        return tuple(int(number) for number in re.findall(r"\d+", self.tag))


def read_policies(path: Path) -> Mapping[str, ImagePolicy]:
    text = read_text(path, next="docs/images.md has an example of a factory.yaml")
    return values.load(str(path), text, FactoryFile).images


def policy_recipe(path: Path, policy: ImagePolicy) -> ImageRecipe:
    """The recipe of a policy; a file is beside the policy's own."""
    what = policy.recipe
    if what.endswith((".yaml", ".yml")):
        what = str(path.parent / what)
    return load_image_recipe(what)[1]


def wanted_releases(policy: ImagePolicy, tags: Mapping[str, str]) -> tuple[UpstreamRelease, ...]:
    """Those of all tags (with their pins) that the policy wants, newest first."""
    found = []
    for tag, pin in tags.items():
        match = re.fullmatch(policy.tags, tag) if _SAFE_TAG.fullmatch(tag) else None
        if match:
            found.append(UpstreamRelease(tag, (match[1] if match.groups() else None) or tag, pin))
    return tuple(sorted(found, key=lambda release: release.order, reverse=True))


def with_release(recipe: ImageRecipe, source: ReleaseSource, release: UpstreamRelease) -> ImageRecipe:
    """The recipe for another release: the commit or the base image, and the version, wherever they stand."""
    if source.registry:
        return _on_base(recipe, source.registry, release)
    pins = [pin for pin in recipe.pins if pin.commit]
    if not pins:
        raise UsageError(
            f"no pin of the recipe has a `commit` that {release.tag} could replace",
            next="pins: [{name: ..., url: ..., commit: ...}] in the recipe, or releases: {registry: ...}",
        )
    old = pins[0].commit or ""
    changes = {old: release.pin, recipe.version: release.version}
    stages = tuple(
        replace(stage, steps=tuple(_changed(step, changes) for step in stage.steps))
        for stage in recipe.stages
    )
    own = tuple(replace(pin, commit=release.pin) if pin is pins[0] else pin for pin in recipe.pins)
    return replace(recipe, version=release.version, pins=own, stages=stages)


def _on_base(recipe: ImageRecipe, registry: str, release: UpstreamRelease) -> ImageRecipe:
    def moved(stage: BuildStage) -> BuildStage:
        if repository_of(stage.base) != repository_of(registry):
            return stage
        return replace(stage, base=f"{registry}:{release.tag}", digest=release.pin)

    stages = tuple(moved(stage) for stage in recipe.stages)
    if stages == recipe.stages and all(stage.digest != release.pin for stage in stages):
        raise UsageError(f"no stage of the recipe has a base of {registry}", next=f"base: {registry}:TAG")
    # First, for the image's tag: two releases of one day have different ones.
    based = PinnedSource(
        name=release.tag,
        url=f"docker:{registry}",
        image=f"{registry}:{release.tag}",
        sha256=release.pin.removeprefix("sha256:"),
    )
    return replace(recipe, version=release.version, stages=stages, pins=(based, *recipe.pins))


def repository_of(reference: str) -> tuple[str, str] | None:
    try:
        address = parse_reference(reference)
    except UsageError:  # `scratch`, or the name of a stage, which no registry has
        return None
    return address.host, address.repository


def _changed(step: BuildStep, changes: Mapping[str, str]) -> BuildStep:
    run, copy = step.run, step.copy
    for old, new in changes.items():
        whole = re.compile(rf"(?<![\w.]){re.escape(old)}(?![\w]|\.\d)")
        # Tags and commits hold no backslash, which would be a reference to a group.
        run = whole.sub(new, run) if run else run
        copy = whole.sub(new, copy) if copy else copy
    return replace(step, run=run, copy=copy)
