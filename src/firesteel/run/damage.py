"""Are the weights what was published, and sound? Audited after a pull; compared with digests after a failure.

An audit reads headers and scales before an engine reads the weights. Damage that leaves size and time as they
were shows only as a file that an engine cannot read, or as wrong answers. So what an engine was given is then
compared with its digests, if that takes seconds; otherwise the error says how long it takes and what to type.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path

from firesteel.edge.contents import read_folder
from firesteel.edge.home import Home
from firesteel.edge.host.machine_files import sim_folder
from firesteel.edge.hub import cache
from firesteel.edge.hub.cache import find_store, local_snapshot
from firesteel.edge.hub.files import DigestResult, StoredFile, VerifiedFiles
from firesteel.errors import FiresteelError, Stopped, SuspectWeights
from firesteel.planner.propose import Proposal, audit_advice
from firesteel.rules.checkpoint.judge import judge
from firesteel.run.events import Event, PhaseDone, PhaseProgress
from firesteel.run.pull import hub_needs, wheel_weights
from firesteel.run.spec import wheel_file
from firesteel.run.weights import WeightsNeed, select_files, weights_needed
from firesteel.units import show_bytes, show_seconds
from firesteel.values import Value


async def audit_pulled(proposal: Proposal, home: Home) -> AsyncGenerator[Event]:
    """Raises Stopped for a checkpoint without a recipe; with one, it was run before, so it is only shown."""
    if sim_folder():  # the engines of a simulated Spark read no weights
        return
    need = next(iter(weights_needed(proposal)), None)
    folder = local_snapshot(find_store(home), need.repository, need.revision) if need else None
    if need is None or folder is None:  # on this disk already, in a wheel, or a GGUF
        return
    try:
        findings = judge(await asyncio.to_thread(read_folder, folder))
    except FiresteelError as error:
        yield PhaseDone("check", f"weights not audited: {error.what}")
        return
    wrong = [found for found in findings if found.level != "note"]
    command = f"firesteel audit {need.repository}"
    despite = proposal.ask.despite
    stops = [found for found in wrong if found.level == "stop" and found.check not in despite]
    if stops and not proposal.recipe:
        first = stops[0]
        advice = audit_advice(need.repository, first)
        raise Stopped(f"audit-{first.check}: {first.says}: {first.effect}", next=advice)
    result = "nothing is wrong" if not wrong else f"{wrong[0].says} ({command} shows {len(wrong)} findings)"
    yield PhaseDone("check", f"weights audited from headers and scales: {result}")


_MAX_S = 30.0
_BYTES_PER_S = 1e9
"""Until the disk has shown how fast it is."""


async def explain_with_digests(
    error: SuspectWeights, proposal: Proposal, home: Home, *, max_s: float = _MAX_S
) -> AsyncGenerator[Event]:
    """Yields progress, then raises the error with what the digests say."""
    groups = list(_published(proposal, home))
    size = show_bytes(sum(stored.file.bytes for group in groups for stored in group.files))
    for group in groups:
        if cut := [stored for stored in group.files if not _has_its_size(stored)]:
            raise _damaged(error, group, cut)
        async with aclosing(group.verified.compare(group.files)) as comparing:
            async for progress in comparing:
                if isinstance(progress, DigestResult):
                    if progress.damaged:
                        raise _damaged(error, group, progress.damaged)
                    break
                left_s = (progress.total_bytes - progress.done_bytes) / (progress.bytes_per_s or _BYTES_PER_S)
                if left_s > max_s:
                    takes = f"comparing {size} of weights with their digests takes {show_seconds(left_s)}"
                    raise type(error)(f"{error.what}; {takes}", next=group.command)
                yield PhaseProgress("check", f"comparing the weights with their digests, {progress}")
    if not groups:
        raise _without_digests(error, proposal)
    # The advice of the error was to fetch the weights again, which would change nothing.
    intact = f"{error.what}; its weights are intact: {size} compared with their digests"
    raise type(error)(intact, next=error.otherwise or error.next)


class _Group(Value):
    """Files with one record and one command that fetches them again."""

    verified: VerifiedFiles
    files: tuple[StoredFile, ...]
    command: str


def _published(proposal: Proposal, home: Home) -> Iterator[_Group]:
    """The files that the engine reads, where their digests are known here."""
    if proposal.is_embedded and proposal.model:
        verified, stored = wheel_weights(home, wheel_file(proposal))
        yield _Group(verified, (stored,), _command(proposal))
        return
    if sim_folder():  # the engines of a simulated Spark read no weights
        return
    store = find_store(home)
    for need in hub_needs(proposal, store):
        listing = cache.cached_listing(store, need.repository, need.revision)
        files = cache.stored_files(store, listing, select_files(listing.files, need)) if listing else []
        if files:
            verified = cache.verified_files(store, need.repository)
            yield _Group(verified, tuple(files), _command(proposal, need))


def _command(proposal: Proposal, need: WeightsNeed | None = None) -> str:
    if proposal.recipe:
        return f"firesteel pull {proposal.recipe.name} --reread"
    if need is None or not Path(proposal.asked).is_absolute():
        return f"firesteel pull {shlex.quote(proposal.asked)} --reread"
    # A file in the Hub's cache, named by its path.
    include = [word for pattern in need.patterns for word in ("--include", pattern)]
    return shlex.join(("firesteel", "pull", f"{need.repository}@{need.revision}", *include, "--reread"))


def _has_its_size(stored: StoredFile) -> bool:
    try:
        return stored.path.stat().st_size == stored.file.bytes
    except OSError:
        return False


def _damaged(error: SuspectWeights, group: _Group, files: Sequence[StoredFile]) -> FiresteelError:
    names = ", ".join(stored.file.path for stored in files[:4])
    more = f" and {len(files) - 4} more" if len(files) > 4 else ""
    what = f"{error.what}; {names}{more} is damaged: the bytes are not those that were published"
    return type(error)(what, next=group.command)


def _without_digests(error: SuspectWeights, proposal: Proposal) -> FiresteelError:
    if not proposal.asked:
        return error
    compare = f"sha256sum {shlex.quote(proposal.asked)}, and compare it with what its publisher lists"
    what = f"{error.what}; whether {proposal.asked} is intact is not known here"
    return type(error)(what, next=f"{error.otherwise or error.next}; or {compare}")
