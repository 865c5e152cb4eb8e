"""What the factory does next, and what follows from a result. Pure: values in, values out.

decide(policy, state, stock, now_s)              the next action; None: nothing to do until the next look
begin(state, action)                             the state to write before it
conclude(state, action, result, now_s)           the state after it
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from firesteel.images.factory.policy import ImagePolicy, UpstreamRelease
from firesteel.images.retention import OwnImage, removable
from firesteel.values import Value, replace

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
    """Of a promoted or refused one."""
    figures: tuple[str, ...] = ()
    """Of its comparison with the image that was current then."""
    image_id: str = ""
    image_tag: str = ""
    """Once it is promoted."""
    folder: str = ""
    """Of its build."""
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


class ImageStock(Value):
    """What docker has, and what of it is needed."""

    images: tuple[OwnImage, ...] = ()
    used: frozenset[str] = frozenset()
    """Ids of images that a container has."""
    named: frozenset[str] = frozenset()
    """Tags that the user's catalog names."""


# --- actions and results ---


class LookUpstream(Value):
    pass


class ReleaseAction(Value):
    do: Literal["build", "compare", "promote", "give up"]
    """Giving up needs nobody: it is only written down."""
    tag: str


class RemoveImage(Value):
    image: OwnImage


FactoryAction = LookUpstream | ReleaseAction | RemoveImage


class ActionResult(Value):
    """Of any action; the fields that do not concern it are empty."""

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
    """Of this policy's images only: others have their own policy, or none."""
    refused = {found.image_id for found in state.releases if found.image_id}
    own = [image for image in stock.images if (image.recipe == name if image.tag else image.id in refused)]
    return removable(own, stock.used | state.candidates, stock.named, policy.keep)


# --- what follows ---


def begin(state: FactoryState, action: FactoryAction) -> FactoryState:
    if not isinstance(action, ReleaseAction) or action.do == "give up":
        return state
    found = state.release(action.tag)
    return _with(state, replace(found, attempts=found.attempts + 1))


def conclude(state: FactoryState, action: FactoryAction, result: ActionResult, now_s: float) -> FactoryState:
    if isinstance(action, LookUpstream):
        return replace(state, looked_s=now_s, releases=_merged(state.releases, result.found))
    if isinstance(action, RemoveImage):
        return state
    found = replace(state.release(action.tag), attempts=0, ended_s=now_s)
    if action.do == "give up":
        given_up = f"the factory ended {_MAX_ATTEMPTS} times in the middle of it"
        return _with(state, replace(found, stage="refused", why=(given_up,)))
    if not result.accepted:
        figures = result.figures or found.figures
        image = result.image_id or found.image_id
        return _with(state, replace(found, stage="refused", why=result.why, figures=figures, image_id=image))
    if action.do == "build":
        found = replace(found, stage="built", image_id=result.image_id, folder=result.folder)
    elif action.do == "compare":
        found = replace(found, stage="compared", why=result.why, figures=result.figures)
    else:
        why = found.why or ("the first image of this policy",)
        found = replace(found, stage="promoted", why=why, image_tag=result.image_tag)
    return _with(state, found)


def again(state: FactoryState, tag: str) -> FactoryState | None:
    """Tries a refused release once more; None: there is none of that tag."""
    found = next((one for one in state.releases if one.tag == tag and one.stage == "refused"), None)
    return _with(state, ReleaseProgress(tag, found.version, found.pin)) if found else None


def _with(state: FactoryState, changed: ReleaseProgress) -> FactoryState:
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
