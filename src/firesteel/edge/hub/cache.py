"""The store of weights on disk, in the layout that huggingface_hub and llama.cpp share.

    models--ORG--NAME/blobs/DIGEST            the bytes, named by the digest that the Hub lists
                      snapshots/COMMIT/PATH   links to them
                      refs/main               the commit that a branch pointed to

What the Hub listed of a commit, and which blobs were read and match their digest, is recorded under
FIRESTEEL_HOME, so that everything can be checked offline. huggingface_hub has such listings too, in `trees`;
ours must not be there. A newer huggingface_hub inside a container considers a listed snapshot incomplete when
any file is missing, even one that no engine reads, and refuses to start offline.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from firesteel.edge.home import Home, free_bytes, nearest_existing, read_json, writable_folder, write_text
from firesteel.edge.hub.files import (
    MAX_RECORD_BYTES,
    HubFile,
    Listing,
    StoredFile,
    VerifiedFiles,
    check_listing,
    check_revision,
    is_commit,
    is_digest,
)
from firesteel.errors import HostNotReady, UsageError
from firesteel.launch import is_valid_hub_id
from firesteel.units import show_bytes
from firesteel.values import Value, plain

PART = ".firesteel.incomplete"
_MAX_FILES = 100_000


class Store(Value):
    root: Path
    records: Path
    """Listings and verified blobs, under FIRESTEEL_HOME."""

    def folder(self, repository: str) -> Path:
        if not is_valid_hub_id(repository):
            raise UsageError(f"`{repository}` is not a Hub repository", next="firesteel pull ORG/NAME")
        return self.root / f"models--{repository.replace('/', '--')}"

    def blob(self, repository: str, file: HubFile) -> Path:
        return self.folder(repository) / "blobs" / file.digest

    def part(self, repository: str, file: HubFile) -> Path:
        """An incomplete blob. Its name stays the same, so that the next fetch resumes it."""
        return self.blob(repository, file).with_name(file.digest + PART)

    def snapshot(self, repository: str, commit: str) -> Path:
        return self.folder(repository) / "snapshots" / commit

    def path(self, listing: Listing, file: HubFile) -> Path:
        """Where a file of a snapshot is: a link to its blob."""
        return self.snapshot(listing.repository, listing.commit) / file.path

    def record(self, repository: str, name: str) -> Path:
        return self.records / self.folder(repository).name / f"{name}.json"


def find_store(home: Home, environ: Mapping[str, str] = os.environ) -> Store:
    """Where huggingface_hub looks. FIRESTEEL_HOME moves it too, unless the user set one of its variables."""
    records = home.root / "hub"
    if named := environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE"):
        return Store(_absolute(named), records)
    if hub_home := environ.get("HF_HOME"):
        return Store(_absolute(hub_home) / "hub", records)
    if environ.get("FIRESTEEL_HOME"):
        return Store(home.root / "huggingface/hub", records)
    base = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME", "~")) / ".cache"
    return Store(_absolute(str(base)) / "huggingface/hub", records)


def _absolute(text: str) -> Path:
    return Path(os.path.expandvars(text)).expanduser().absolute()


# --- listings ---


def cached_listing(store: Store, repository: str, revision: str) -> Listing | None:
    """What the Hub listed last, recorded by us or by huggingface_hub; None: only the Hub knows."""
    check_revision(revision)
    commit = _commit(store, repository, revision)
    if commit is None:
        return None
    ours = _own_files(read_json(store.record(repository, commit), MAX_RECORD_BYTES))
    theirs = store.folder(repository) / "trees" / f"{commit}.json"
    files = ours or _tree_files(read_json(theirs, MAX_RECORD_BYTES))
    if not files:
        return None
    listing = Listing(repository, commit, files)
    check_listing(listing)
    return listing


def snapshot_listing(store: Store, repository: str, revision: str) -> Listing | None:
    """What is in a snapshot that another program fetched, for use offline.

    A link's blob is named by its digest; a plain file has none.
    """
    commit = _commit(store, repository, revision)
    if commit is None:
        return None
    root = store.snapshot(repository, commit)
    paths = sorted(path for path in islice(root.rglob("*"), _MAX_FILES) if path.is_file())
    files = [
        HubFile(path.relative_to(root).as_posix(), path.stat().st_size, _digest_of(path)) for path in paths
    ]
    return Listing(repository, commit, tuple(files)) if files else None


def _digest_of(path: Path) -> str:
    name = path.resolve().name
    return name if path.is_symlink() and is_digest(name) else ""


def _commit(store: Store, repository: str, revision: str) -> str | None:
    """The commit that a revision stood for when the Hub was last asked."""
    folder = store.folder(repository)
    if is_commit(revision):
        return revision
    try:
        with (folder / "refs" / revision).open("rb") as file:
            commit = file.read(100).decode(errors="replace").strip()
    except OSError:
        return None
    return commit if is_commit(commit) else None


def shards(store: Store, listing: Listing) -> set[str]:
    """The files that the index of a sharded checkpoint names."""
    path = store.snapshot(listing.repository, listing.commit) / "model.safetensors.index.json"
    index = read_json(path, MAX_RECORD_BYTES)
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    return {str(name) for name in weight_map.values()} if isinstance(weight_map, dict) else set()


def local_snapshot(store: Store, repository: str, revision: str = "main") -> Path | None:
    """The folder of a snapshot that has its config and all safetensors of its index; None: incomplete."""
    listing = snapshot_listing(store, repository, revision)
    if listing is None:
        return None
    present = {file.path for file in listing.files}
    weights = shards(store, listing) or {"model.safetensors"}
    is_complete = "config.json" in present and weights <= present
    return store.snapshot(repository, listing.commit) if is_complete else None


def save_listing(store: Store, listing: Listing, revision: str) -> None:
    text = json.dumps({"files": [plain(file) for file in listing.files]})
    write_text(store.record(listing.repository, listing.commit), text)
    if not is_commit(revision):
        _write_reference(store.folder(listing.repository) / "refs" / revision, listing.commit)


def ensure_reference(store: Store, listing: Listing) -> None:
    """Gives a pinned commit a branch: llama.cpp finds a snapshot only through one."""
    refs = store.folder(listing.repository) / "refs"
    if not any(path.is_file() for path in refs.glob("*")):
        _write_reference(refs / "main", listing.commit)


def _write_reference(path: Path, commit: str) -> None:
    """Readable by all users, unlike our other files: the engine may run as another user."""
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(commit)
    temporary.replace(path)


def make_folder(folder: Path) -> None:
    with writable_folder(nearest_existing(folder)):
        folder.mkdir(parents=True, exist_ok=True)


def _own_files(record: Any) -> tuple[HubFile, ...]:
    try:
        return tuple(
            HubFile(str(row["path"]), int(row["bytes"]), str(row["digest"])) for row in record["files"]
        )
    except (TypeError, KeyError, ValueError):
        return ()


def _tree_files(tree: Any) -> tuple[HubFile, ...]:
    """huggingface_hub's own listing, format 1: `size`, `blob_id`, and `lfs_sha256` for a large file."""
    try:
        if tree["format_version"] != 1:
            return ()
        return tuple(
            HubFile(str(path), int(row["size"]), str(row.get("lfs_sha256") or row["blob_id"]))
            for path, row in tree["files"].items()
        )
    except (TypeError, KeyError, ValueError, AttributeError):
        return ()


# --- files ---


def is_present(store: Store, listing: Listing, file: HubFile) -> bool:
    """Whether a file of the right size is at its path."""
    return _size(store.path(listing, file)) == file.bytes


def stored_files(store: Store, listing: Listing, files: Iterable[HubFile]) -> list[StoredFile]:
    return [StoredFile(file, store.path(listing, file)) for file in files]


def verified_files(store: Store, repository: str) -> VerifiedFiles:
    """Which blobs were read and match their digest."""
    return VerifiedFiles(store.record(repository, "checked"))


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def partial_bytes(store: Store, repository: str, file: HubFile) -> int:
    return min(_size(store.part(repository, file)) or 0, file.bytes)


def link(store: Store, listing: Listing, file: HubFile) -> None:
    """Links the blob into the snapshot; leaves nothing behind when that fails."""
    path = store.path(listing, file)
    blob = store.blob(listing.repository, file)
    temporary = path.with_name(f".{file.digest}.{os.getpid()}")  # never too long, and no other thread's
    try:
        make_folder(path.parent)
        with writable_folder(path.parent):
            try:
                temporary.unlink(missing_ok=True)
                temporary.symlink_to(os.path.relpath(blob, path.parent))
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)
    except OSError as error:
        raise HostNotReady(
            f"{path} cannot be created ({error.strerror})", next="put the store elsewhere: HF_HOME=/path"
        ) from error


def delete_file(store: Store, listing: Listing, file: HubFile) -> None:
    """Deletes a file with wrong contents: the link and its blob."""
    store.path(listing, file).unlink(missing_ok=True)
    store.blob(listing.repository, file).unlink(missing_ok=True)


def repository_of(store: Store, path: Path) -> tuple[str, str, str] | None:
    """Repository, commit and path in it of a file or snapshot in the store; None: it is not in the store."""
    try:
        folder, snapshots, commit, *rest = path.relative_to(store.root).parts
    except ValueError:
        return None
    repository = folder.removeprefix("models--").replace("--", "/", 1)
    if snapshots != "snapshots" or not is_commit(commit) or not is_valid_hub_id(repository):
        return None
    return repository, commit, "/".join(rest)


# --- checks before a fetch ---


def require_space(store: Store, needed_bytes: int, what: str) -> None:
    free = free_bytes(store.root)
    if free < needed_bytes:
        raise HostNotReady(
            f"{what} needs {show_bytes(needed_bytes)} more, the disk under {store.root} has "
            f"{show_bytes(free)} free",
            next="firesteel pull --prune, or put the store elsewhere: HF_HOME=/path/with/space",
        )


def require_permission(store: Store, repository: str) -> None:
    """Finds folders that we cannot write, such as those of a container that ran as root, before the fetch."""
    folder = store.folder(repository)
    try:
        paths = [nearest_existing(store.root), folder]
        paths += [folder / name for name in ("blobs", "refs", "snapshots")]
        for pattern in ("blobs/*", "snapshots/*"):
            paths += sorted(folder.glob(pattern))[:10_000]  # a repository has hundreds at most
        for path in paths:
            mode = os.R_OK | os.W_OK | os.X_OK if path.is_dir() else os.R_OK
            if path.exists() and not os.access(path, mode):
                raise _not_ours(path, folder if folder.exists() else path)
    except PermissionError as error:
        raise HostNotReady(
            f"{error.filename} may not be read", next="put the store elsewhere: HF_HOME=/path"
        ) from error


def _not_ours(path: Path, folder: Path) -> HostNotReady:
    owner = path.stat().st_uid
    if owner == os.getuid():
        return HostNotReady(f"{path} may not be written", next=f"chmod -R u+rwX {folder}")
    owner_text = "root: a container that ran as root left it" if owner == 0 else f"user {owner}"
    return HostNotReady(
        f"{path} belongs to {owner_text}, and {os.getuid()} may not use it",
        next=f"sudo chown -R {os.getuid()}:{os.getgid()} {folder}",
    )
