r"""What the factory does next, and what follows from a result. Pure: values in, values out.

    decide(policy, state, stock, now_s)              the next action; None: nothing to do until the next look
    begin(state, action)                             the state to write before it
    with_result(state, action, result, now_s)        the state after it

The policy is a file of the user's, read with a strict schema:

    images:
      llamacpp:
        recipe: llamacpp-git.yaml
        releases: {git: https://github.com/ggml-org/llama.cpp}
        tags: b(\d+)
        every: 1d
        keep: 2
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal

from packaging.version import InvalidVersion, Version

from firesteel import values
from firesteel.bench.upgrade.trial import AnswerPolicy
from firesteel.catalog.image_recipe import BuildStage, BuildStep, ImageRecipe, PinnedSource
from firesteel.edge.docker.registry import parse_reference
from firesteel.edge.files import read_text
from firesteel.edge.records import load_image_recipe
from firesteel.errors import UsageError
from firesteel.service_settings import seconds
from firesteel.values import NOT_EMPTY, Expand, FileValue, PositiveInt, Regex, Value, replace
from firesteel.workshop.images.retention import ImageStock, OwnImage, removable

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
            raise ValueError("is not the address of a git repository")

    @property
    def kind(self) -> Literal["git", "registry"]:
        return "git" if self.git else "registry"


class ImagePolicy(FileValue, kw_only=True):
    recipe: str
    """A recipe for images: its name, or a file next to this one."""
    releases: ReleaseSource
    tags: Regex
    """A pattern for whole tags; its first group, or else all of the tag, is the version."""
    every: Seconds = 86400
    """How often to look."""
    keep: PositiveInt = 2
    """How many promoted images are kept."""
    answers: AnswerPolicy = "equal"
    budget: Seconds = 240
    """Seconds for measuring the candidate against the current image."""


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
    def order(self) -> Version:
        """Sorts releases: v0.9.1rc1 before v0.9.1 before v0.10.0. If a tag is no version: by its numbers."""
        for text in (self.tag, self.version):
            try:
                return Version(text)
            except InvalidVersion:
                continue
        return Version(".".join(re.findall(r"[0-9]+", self.tag)) or "0")


def read_policies(path: Path) -> Mapping[str, ImagePolicy]:
    text = read_text(path, next="docs/images.md has an example of a factory.yaml")
    return values.load(str(path), text, FactoryFile).images


def policy_recipe(path: Path, policy: ImagePolicy) -> ImageRecipe:
    """The recipe of a policy; a file is next to the policy's own."""
    what = policy.recipe
    if what.endswith((".yaml", ".yml")):
        what = str(path.parent / what)
    return load_image_recipe(what)[1]


def wanted_releases(policy: ImagePolicy, tags: Mapping[str, str]) -> tuple[UpstreamRelease, ...]:
    """Those of all tags (with their pins) that the policy selects, newest first."""
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
    replaced = _pin_of(recipe, source.git or "", release)
    changes = {replaced.commit or "": release.pin, recipe.version: release.version}
    stages = tuple(
        replace(stage, steps=tuple(_changed(step, changes) for step in stage.steps))
        for stage in recipe.stages
    )
    own = tuple(replace(pin, commit=release.pin) if pin is replaced else pin for pin in recipe.pins)
    return replace(recipe, version=release.version, pins=own, stages=stages)


def _pin_of(recipe: ImageRecipe, repository: str, release: UpstreamRelease) -> PinnedSource:
    """The pin whose commit a release of this repository replaces. A single one is meant in any case: the
    releases may be read from a mirror."""
    pins = [pin for pin in recipe.pins if pin.commit]
    if not pins:
        raise UsageError(
            f"no pin of the recipe has a `commit` that {release.tag} could replace",
            next="pins: [{name: ..., url: ..., commit: ...}] in the recipe, or releases: {registry: ...}",
        )
    same = [pin for pin in pins if _address(pin.url) == _address(repository)]
    if not same and len(pins) > 1:
        raise UsageError(
            f"no pin of the recipe has the url {repository}: {', '.join(pin.url for pin in pins)}",
            next="releases: {git: ...} with the `url` of one of them",
        )
    return (same or pins)[0]


def _address(url: str) -> str:
    return url.rstrip("/").removesuffix(".git")


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


Stage = Literal["seen", "built", "compared", "promoted", "refused"]
_MAX_ATTEMPTS = 3
_MAX_REMEMBERED = 200
"""Releases in the state; older ones that were refused or never tried are forgotten."""


class ReleaseProgress(Value):
    """A release and how far it has come."""

    tag: str
    version: str
    pin: str
    stage: Stage = "seen"
    why: tuple[str, ...] = ()
    """Why it was promoted or refused."""
    figures: tuple[str, ...] = ()
    """Figures of its comparison with the image that was current then."""
    image_id: str = ""
    image_tag: str = ""
    """Set when it is promoted."""
    folder: str = ""
    """The folder of its build."""
    attempts: int = 0
    """Actions at this stage that were begun and did not end."""
    ended_s: float = 0.0

    @property
    def release(self) -> UpstreamRelease:
        return UpstreamRelease(self.tag, self.version, self.pin)


class FactoryState(Value):
    looked_s: float | None = None
    releases: tuple[ReleaseProgress, ...] = ()
    """Newest first."""

    @property
    def current(self) -> ReleaseProgress | None:
        """The promoted one that was promoted last."""
        promoted = [found for found in self.releases if found.stage == "promoted"]
        return max(promoted, key=lambda found: found.ended_s, default=None)

    @property
    def candidates(self) -> frozenset[str]:
        """Ids of images that wait for their comparison or promotion: nothing else has them yet."""
        return frozenset(found.image_id for found in self.releases if found.stage in ("built", "compared"))

    def release(self, tag: str) -> ReleaseProgress:
        return next(found for found in self.releases if found.tag == tag)


# --- actions and results ---


class LookUpstream(Value):
    pass


class ReleaseAction(Value):
    do: Literal["build", "compare", "promote", "give up"]
    """Giving up has no effects: it is only written down."""
    tag: str


class RemoveImage(Value):
    image: OwnImage


FactoryAction = LookUpstream | ReleaseAction | RemoveImage


class ActionResult(Value):
    """The result of any action; fields that do not apply to it are empty."""

    found: tuple[UpstreamRelease, ...] = ()
    image_id: str = ""
    image_tag: str = ""
    folder: str = ""
    accepted: bool = True
    why: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()


# --- decisions ---


def decide(
    policy: ImagePolicy, state: FactoryState, stock: ImageStock, now_s: float, name: str
) -> FactoryAction | None:
    if state.looked_s is None or now_s - state.looked_s >= policy.every:
        return LookUpstream()
    candidate = _candidate(state)
    if candidate is not None:
        return _advance(candidate, state.current)
    gone = _removable(policy, state, stock, name)
    return RemoveImage(gone[0]) if gone else None


def _candidate(state: FactoryState) -> ReleaseProgress | None:
    """One that is under way, or else the newest that is newer than the current one."""
    under_way = [found for found in state.releases if found.stage in ("built", "compared")]
    current = state.current
    newer = [
        found
        for found in state.releases
        if found.stage == "seen" and (current is None or found.release.order > current.release.order)
    ]
    return next(iter([*under_way, *newer]), None)


def _advance(candidate: ReleaseProgress, current: ReleaseProgress | None) -> ReleaseAction:
    if candidate.attempts >= _MAX_ATTEMPTS:
        return ReleaseAction("give up", candidate.tag)
    if candidate.stage == "seen":
        return ReleaseAction("build", candidate.tag)
    if candidate.stage == "built" and current is not None:
        return ReleaseAction("compare", candidate.tag)
    return ReleaseAction("promote", candidate.tag)


def _removable(
    policy: ImagePolicy, state: FactoryState, stock: ImageStock, name: str
) -> tuple[OwnImage, ...]:
    """Images of this policy that can be removed; others have their own policy, or none."""
    refused = {found.image_id for found in state.releases if found.image_id}
    own = [image for image in stock.images if (image.recipe == name if image.tag else image.id in refused)]
    return removable(own, stock.used | state.candidates, stock.named, policy.keep)


# --- what follows ---


def begin(state: FactoryState, action: FactoryAction) -> FactoryState:
    if not isinstance(action, ReleaseAction) or action.do == "give up":
        return state
    found = state.release(action.tag)
    return _with_progress(state, replace(found, attempts=found.attempts + 1))


def with_result(
    state: FactoryState, action: FactoryAction, result: ActionResult, now_s: float
) -> FactoryState:
    if isinstance(action, LookUpstream):
        return replace(state, looked_s=now_s, releases=_merged(state.releases, result.found))
    if isinstance(action, RemoveImage):
        return state
    found = replace(state.release(action.tag), attempts=0, ended_s=now_s)
    if action.do == "give up":
        given_up = f"the factory ended {_MAX_ATTEMPTS} times in the middle of it"
        return _with_progress(state, replace(found, stage="refused", why=(given_up,)))
    if not result.accepted:
        figures = result.figures or found.figures
        image = result.image_id or found.image_id
        return _with_progress(
            state, replace(found, stage="refused", why=result.why, figures=figures, image_id=image)
        )
    if action.do == "build":
        found = replace(found, stage="built", image_id=result.image_id, folder=result.folder)
    elif action.do == "compare":
        found = replace(found, stage="compared", why=result.why, figures=result.figures)
    else:
        why = found.why or ("the first image of this policy",)
        found = replace(found, stage="promoted", why=why, image_tag=result.image_tag)
    return _with_progress(state, found)


def with_retry(state: FactoryState, tag: str) -> FactoryState | None:
    """Tries a refused release once more; None: there is none of that tag."""
    found = next((one for one in state.releases if one.tag == tag and one.stage == "refused"), None)
    return _with_progress(state, ReleaseProgress(tag, found.version, found.pin)) if found else None


def _with_progress(state: FactoryState, changed: ReleaseProgress) -> FactoryState:
    releases = tuple(changed if found.tag == changed.tag else found for found in state.releases)
    return replace(state, releases=releases)


def _merged(
    known: Iterable[ReleaseProgress], found: Iterable[UpstreamRelease]
) -> tuple[ReleaseProgress, ...]:
    """A tag that moved upstream is a new release, unless it was promoted or is under way."""
    by_tag = {one.tag: one for one in known}
    for release in found:
        old = by_tag.get(release.tag)
        is_moved = old is not None and old.pin != release.pin and old.stage in ("seen", "refused")
        if old is None or is_moved:
            by_tag[release.tag] = ReleaseProgress(release.tag, release.version, release.pin)
    ordered = sorted(by_tag.values(), key=lambda one: one.release.order, reverse=True)
    needed = [one for one in ordered if one.stage not in ("seen", "refused")]
    return tuple(one for one in ordered if one in needed or one in ordered[:_MAX_REMEMBERED])
