"""The Hub's client: lists a repository and fetches its files into the store.

huggingface_hub makes the requests. It no longer resumes an interrupted fetch: since 1.18 a partial file gets
a new name at each try and is thrown away (huggingface/huggingface_hub#4196, #4306). Of 60 GB that is the
difference between a minute and a night, so the partial file is ours: it keeps its name, its bytes are
hashed, the rest is requested, and the whole must have the digest that the Hub lists.

The token goes to the Hub alone, in a header: never to the host that it redirects to, and into no message;
huggingface_hub's own messages may contain signed addresses, so `explain` puts others in their place.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from io import RawIOBase
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import urlsplit

from firesteel.edge.home import is_locked, wait_for_lock, writable_folder
from firesteel.edge.http.sync_client import bearer
from firesteel.edge.hub import cache
from firesteel.edge.hub.cache import Store
from firesteel.edge.hub.files import (
    HubFile,
    Listing,
    StoredFile,
    TransferCounter,
    TransferProgress,
    TransferStopped,
    check_listing,
    check_revision,
    matches_digest,
    run_in_threads,
)
from firesteel.errors import FiresteelError, HostNotReady, UsageError
from firesteel.units import MIB
from firesteel.values import Value

_HUB = "https://huggingface.co"
_IDLE_TRIES = 5
"""How often a fetch may fail in a row without receiving a byte."""
_DIGEST_TRIES = 2
_MAX_TRIES = 1000
_PAUSE_S = 1.0
_MAX_FILES = 100_000
_LOCK_TIMEOUT_S = 6 * 3600


class Hub(Value):
    endpoint: str
    token: str | None = None

    def __repr__(self) -> str:
        return f"Hub({self.endpoint!r})"  # a traceback may be pasted somewhere

    @property
    def page(self) -> str:
        """Its address for messages, without the user name and password that HF_ENDPOINT may contain."""
        parts = urlsplit(self.endpoint)
        return f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")


def find_hub(environ: Mapping[str, str] = os.environ) -> Hub:
    """The endpoint and token that huggingface_hub uses: HF_TOKEN, or the one that `hf auth login` stored."""
    endpoint = (environ.get("HF_ENDPOINT") or _HUB).rstrip("/")
    if not endpoint.startswith(("https://", "http://")):
        raise UsageError("HF_ENDPOINT is not a web address", next="unset HF_ENDPOINT")
    if token := (environ.get("HF_TOKEN") or environ.get("HUGGING_FACE_HUB_TOKEN") or "").strip():
        return Hub(endpoint, token)
    _configure_library()
    from huggingface_hub import get_token  # lazy: it takes a third of a second

    return Hub(endpoint, get_token() if environ is os.environ else None)


def _configure_library() -> None:
    """No progress bars, no log lines (they contain signed addresses), and small pieces for progress."""
    from huggingface_hub import constants
    from huggingface_hub.utils.tqdm import disable_progress_bars

    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    disable_progress_bars()
    constants.DOWNLOAD_CHUNK_SIZE = MIB


# --- listing ---


async def list_files(hub: Hub, repository: str, revision: str) -> Listing:
    check_revision(revision)
    return await asyncio.to_thread(_list_files, hub, repository, revision)


def _list_files(hub: Hub, repository: str, revision: str) -> Listing:
    _configure_library()
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    api = HfApi(endpoint=hub.endpoint, token=hub.token or False, library_name="firesteel")
    try:
        commit = api.model_info(repository, revision=revision, timeout=30).sha or ""
        tree = islice(api.list_repo_tree(repository, recursive=True, revision=commit), _MAX_FILES)
        rows = [row for row in tree if isinstance(row, RepoFile)]
        files = [HubFile(row.path, row.size, row.lfs.sha256 if row.lfs else row.blob_id) for row in rows]
        listing = Listing(repository, commit, tuple(files))
        check_listing(listing)
    except Exception as error:
        raise explain(error, hub, repository, revision) from None
    return listing


async def require_access(hub: Hub, listing: Listing, file: HubFile) -> None:
    """Requests one file: anybody may list a gated repository, but not read its files."""
    try:
        await asyncio.to_thread(_locate, hub, listing, file)
    except Exception as error:
        raise explain(error, hub, listing.repository, listing.commit, file.path) from None


def _locate(hub: Hub, listing: Listing, file: HubFile) -> str:
    """The address of the bytes: on the Hub itself, or one that it signed."""
    _configure_library()
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    address = hf_hub_url(listing.repository, file.path, revision=listing.commit, endpoint=hub.endpoint)
    metadata = get_hf_file_metadata(
        address, token=hub.token or False, endpoint=hub.endpoint, library_name="firesteel"
    )
    if address.startswith("https:") and not metadata.location.startswith("https:"):
        raise FiresteelError(f"{hub.page} redirects {file.path} away from https", next="check HF_ENDPOINT")
    return metadata.location


# --- fetching ---


def exclusive(store: Store, repository: str) -> AbstractAsyncContextManager[None]:
    """Lets one firesteel at a time fetch a repository; the others wait and find it done."""
    busy = f"another firesteel has been fetching {repository} for hours"
    return wait_for_lock(lock_path(store, repository), _LOCK_TIMEOUT_S, busy)


def lock_path(store: Store, repository: str) -> Path:
    return store.root / ".locks" / store.folder(repository).name / "firesteel.lock"


def is_being_fetched(store: Store, repository: str) -> bool:
    return is_locked(lock_path(store, repository))


def fetch(
    hub: Hub, store: Store, listing: Listing, files: Sequence[HubFile]
) -> AsyncGenerator[TransferProgress]:
    """Fetches files into the store, several at a time; ends when all are present with the right digest."""
    # Files with the same bytes share a blob, and two threads must not write one part.
    by_digest: dict[str, list[HubFile]] = {}
    for file in sorted(files, key=lambda file: -file.bytes):  # the largest first
        by_digest.setdefault(file.digest, []).append(file)
    blobs = list(by_digest.values())
    counter = TransferCounter(sum(same[0].bytes for same in blobs))

    def fetch_and_link(same: Sequence[HubFile]) -> None:
        _fetch_blob(hub, store, listing, same[0], counter)
        for file in same:
            cache.link(store, listing, file)

    return run_in_threads(blobs, fetch_and_link, counter)


def _fetch_blob(hub: Hub, store: Store, listing: Listing, file: HubFile, counter: TransferCounter) -> None:
    blob, part = store.blob(listing.repository, file), store.part(listing.repository, file)
    if (
        blob.exists()
        and blob.stat().st_size == file.bytes
        and matches_digest(StoredFile(file, blob), counter.add_existing)
    ):
        return  # another commit has the same bytes
    cache.make_folder(blob.parent)
    with writable_folder(blob.parent):
        blob.unlink(missing_ok=True)  # it has the wrong size or digest
        for _ in range(_DIGEST_TRIES):
            if _is_too_large(file) and not part.exists():
                _fetch_whole(hub, store, listing, file, counter)
                # The library checks only the size. Counting nothing ends it when the fetch was cancelled.
                if matches_digest(StoredFile(file, blob), lambda _: counter.add(0)):
                    return
                counter.add(-file.bytes)
                blob.unlink(missing_ok=True)
                continue
            if _fill(hub, listing, file, part, counter):
                part.replace(blob)
                return
            counter.add(-part.stat().st_size)
            part.unlink()
    raise FiresteelError(
        f"{file.path} of {listing.repository} arrives with a digest other than the Hub lists",
        next="try again later; if HF_ENDPOINT names a mirror, unset it",
    )


def _fill(hub: Hub, listing: Listing, file: HubFile, part: Path, counter: TransferCounter) -> bool:
    """Fetches the rest of a part, over several connections if need be; says whether its digest is right."""
    idle_tries, last_error = 0, None
    with _Sink(part, file, counter) as sink:
        for _ in range(_MAX_TRIES):
            size_before = sink.size
            try:
                if sink.size < file.bytes:
                    _stream(hub, listing, file, sink)
                return sink.has_right_digest()
            except _TooLong:
                return False
            except (TransferStopped, FiresteelError):
                raise
            except Exception as error:
                last_error = error
            idle_tries = 0 if sink.size > size_before else idle_tries + 1
            if idle_tries >= (_IDLE_TRIES if is_transient(last_error) else 1):
                break
            if counter.stop.wait(_PAUSE_S):
                raise TransferStopped
    if last_error is not None and not is_truncated(last_error):
        raise explain(last_error, hub, listing.repository, listing.commit, file.path) from last_error
    raise FiresteelError(
        f"{file.path} of {listing.repository} breaks off again and again",
        next="run the command again: it resumes where it stopped",
    ) from last_error


def _stream(hub: Hub, listing: Listing, file: HubFile, sink: _Sink) -> None:
    from huggingface_hub.file_download import http_get

    address = _locate(hub, listing, file)
    # The token is for the Hub alone, not for the store that it redirects to.
    endpoint, target = urlsplit(hub.endpoint), urlsplit(address)
    is_hub = (endpoint.scheme, endpoint.netloc) == (target.scheme, target.netloc)
    http_get(
        address,
        cast(BinaryIO, sink),
        resume_size=sink.size,
        headers={"user-agent": "firesteel", **bearer(hub.token if is_hub else None)},
        expected_size=file.bytes,
    )


def _is_too_large(file: HubFile) -> bool:
    """The Hub serves files over 50 GB only in chunks, which its library assembles and cannot resume."""
    from huggingface_hub import constants

    return file.bytes > constants.MAX_HTTP_DOWNLOAD_SIZE


def _fetch_whole(hub: Hub, store: Store, listing: Listing, file: HubFile, counter: TransferCounter) -> None:
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
    counter.add(file.bytes)


class _TooLong(Exception):
    """More bytes than the Hub lists."""


class _Sink(RawIOBase):
    """A partial file that counts and hashes what is written to it; existing bytes are read first."""

    def __init__(self, path: Path, file: HubFile, counter: TransferCounter) -> None:
        self._file, self._counter = file, counter
        self._part = path.open("a+b")
        self.size, self._digest = 0, file.new_hash()

    def __enter__(self) -> _Sink:
        self._part.seek(0)
        while piece := self._part.read(8 * MIB):
            self._digest.update(piece)
            self.size += len(piece)
            self._counter.add_existing(len(piece))
        if self.size > self._file.bytes:
            self._counter.add_existing(-self.size)
            self._restart()
        return self

    def _restart(self) -> None:
        self._part.truncate(0)
        self.size, self._digest = 0, self._file.new_hash()

    def __exit__(self, *_: object) -> None:
        self._part.close()

    def write(self, piece: Any) -> int:
        if self.size + len(piece) > self._file.bytes:
            raise _TooLong
        self._counter.add(len(piece))
        self._part.write(piece)
        self._part.flush()  # so that a killed process leaves what it received
        self._digest.update(piece)
        self.size += len(piece)
        return len(piece)

    def tell(self) -> int:
        return self.size

    def seek(self, offset: int, whence: int = 0) -> int:
        """http_get seeks only to the start, when a server does not support ranges."""
        if offset or whence:
            raise ValueError("a part can only be continued or restarted")
        self._counter.add(-self.size)
        self._restart()
        return 0

    def truncate(self, size: int | None = None) -> int:
        return self.size

    def has_right_digest(self) -> bool:
        os.fsync(self._part.fileno())
        os.posix_fadvise(self._part.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return bool(self._digest.hexdigest() == self._file.digest)


def is_transient(error: Exception) -> bool:
    """Worth another try: the network, a busy server, a body that ended early; not a full disk."""
    import httpx2  # huggingface_hub's client; lazy: only a fetch pays for the import
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(error, HfHubHTTPError):
        return error.response.status_code >= 500
    return isinstance(error, httpx2.TransportError) or is_truncated(error)


def is_truncated(error: Exception | None) -> bool:
    """huggingface_hub reports a body shorter than announced as a plain OSError without a number."""
    return type(error) is OSError and error.errno is None


def explain(
    error: Exception, hub: Hub, repository: str, revision: str, path: str | None = None
) -> FiresteelError:
    """Translate an exception of the Hub's client into an error that says what to type next."""
    import httpx2
    from huggingface_hub import errors

    page = f"{hub.page}/{repository}"
    match error:
        case FiresteelError():
            return error
        case errors.GatedRepoError():
            return _gated(hub, repository, page)
        case errors.RevisionNotFoundError():
            return UsageError(f"{repository} has no revision `{revision}`", next=f"see {page}/commits/main")
        case errors.EntryNotFoundError():
            return FiresteelError(f"{repository} has no file {path}", next=f"see {page}/tree/{revision}")
        case errors.RepositoryNotFoundError():
            return _missing(hub, repository)
        case errors.OfflineModeIsEnabled():
            return HostNotReady(
                f"{repository} is not complete on this machine, and HF_HUB_OFFLINE forbids fetching it",
                next="unset HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE, then run the command again",
            )
        case errors.HfHubHTTPError():
            return _refused(hub, repository, error.response.status_code)
        case errors.HFValidationError():
            return UsageError(f"`{repository}` is not a Hub repository", next="firesteel pull ORG/NAME")
        case OSError() if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return HostNotReady(
                f"the disk became full while {repository} was fetched",
                next="firesteel pull --prune, then run the command again: it resumes",
            )
        case httpx2.HTTPError() | ConnectionError() | TimeoutError():
            return FiresteelError(
                f"{hub.page} cannot be reached ({type(error).__name__})",
                next="check the network, then run the command again: it resumes",
            )
    return FiresteelError(
        f"{hub.page} does not answer like the Hub ({type(error).__name__})", next="check HF_ENDPOINT"
    )


def _gated(hub: Hub, repository: str, page: str) -> FiresteelError:
    if hub.token:
        return HostNotReady(
            f"{repository} is gated, and your token may not read it yet",
            next=f"accept its licence at {page} with the account of the token, then run the command again",
        )
    return HostNotReady(
        f"{repository} is gated: its authors ask users to identify themselves",
        next=f"accept its licence at {page}, then: export HF_TOKEN=... ({hub.page}/settings/tokens)",
    )


def _missing(hub: Hub, repository: str) -> FiresteelError:
    if hub.token:
        return UsageError(
            f"the Hub has no {repository} that your token may see", next=f"search for it: {hub.page}/models"
        )
    return UsageError(
        f"the Hub has no public {repository}",
        next=f"search for it: {hub.page}/models; if it is private: export HF_TOKEN=...",
    )


def _refused(hub: Hub, repository: str, status: int) -> FiresteelError:
    if status in (401, 403):
        return HostNotReady(
            f"{hub.page} refuses {repository} (HTTP {status}): the token is wrong or may not read it",
            next=f"create one that may at {hub.page}/settings/tokens, then: export HF_TOKEN=...",
        )
    if status == 429:
        return FiresteelError(
            f"{hub.page} limits your requests (HTTP 429)",
            next="wait a while; with HF_TOKEN set the Hub allows more",
        )
    return FiresteelError(f"{hub.page} answered HTTP {status} for {repository}", next="try again later")
