"""Carries out the factory's actions: looks which releases a git remote or a registry has, and with docker
builds, starts, measures, tags and removes.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path

from firesteel.bench.upgrade.trial import TrialVerdict, judge_in_sequence, measure_service, try_side_by_side
from firesteel.catalog.image_recipe import ImageRecipe
from firesteel.edge.docker.containers import image_id, last_line
from firesteel.edge.docker.image_sources import find_container_runtime
from firesteel.edge.docker.registry import Registry, parse_reference
from firesteel.edge.home import Home, read_state
from firesteel.edge.programs.build import BuildProgress
from firesteel.errors import DoesNotFit, FiresteelError, HostNotReady
from firesteel.run.events import ServiceReady
from firesteel.workshop.images import retention
from firesteel.workshop.images.build import build_and_verify, inspect_local, tag_image
from firesteel.workshop.images.built import VERIFIED, VerifiedImage
from firesteel.workshop.images.factory.policy import (
    ActionResult,
    FactoryAction,
    FactoryState,
    ImagePolicy,
    LookUpstream,
    ReleaseProgress,
    ReleaseSource,
    RemoveImage,
    UpstreamRelease,
    wanted_releases,
    with_release,
)
from firesteel.workshop.images.retention import ImageStock
from firesteel.workshop.images.verify import started_image

_GIT_S = 120
_REF = re.compile(r"^([0-9a-f]{40,64})\trefs/tags/([^\n]+?)(\^\{\})?$", re.M)


def upstream_releases(policy: ImagePolicy) -> tuple[UpstreamRelease, ...]:
    """The releases that the policy selects, newest first; those of a registry without their digests."""
    tags = git_tags(policy.releases.git) if policy.releases.git else registry_tags(policy.releases)
    return wanted_releases(policy, tags)


def git_tags(remote: str) -> dict[str, str]:
    """Commits by tag; of an annotated tag the commit that it points to."""
    try:
        done = subprocess.run(
            ["git", "ls-remote", "--tags", "--", remote],
            capture_output=True,
            text=True,
            timeout=_GIT_S,
            env={**os.environ, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FiresteelError(
            f"git does not list the tags of {remote}: {error}", next=_ls_remote(remote)
        ) from error
    if done.returncode:
        raise FiresteelError(
            f"git does not list the tags of {remote}: {last_line(done.stderr)}", next=_ls_remote(remote)
        )
    found: dict[str, str] = {}
    for commit, tag, peeled in _REF.findall(done.stdout):
        if peeled or tag not in found:
            found[tag] = commit
    return found


def _ls_remote(remote: str) -> str:
    return f"git ls-remote --tags {remote}"


def registry_tags(source: ReleaseSource) -> dict[str, str]:
    address = parse_reference(source.registry or "")
    return dict.fromkeys(Registry(address).tags(), "")


def pinned_release(source: ReleaseSource, release: UpstreamRelease) -> UpstreamRelease:
    """With its digest, where only a registry knows it: a tag may move while it is built."""
    if release.pin or not source.registry:
        return release
    address = parse_reference(f"{source.registry}:{release.tag}")
    return UpstreamRelease(release.tag, release.version, Registry(address).manifest(release.tag)[1])


class DockerFactory:
    """The effects of one policy."""

    def __init__(self, home: Home, name: str, policy: ImagePolicy, recipe: ImageRecipe) -> None:
        self._home, self._name, self._policy, self._recipe = home, name, policy, recipe

    def stock(self) -> ImageStock:
        return retention.image_stock(find_container_runtime(), self._home)

    async def do(
        self, action: FactoryAction, state: FactoryState
    ) -> AsyncIterator[BuildProgress | ActionResult]:
        if isinstance(action, LookUpstream):
            yield ActionResult(found=await asyncio.to_thread(upstream_releases, self._policy))
        elif isinstance(action, RemoveImage):
            retention.remove(find_container_runtime(), action.image)
            yield ActionResult()
        elif action.do == "build":
            async for item in self._build(state.release(action.tag)):
                yield item
        elif action.do == "compare":
            async for progress in self._compare(state.release(action.tag), state.current):
                yield progress
        elif action.do == "promote":
            found = state.release(action.tag)
            built = await tag_image(self._home, self._name, self._recipe_of(found), self._verified(found))
            yield ActionResult(image_tag=built.tag)

    async def _build(self, found: ReleaseProgress) -> AsyncIterator[BuildProgress | ActionResult]:
        recipe = await asyncio.to_thread(self._recipe_of, found)
        async for item in build_and_verify(self._home, self._name, recipe):
            yield (
                ActionResult(image_id=item.id, folder=item.folder)
                if isinstance(item, VerifiedImage)
                else item
            )

    def _recipe_of(self, found: ReleaseProgress) -> ImageRecipe:
        """As it was built: of a registry's tag the base that it had then."""
        source = self._policy.releases
        return with_release(self._recipe, source, pinned_release(source, found.release))

    def _verified(self, found: ReleaseProgress) -> VerifiedImage:
        verified = read_state(Path(found.folder) / VERIFIED, VerifiedImage)
        if verified is None:
            raise FiresteelError(
                f"{found.folder}/{VERIFIED} is gone", next=f"firesteel image watch --again {found.tag}"
            )
        return verified

    async def _compare(
        self, candidate: ReleaseProgress, current: ReleaseProgress | None
    ) -> AsyncIterator[BuildProgress | ActionResult]:
        assert current is not None
        if await image_id(current.image_id) is None:
            yield ActionResult(why=(f"the image of {current.tag} is gone: nothing to compare with",))
            return
        names, policy = (f"current-{self._name}"[:40], f"candidate-{self._name}"[:40]), self._policy
        async with AsyncExitStack() as running:
            yield BuildProgress(f"starting {current.tag}")
            try:
                await running.enter_async_context(await self._started(names[0], current))
            except FiresteelError as error:
                raise HostNotReady(
                    f"{current.tag}, the current image, does not serve, so nothing can be compared with it: "
                    f"{error.what}",
                    next=error.next,
                ) from error
            yield BuildProgress(f"starting {candidate.tag} alongside it")
            try:
                await running.enter_async_context(await self._started(names[1], candidate))
            except DoesNotFit:
                yield BuildProgress(f"both do not fit: measuring {current.tag} first")
                before = await measure_service(self._home, names[0], policy.answers, policy.budget)
            else:
                async for item in try_side_by_side(self._home, *names, policy.answers, policy.budget):
                    yield _result(item) if isinstance(item, TrialVerdict) else item
                return
        yield BuildProgress(f"starting {candidate.tag} after it")
        async with await self._started(names[1], candidate):
            after = await measure_service(self._home, names[1], policy.answers, policy.budget, before)
        yield _result(judge_in_sequence(before, after, policy.answers))

    async def _started(
        self, service: str, found: ReleaseProgress
    ) -> AbstractAsyncContextManager[ServiceReady]:
        report = await asyncio.to_thread(inspect_local, self._home, found.image_id)
        return started_image(self._home, service, self._recipe, found.image_id, report)


def _result(verdict: TrialVerdict) -> ActionResult:
    return ActionResult(accepted=verdict.accepted, why=verdict.reasons, figures=verdict.figures)
