"""What a Hub repository holds at one commit, checked before any of it becomes a path on this disk. Pure."""

from __future__ import annotations

import hashlib
import re
from itertools import pairwise
from typing import Any

from firesteel.errors import FiresteelError, UsageError
from firesteel.values import Value

_COMMIT = re.compile(r"[0-9a-f]{40}\Z")
_DIGEST = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?\Z")
_REVISION = re.compile(r"[\w][\w./-]{0,200}\Z", re.ASCII)
_MAX_NAME, _MAX_PATH = 255, 1024
"""Bytes. Linux takes 255 in a name and 4096 in a path, of which the store needs some:
https://github.com/torvalds/linux/blob/master/include/uapi/linux/limits.h, seen 2026-11-15"""
_MAX_SHOWN = 80
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Control characters, Unicode line ends, and surrogates, which cannot be part of a file name."""
_NOT_THE_HUB = "check HF_ENDPOINT: the Hub does not answer like this"


class HubFile(Value):
    path: str
    bytes: int
    digest: str
    """sha256 of a large file, git's own sha1 of a small one. Also the name of its blob."""

    def new_hash(self) -> Any:
        """The hash object for its digest; git hashes the length of a small file first."""
        if len(self.digest) == 64:
            return hashlib.sha256()
        return hashlib.sha1(b"blob %d\0" % self.bytes, usedforsecurity=False)


class Listing(Value):
    """What a repository holds at one commit."""

    repository: str
    commit: str
    files: tuple[HubFile, ...]


def is_commit(revision: str) -> bool:
    return bool(_COMMIT.match(revision))


def is_digest(text: str) -> bool:
    return bool(_DIGEST.match(text))


def check_revision(revision: str) -> None:
    if not _REVISION.match(revision) or ".." in revision.split("/"):
        raise UsageError(f"`{revision}` is not a revision", next="--revision main, or a commit")


def check_listing(listing: Listing) -> None:
    """Refuses a listing with a path or digest that leads outside the store or fits on no disk."""
    for file in listing.files:
        if reason := _defect(file):
            raise _unusable(listing, file, reason)
    # With `/` sorted as the lowest character, what lies inside a folder follows right after it.
    for file, after in pairwise(sorted(listing.files, key=lambda file: file.path.replace("/", "\0"))):
        if f"{after.path}/".startswith(f"{file.path}/"):
            raise _unusable(listing, after, "another file has the same path")
    sizes = dict[str, int]()
    for file in listing.files:
        if sizes.setdefault(file.digest, file.bytes) != file.bytes:
            raise _unusable(listing, file, "a file of another size has the same digest")
    if not is_commit(listing.commit):
        raise FiresteelError(f"{listing.repository} names no commit", next=_NOT_THE_HUB)


def _defect(file: HubFile) -> str | None:
    if not {"", ".", ".."}.isdisjoint(file.path.split("/")):
        return "its path leads elsewhere"
    if _CONTROL.search(file.path):
        return "its name has control characters"
    path = file.path.encode()
    if len(path) > _MAX_PATH or max(map(len, path.split(b"/"))) > _MAX_NAME:
        return "its name is too long for a disk"
    if not is_digest(file.digest) or file.bytes < 0:
        return "it has no digest, or no size"
    return None


def _unusable(listing: Listing, file: HubFile, reason: str) -> FiresteelError:
    return FiresteelError(
        f"{listing.repository} lists a file that cannot be stored, {reason}: {file.path[:_MAX_SHOWN]!r}",
        next=_NOT_THE_HUB,
    )
