"""The one store of weights, in the layout that huggingface_hub and llama.cpp share: what is there is used.

    models--ORG--NAME/blobs/DIGEST            the bytes, under the name that the Hub has for them
                      snapshots/COMMIT/PATH   links to them
                      refs/main               the commit at which a branch stood

What the Hub listed of a commit, and which blobs were read through and found right, is noted under
FIRESTEEL_HOME: with the notes at hand everything is checked without the network. huggingface_hub has such
listings too, in `trees`; ours must not lie there. A newer one inside a container takes a listed snapshot for
incomplete when any file is missing, also one that no engine wants, and refuses to start offline.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from firesteel.edge.files.home import Home, free_bytes, writable_folder, write_text
from firesteel.errors import FiresteelError, HostNotReady, UsageError
from firesteel.units import MIB, show_bytes

PART = ".firesteel.incomplete"
_COMMIT = re.compile(r"[0-9a-f]{40}\Z")
_DIGEST = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?\Z")
_REVISION = re.compile(r"[\w][\w./-]{0,200}\Z", re.ASCII)
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}\Z", re.ASCII)
_MAX_NOTE = 64 * MIB
_MAX_FILES = 100_000
_MAX_NAME, _MAX_PATH = 255, 1024
"""Bytes. Linux takes 255 in a name and 4096 in a path, of which the store needs some:
https://github.com/torvalds/linux/blob/master/include/uapi/linux/limits.h, seen 2026-11-15"""
_MAX_SHOWN = 80
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Also what ends a line elsewhere, and halves of characters, which no file name can be made of."""
_NOT_THE_HUB = "check HF_ENDPOINT: this is not how the Hub answers"


@dataclass(frozen=True, slots=True)
class HubFile:
    path: str
    bytes: int
    digest: str
    """sha256 of a large file; of a small one git's own sha1. Also the name of its blob."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What a repository holds at one commit."""

    repository: str
    commit: str
    files: tuple[HubFile, ...]


@dataclass(frozen=True, slots=True)
class Store:
    root: Path
    notes: Path
    """Under FIRESTEEL_HOME."""

    def folder(self, repository: str) -> Path:
        if not _REPOSITORY.match(repository) or "--" in repository or ".." in repository:
            raise UsageError(f"`{repository}` is not a Hub repository", next="firesteel pull ORG/NAME")
        return self.root / f"models--{repository.replace('/', '--')}"

    def blob(self, repository: str, file: HubFile) -> Path:
        return self.folder(repository) / "blobs" / file.digest

    def part(self, repository: str, file: HubFile) -> Path:
        """Under a name of its own that stays, so that whoever comes next goes on from there."""
        return self.blob(repository, file).with_name(file.digest + PART)

    def snapshot(self, repository: str, commit: str) -> Path:
        return self.folder(repository) / "snapshots" / commit

    def place(self, listing: Listing, file: HubFile) -> Path:
        return self.snapshot(listing.repository, listing.commit) / file.path


def find_store(home: Home, environ: Mapping[str, str] = os.environ) -> Store:
    """Where huggingface_hub would look; a moved FIRESTEEL_HOME moves it too, unless the user says where."""
    notes = home.root / "hub"
    named = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE")
    if named:
        return Store(_absolute(named), notes)
    if hub_home := environ.get("HF_HOME"):
        return Store(_absolute(hub_home) / "hub", notes)
    if environ.get("FIRESTEEL_HOME"):
        return Store(home.root / "huggingface/hub", notes)
    base = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME", "~")) / ".cache"
    return Store(_absolute(str(base)) / "huggingface/hub", notes)


def _absolute(text: str) -> Path:
    return Path(os.path.expandvars(text)).expanduser().absolute()


def is_commit(revision: str) -> bool:
    return bool(_COMMIT.match(revision))


def check_revision(revision: str) -> None:
    if not _REVISION.match(revision) or ".." in revision.split("/"):
        raise UsageError(f"`{revision}` is not a revision", next="--revision main, or a commit")


def check_listing(listing: Listing) -> None:
    """A path or a digest becomes a path on this disk: what leads elsewhere or fits on none is refused."""
    for file in listing.files:
        if why := _fault(file):
            raise _unkeepable(listing, file, why)
    for one, after in pairwise(sorted(listing.files, key=lambda file: file.path.replace("/", "\0"))):
        if f"{after.path}/".startswith(f"{one.path}/"):  # what lies inside a folder sorts right after it
            raise _unkeepable(listing, after, "another has its place")
    lengths = dict[str, int]()
    for file in listing.files:
        if lengths.setdefault(file.digest, file.bytes) != file.bytes:
            raise _unkeepable(listing, file, "its digest is that of a file of another length")
    if not is_commit(listing.commit):
        raise FiresteelError(f"{listing.repository} names no commit", next=_NOT_THE_HUB)


def _fault(file: HubFile) -> str | None:
    if not {"", ".", ".."}.isdisjoint(file.path.split("/")):
        return "its path leads elsewhere"
    if _CONTROL.search(file.path):
        return "its name has control characters"
    path = file.path.encode()
    if len(path) > _MAX_PATH or max(map(len, path.split(b"/"))) > _MAX_NAME:
        return "its name is too long for a disk"
    if not _DIGEST.match(file.digest) or file.bytes < 0:
        return "it has no digest, or no length"
    return None


def _unkeepable(listing: Listing, file: HubFile, why: str) -> FiresteelError:
    return FiresteelError(
        f"{listing.repository} lists a file that cannot be kept, {why}: {file.path[:_MAX_SHOWN]!r}",
        next=_NOT_THE_HUB,
    )


# --- notes ---


def cached_listing(store: Store, repository: str, revision: str) -> Listing | None:
    """What the Hub listed when it was last asked, by us or by huggingface_hub; None: it must be asked."""
    check_revision(revision)
    folder = store.folder(repository)
    commit = revision if is_commit(revision) else _line(folder / "refs" / revision)
    if commit is None or not is_commit(commit):
        return None
    for path, read in (
        (_note(store, repository, commit), _own_files),
        (folder / "trees" / f"{commit}.json", _tree_files),
    ):
        files = read(_json(path))
        if files:
            listing = Listing(repository, commit, files)
            check_listing(listing)
            return listing
    return None


def snapshot_listing(store: Store, repository: str, revision: str) -> Listing | None:
    """What a snapshot holds that somebody else fetched, for when the Hub cannot be asked; no digests."""
    folder = store.folder(repository)
    commit = revision if is_commit(revision) else _line(folder / "refs" / revision)
    if commit is None or not is_commit(commit):
        return None
    root = store.snapshot(repository, commit)
    found = [path for path in islice(root.rglob("*"), _MAX_FILES) if path.is_file()]
    files = [HubFile(path.relative_to(root).as_posix(), path.stat().st_size, "") for path in sorted(found)]
    return Listing(repository, commit, tuple(files)) if files else None


def shards(store: Store, listing: Listing) -> set[str]:
    """The files that the index of a sharded checkpoint names."""
    found = _json(store.snapshot(listing.repository, listing.commit) / "model.safetensors.index.json")
    named = found.get("weight_map") if isinstance(found, dict) else None
    return {str(name) for name in named.values()} if isinstance(named, dict) else set()


def local_snapshot(store: Store, repository: str, revision: str = "main") -> Path | None:
    """The folder of a snapshot that has a config and all the safetensors that it names; None: not in full."""
    listing = snapshot_listing(store, repository, revision)
    if listing is None:
        return None
    there = {file.path for file in listing.files}
    weights = shards(store, listing) or {"model.safetensors"}
    is_whole = "config.json" in there and weights <= there
    return store.snapshot(repository, listing.commit) if is_whole else None


def save_listing(store: Store, listing: Listing, revision: str) -> None:
    path = _note(store, listing.repository, listing.commit)
    write_text(path, json.dumps({"files": [asdict(file) for file in listing.files]}))
    if not is_commit(revision):
        _write_reference(store.folder(listing.repository) / "refs" / revision, listing.commit)


def ensure_reference(store: Store, listing: Listing) -> None:
    """A pinned commit has no branch; llama.cpp finds a snapshot only through one."""
    refs = store.folder(listing.repository) / "refs"
    if not any(path.is_file() for path in refs.glob("*")):
        _write_reference(refs / "main", listing.commit)


def _write_reference(path: Path, commit: str) -> None:
    """For all to read, unlike what else we write: the engine may run as another user."""
    make_folder(path.parent)
    half = path.with_name(f".{path.name}.{os.getpid()}")
    half.write_text(commit)
    half.replace(path)


def make_folder(folder: Path) -> None:
    with writable_folder(_nearest(folder)):
        folder.mkdir(parents=True, exist_ok=True)


def _note(store: Store, repository: str, commit: str) -> Path:
    return store.notes / store.folder(repository).name / f"{commit}.json"


def _line(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file.read(100).decode(errors="replace").strip()
    except OSError:
        return None


def _json(path: Path) -> Any:
    try:
        if path.stat().st_size > _MAX_NOTE:
            return None
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def _own_files(found: Any) -> tuple[HubFile, ...]:
    try:
        return tuple(
            HubFile(str(row["path"]), int(row["bytes"]), str(row["digest"])) for row in found["files"]
        )
    except (TypeError, KeyError, ValueError):
        return ()


def _tree_files(found: Any) -> tuple[HubFile, ...]:
    """huggingface_hub's own listing, format 1: `size`, `blob_id`, and `lfs_sha256` for a large file."""
    try:
        if found["format_version"] != 1:
            return ()
        return tuple(
            HubFile(str(path), int(row["size"]), str(row.get("lfs_sha256") or row["blob_id"]))
            for path, row in found["files"].items()
        )
    except (TypeError, KeyError, ValueError, AttributeError):
        return ()


# --- what is there ---


def is_present(store: Store, listing: Listing, file: HubFile) -> bool:
    """In its place and as long as it should be."""
    return _size(store.place(listing, file)) == file.bytes


def is_verified(store: Store, listing: Listing, file: HubFile) -> bool:
    """Read through once and found right, and not written since."""
    seen = _checked(store, listing.repository).get(file.digest)
    return seen is not None and seen == _stamp(store.place(listing, file))


def mark_verified(store: Store, listing: Listing, files: Iterable[HubFile]) -> None:
    path = store.notes / store.folder(listing.repository).name / "checked.json"
    stamps = {file.digest: _stamp(store.place(listing, file)) for file in files}
    write_text(path, json.dumps({**_checked(store, listing.repository), **stamps}))


def _checked(store: Store, repository: str) -> dict[str, Any]:
    found = _json(store.notes / store.folder(repository).name / "checked.json")
    return found if isinstance(found, dict) else {}


def _stamp(path: Path) -> list[int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns]


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def partial_bytes(store: Store, repository: str, file: HubFile) -> int:
    return min(_size(store.part(repository, file)) or 0, file.bytes)


def link(store: Store, listing: Listing, file: HubFile) -> None:
    """The blob, at its place in the snapshot; when that cannot be, nothing is left beside it."""
    place = store.place(listing, file)
    blob = store.blob(listing.repository, file)
    half = place.with_name(f".{file.digest}.{os.getpid()}")  # never too long, and no other thread's
    try:
        make_folder(place.parent)
        with writable_folder(place.parent):
            _link(place, half, os.path.relpath(blob, place.parent))
    except OSError as error:
        raise HostNotReady(
            f"{place} cannot be made ({error.strerror})", next="put the store elsewhere: HF_HOME=/path"
        ) from error


def _link(place: Path, half: Path, target: str) -> None:
    try:
        half.unlink(missing_ok=True)
        half.symlink_to(target)
        half.replace(place)
    finally:
        half.unlink(missing_ok=True)


def delete_file(store: Store, listing: Listing, file: HubFile) -> None:
    """A file that is not what it should be: the place and the bytes behind it."""
    store.place(listing, file).unlink(missing_ok=True)
    store.blob(listing.repository, file).unlink(missing_ok=True)


def new_digest(file: HubFile) -> Any:
    """What its digest is made with: git puts the length of a small file before it."""
    if len(file.digest) == 64:
        return hashlib.sha256()
    return hashlib.sha1(b"blob %d\0" % file.bytes, usedforsecurity=False)


def matches_digest(path: Path, file: HubFile, tell: Callable[[int], None]) -> bool:
    """Reads all of it, and leaves it out of the page cache: on a Spark that is the GPU's memory."""
    digest = new_digest(file)
    with path.open("rb", buffering=0) as source:
        while piece := source.read(8 * MIB):
            digest.update(piece)
            tell(len(piece))
        os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return bool(digest.hexdigest() == file.digest)


# --- may we ---


def require_space(store: Store, needed_bytes: int, what: str) -> None:
    free = free_bytes(store.root)
    if free < needed_bytes:
        raise HostNotReady(
            f"{what} needs {show_bytes(needed_bytes)} more, the disk under {store.root} has "
            f"{show_bytes(free)} free",
            next="firesteel pull --prune, or put the store elsewhere: HF_HOME=/path/with/space",
        )


def require_permission(store: Store, repository: str) -> None:
    """A container that ran as root leaves folders that we cannot write: said before a byte is fetched."""
    folder = store.folder(repository)
    try:
        for path in (_nearest(store.root), *_inside(folder)):
            may = os.R_OK | os.W_OK | os.X_OK if path.is_dir() else os.R_OK
            if path.exists() and not os.access(path, may):
                raise _foreign(path, folder if folder.exists() else path)
    except PermissionError as error:
        raise HostNotReady(
            f"{error.filename} may not be read", next="put the store elsewhere: HF_HOME=/path"
        ) from error


def _inside(folder: Path) -> list[Path]:
    """Folders that are written to, and blobs, which must be readable; a repository has hundreds at most."""
    found = [folder, *(folder / name for name in ("blobs", "refs", "snapshots"))]
    for pattern in ("blobs/*", "snapshots/*"):
        found += sorted(folder.glob(pattern))[:10_000]
    return found


def _nearest(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def _foreign(path: Path, whole: Path) -> HostNotReady:
    owner = path.stat().st_uid
    whose = "root: a container that ran as root left it" if owner == 0 else f"user {owner}"
    if owner == os.getuid():
        return HostNotReady(f"{path} may not be written", next=f"chmod -R u+rwX {whole}")
    return HostNotReady(
        f"{path} belongs to {whose}, and {os.getuid()} may not use it",
        next=f"sudo chown -R {os.getuid()}:{os.getgid()} {whole}",
    )
