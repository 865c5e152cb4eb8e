"""Runs a policy: decides and acts until there is nothing to do. The state is on the disk before and after."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Protocol

from firesteel.edge.home import Home, Locked, lock, read_state, write_state
from firesteel.edge.programs.build import BuildProgress
from firesteel.errors import DoesNotFit, FiresteelError, HostNotReady
from firesteel.values import Value
from firesteel.workshop.images.factory.policy import (
    ActionResult,
    FactoryAction,
    FactoryState,
    ImagePolicy,
    LookUpstream,
    ReleaseAction,
    RemoveImage,
    begin,
    decide,
    with_result,
    with_retry,
)
from firesteel.workshop.images.retention import ImageStock, OwnImage


class FactoryEffects(Protocol):
    """What touches the world for one policy."""

    def stock(self) -> ImageStock: ...

    def do(self, action: FactoryAction, state: FactoryState) -> AsyncIterator[BuildProgress | ActionResult]:
        """The last item is the result. A FiresteelError refuses a release, a HostNotReady does not."""
        ...


class ActionDone(Value):
    action: FactoryAction
    result: ActionResult
    state: FactoryState


async def run_policy(
    name: str, policy: ImagePolicy, effects: FactoryEffects, home: Home, clock: Callable[[], float]
) -> AsyncIterator[BuildProgress | ActionDone]:
    """Do what a policy decides, one action after the other, until nothing is left to do; the state is stored
    after each."""
    path = state_path(home, name)
    try:
        with lock(path.with_suffix(".lock")):
            # By the time of its begin: a run that takes long looks once, and the next one again.
            state, began_s = read_factory_state(home, name), clock()
            while action := decide(policy, state, effects.stock(), began_s, name):
                before, state = state, begin(state, action)
                write_state(path, state)
                result = ActionResult()
                try:
                    if not (isinstance(action, ReleaseAction) and action.do == "give up"):
                        async for item in effects.do(action, state):
                            if isinstance(item, BuildProgress):
                                yield item
                            else:
                                result = item
                except (HostNotReady, DoesNotFit):  # of this machine, not of the release: it is tried again
                    write_state(path, before)
                    raise
                except FiresteelError as error:
                    if not isinstance(action, ReleaseAction):
                        raise
                    result = ActionResult(accepted=False, why=(error.what, error.next))
                state = with_result(state, action, result, clock())
                write_state(path, state)
                yield ActionDone(action, result, state)
    except Locked:
        raise FiresteelError(
            f"another factory is at work on {name}", next="firesteel image watch --status"
        ) from None


def state_path(home: Home, name: str) -> Path:
    return home.root / "factory" / f"{name}.json"


def read_factory_state(home: Home, name: str) -> FactoryState:
    """An unreadable one would promote anything as the first image: it stops the factory instead."""
    path = state_path(home, name)
    state = read_state(path, FactoryState)
    if state is None and path.exists():
        raise FiresteelError(f"{path} cannot be read", next=f"mv {path} {path}.damaged, to start over")
    return state or FactoryState()


def all_candidates(home: Home) -> frozenset[str]:
    """Ids of images that a factory of this home is about to compare or promote."""
    names = [path.stem for path in (home.root / "factory").glob("*.json")]
    return frozenset(id for name in names for id in read_factory_state(home, name).candidates)


def try_again(home: Home, name: str, tag: str) -> bool:
    """Whether there was a refused release of that tag, which is now tried once more."""
    changed = with_retry(read_factory_state(home, name), tag)
    if changed is not None:
        write_state(state_path(home, name), changed)
    return changed is not None


async def next_action(
    name: str, policy: ImagePolicy, effects: FactoryEffects, home: Home, now_s: float
) -> str:
    """What would be done, as a line. A look is done, since it only reads; its result is not kept."""
    state = read_factory_state(home, name)
    action = decide(policy, state, effects.stock(), now_s, name)
    if isinstance(action, LookUpstream):
        async for item in effects.do(action, state):
            if isinstance(item, ActionResult):
                state = with_result(state, action, item, now_s)
        action = decide(policy, state, effects.stock(), now_s, name)
    if action is None:
        return "nothing to do"
    if isinstance(action, ReleaseAction):
        return f"would {action.do} {action.tag}"
    return f"would remove {_image_name(action.image)}" if isinstance(action, RemoveImage) else "would look"


def action_line(done: ActionDone) -> str:
    """What an action came to, for people and for the log of a timer."""
    action, result = done.action, done.result
    if isinstance(action, LookUpstream):
        new = [found.tag for found in done.state.releases if found.stage == "seen" and not found.ended_s]
        releases = "release" if len(result.found) == 1 else "releases"
        return f"looked upstream: {len(result.found)} {releases}, {len(new)} not tried yet"
    if isinstance(action, RemoveImage):
        return f"removed {_image_name(action.image)}"
    found = done.state.release(action.tag)
    if found.stage == "refused":
        return f"refused {action.tag}: {'; '.join(found.why)}"
    what = {"build": "built and verified", "compare": "compared", "promote": "promoted"}[action.do]
    tail = {"build": "", "compare": f": {'; '.join(found.why)}", "promote": f" as {found.image_tag}"}
    return f"{what} {action.tag}{tail[action.do]}"


def _image_name(image: OwnImage) -> str:
    return image.tag or f"{image.id[:19]} (refused)"
