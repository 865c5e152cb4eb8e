"""The Hub: what a repository holds, and its files, fetched into the store.

huggingface_hub does the asking and the fetching. What it no longer does is to go on where a fetch broke off:
since 1.18 a part has a new name at each try and is thrown away (huggingface/huggingface_hub#4196, #4306). Of
60 GB that is the difference between a minute and a night, so the part is ours: it keeps its name, what is in
it is hashed, the rest is asked for, and the whole must have the digest that the Hub lists.

The token goes to the Hub alone, in a header: never to the host that it redirects to, and into no message.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from io import RawIOBase
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, cast
from urllib.parse import urlsplit

from firesteel.edge.files.home import Locked, is_locked, lock, writable_folder
from firesteel.edge.hub import cache
from firesteel.edge.hub.cache import HubFile, Listing, Store
from firesteel.edge.hub.errors import explain, is_transient, is_truncated
from firesteel.edge.hub.transfer import TransferCounter, TransferProgress, TransferStopped, run_in_threads
from firesteel.errors import FiresteelError, UsageError
from firesteel.units import MIB

_HUB = "https://huggingface.co"
_IDLE_TRIES = 5
"""How often a fetch may fail in a row without one more byte."""
_WRONG_TRIES = 2
_ALL_TRIES = 1000
_PAUSE_S = 1.0
_MAX_FILES = 100_000
_LOCK_PAUSE_S, _LOCK_TRIES = 0.5, 2 * 6 * 3600


@dataclass(frozen=True, slots=True)
class Hub:
    endpoint: str
    token: str | None = field(default=None, repr=False)

    @property
    def page(self) -> str:
        """Its address for people: no name and password, should somebody have written them in."""
        parts = urlsplit(self.endpoint)
        return f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")


def find_hub(environ: Mapping[str, str] = os.environ) -> Hub:
    """The endpoint and token that huggingface_hub would take: HF_TOKEN, or that of `hf auth login`."""
    endpoint = (environ.get("HF_ENDPOINT") or _HUB).rstrip("/")
    if not endpoint.startswith(("https://", "http://")):
        raise UsageError("HF_ENDPOINT is not an address of the web", next="unset HF_ENDPOINT")
    if token := environ.get("HF_TOKEN", "").strip():
        return Hub(endpoint, token)
    _quiet()
    from huggingface_hub import get_token  # lazy: it takes a third of a second

    return Hub(endpoint, get_token() if environ is os.environ else None)


def _quiet() -> None:
    """No bars, no log lines (they hold signed addresses), and pieces small enough to see them arrive."""
    from huggingface_hub import constants
    from huggingface_hub.utils.tqdm import disable_progress_bars

    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    disable_progress_bars()
    constants.DOWNLOAD_CHUNK_SIZE = MIB


# --- asking ---


async def list_files(hub: Hub, repository: str, revision: str) -> Listing:
    cache.check_revision(revision)
    return await asyncio.to_thread(_list_files, hub, repository, revision)


def _list_files(hub: Hub, repository: str, revision: str) -> Listing:
    _quiet()
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    api = HfApi(endpoint=hub.endpoint, token=hub.token or False, library_name="firesteel")
    try:
        commit = api.model_info(repository, revision=revision, timeout=30).sha or ""
        tree = islice(api.list_repo_tree(repository, recursive=True, revision=commit), _MAX_FILES)
        rows = [row for row in tree if isinstance(row, RepoFile)]
        files = [HubFile(row.path, row.size, row.lfs.sha256 if row.lfs else row.blob_id) for row in rows]
        listing = Listing(repository, commit, tuple(files))
        cache.check_listing(listing)
    except FiresteelError:
        raise
    except Exception as error:
        raise explain(error, hub, repository, revision) from None
    return listing


async def require_access(hub: Hub, listing: Listing, file: HubFile) -> None:
    """Listing a gated repository is open to all; whether its files are is told by asking for one."""
    try:
        await asyncio.to_thread(_locate, hub, listing, file)
    except Exception as error:
        raise explain(error, hub, listing.repository, listing.commit, file.path) from None


def _locate(hub: Hub, listing: Listing, file: HubFile) -> str:
    """Where the bytes are: the Hub itself, or an address that it signed."""
    _quiet()
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    address = hf_hub_url(listing.repository, file.path, revision=listing.commit, endpoint=hub.endpoint)
    found = get_hf_file_metadata(
        address, token=hub.token or False, endpoint=hub.endpoint, library_name="firesteel"
    )
    if address.startswith("https:") and not found.location.startswith("https:"):
        raise FiresteelError(f"{hub.page} redirects {file.path} away from https", next="check HF_ENDPOINT")
    return found.location


def _headers(hub: Hub, address: str) -> dict[str, str]:
    here, there = urlsplit(hub.endpoint), urlsplit(address)
    is_hub = (here.scheme, here.netloc) == (there.scheme, there.netloc)
    agent = {"user-agent": "firesteel"}
    return {**agent, "authorization": f"Bearer {hub.token}"} if is_hub and hub.token else agent


# --- fetching ---


@asynccontextmanager
async def exclusive(store: Store, repository: str) -> AsyncIterator[None]:
    """One firesteel at a time on a repository; whoever waits finds it done."""
    path = lock_path(store, repository)
    for _ in range(_LOCK_TRIES):
        try:
            with lock(path):
                yield
                return
        except Locked:
            await asyncio.sleep(_LOCK_PAUSE_S)
    raise FiresteelError(f"another firesteel has fetched {repository} for hours", next="firesteel ps")


def lock_path(store: Store, repository: str) -> Path:
    return store.root / ".locks" / store.folder(repository).name / "firesteel.lock"


def is_being_fetched(store: Store, repository: str) -> bool:
    return is_locked(lock_path(store, repository))


def fetch(
    hub: Hub, store: Store, listing: Listing, files: Sequence[HubFile]
) -> AsyncIterator[TransferProgress]:
    """The files of a listing into the store, several at a time; ends when all are there and right."""
    blobs = _by_digest(files)
    tally = TransferCounter(sum(same[0].bytes for same in blobs))

    def one(same: Sequence[HubFile]) -> None:
        _fetch_one(hub, store, listing, same[0], tally)
        for file in same:
            cache.link(store, listing, file)

    return run_in_threads(blobs, one, tally)


def _by_digest(files: Sequence[HubFile]) -> list[list[HubFile]]:
    """Files with the same bytes are one blob, and two threads must not write one part. Largest first."""
    found: dict[str, list[HubFile]] = {}
    for file in sorted(files, key=lambda file: -file.bytes):
        found.setdefault(file.digest, []).append(file)
    return list(found.values())


async def verify_files(
    store: Store, listing: Listing, files: Sequence[HubFile]
) -> AsyncIterator[TransferProgress | tuple[HubFile, ...]]:
    """Reads what is there; the last thing that it yields are the files that are not what the Hub lists."""
    tally, wrong = TransferCounter(sum(file.bytes for file in files)), list[HubFile]()

    def one(file: HubFile) -> None:
        if not cache.matches_digest(store.place(listing, file), file, tally.add):
            wrong.append(file)

    async for moved in run_in_threads(files, one, tally):
        yield moved
    yield tuple(wrong)


def _fetch_one(hub: Hub, store: Store, listing: Listing, file: HubFile, tally: TransferCounter) -> None:
    blob, part = store.blob(listing.repository, file), store.part(listing.repository, file)
    if blob.exists() and blob.stat().st_size == file.bytes and cache.matches_digest(blob, file, tally.found):
        return  # another commit has the same bytes
    cache.make_folder(blob.parent)
    with writable_folder(blob.parent):
        blob.unlink(missing_ok=True)
        for _ in range(_WRONG_TRIES):
            if _is_too_large(file) and not part.exists():
                _fetch_whole(hub, store, listing, file, tally)
                return
            if _fill(hub, listing, file, part, tally):
                part.replace(blob)
                return
            tally.add(-part.stat().st_size)
            part.unlink()
    raise FiresteelError(
        f"{file.path} of {listing.repository} arrives with other bytes than the Hub lists",
        next="try again later; if HF_ENDPOINT names a mirror, unset it",
    )


def _fill(hub: Hub, listing: Listing, file: HubFile, part: Path, tally: TransferCounter) -> bool:
    """The rest of a part, over as many connections as it takes; is the whole right?"""
    idle, last = 0, None
    with _Sink(part, file, tally) as sink:
        for _ in range(_ALL_TRIES):
            had = sink.size
            try:
                if sink.size < file.bytes:
                    _stream(hub, listing, file, sink)
                return sink.is_right()
            except _TooLong:
                return False
            except (TransferStopped, FiresteelError):
                raise
            except Exception as error:
                last = error
            idle = 0 if sink.size > had else idle + 1
            if idle >= (_IDLE_TRIES if is_transient(last) else 1):
                break
            if tally.stop.wait(_PAUSE_S):
                raise TransferStopped
    raise _broken(hub, listing, file, last) from last


def _broken(hub: Hub, listing: Listing, file: HubFile, last: Exception | None) -> FiresteelError:
    if last is not None and not is_truncated(last):
        return explain(last, hub, listing.repository, listing.commit, file.path)
    return FiresteelError(
        f"{file.path} of {listing.repository} breaks off again and again",
        next="the same command again: it goes on where it stopped",
    )


def _stream(hub: Hub, listing: Listing, file: HubFile, sink: _Sink) -> None:
    from huggingface_hub.file_download import http_get

    address = _locate(hub, listing, file)
    http_get(
        address,
        cast(BinaryIO, sink),
        resume_size=sink.size,
        headers=_headers(hub, address),
        expected_size=file.bytes,
    )


def _is_too_large(file: HubFile) -> bool:
    """The Hub serves files over 50 GB in chunks only, which its own library puts together, from the start."""
    from huggingface_hub import constants

    return file.bytes > constants.MAX_HTTP_DOWNLOAD_SIZE


def _fetch_whole(hub: Hub, store: Store, listing: Listing, file: HubFile, tally: TransferCounter) -> None:
    from huggingface_hub import hf_hub_download

    try:
        hf_hub_download(
            listing.repository,
            file.path,
            revision=listing.commit,
            cache_dir=store.root,
            endpoint=hub.endpoint,
            token=hub.token or False,
            library_name="firesteel",
        )
    except Exception as error:
        raise explain(error, hub, listing.repository, listing.commit, file.path) from error
    tally.add(file.bytes)


class _TooLong(Exception):
    """More bytes than the Hub lists."""


class _Sink(RawIOBase):
    """A part on disk that counts and hashes what is written to it; what is there already is read first."""

    def __init__(self, path: Path, file: HubFile, tally: TransferCounter) -> None:
        self._file, self._tally = file, tally
        self._part = path.open("a+b")
        self.size, self._digest = 0, cache.new_digest(file)

    def __enter__(self) -> _Sink:
        self._part.seek(0)
        while piece := self._part.read(8 * MIB):
            self._digest.update(piece)
            self.size += len(piece)
            self._tally.found(len(piece))
        if self.size > self._file.bytes:
            self._tally.found(-self.size)
            self._restart()
        return self

    def _restart(self) -> None:
        self._part.truncate(0)
        self.size, self._digest = 0, cache.new_digest(self._file)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._part.close()

    def write(self, piece: Any) -> int:
        if self.size + len(piece) > self._file.bytes:
            raise _TooLong
        self._tally.add(len(piece))
        self._part.write(piece)
        self._part.flush()
        self._digest.update(piece)
        self.size += len(piece)
        return len(piece)

    def tell(self) -> int:
        return self.size

    def seek(self, offset: int, whence: int = 0) -> int:
        """http_get goes back to the start alone, when a server does not know ranges."""
        if offset or whence:
            raise ValueError("a part is written from its end or anew")
        self._tally.add(-self.size)
        self._restart()
        return 0

    def truncate(self, size: int | None = None) -> int:
        return self.size

    def is_right(self) -> bool:
        os.fsync(self._part.fileno())
        os.posix_fadvise(self._part.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return bool(self._digest.hexdigest() == self._file.digest)
