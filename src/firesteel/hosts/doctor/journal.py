"""The journal of `doctor --fix`: what was before, what is now, and how far a fix got, in one file per fix.

It lies under `/var/lib/firesteel/doctor` and is written and synced before anything is changed, so a run that
was killed at any point, or a host that was switched off, can be taken back.
"""

from __future__ import annotations

import base64
import json
import os
import re
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from firesteel.edge.home import read_state
from firesteel.rules.host.fixes import Change, FixPlan
from firesteel.values import Value, plain, replace

FOLDER = Path("var/lib/firesteel/doctor")
EntryState = Literal["applying", "done", "undone"]


class PathState(Value):
    """What was at a path; both None: nothing."""

    content: str | None = None
    """In base64."""
    link: str | None = None
    mode: int = 0o644
    uid: int = 0
    gid: int = 0


class JournalEntry(Value):
    number: int
    check: str
    at: str
    state: EntryState
    changes: tuple[Change, ...]
    before: tuple[PathState, ...]
    """Of each change."""
    folders: tuple[str, ...] = ()
    """That were made for them."""
    started: int = 0
    """How many of the changes were begun."""
    activate: tuple[tuple[str, ...], ...] = ()
    deactivate: tuple[tuple[str, ...], ...] = ()
    result: str = ""

    @property
    def name(self) -> str:
        return f"{self.number:04d}-{self.check}.json"


def entries(root: Path) -> list[JournalEntry]:
    """The oldest first; a file that is none of ours is ignored."""
    folder = root / FOLDER
    found = (read_state(path, JournalEntry) for path in sorted(folder.glob("[0-9]*-*.json")))
    return [entry for entry in found if entry]


def open_entries(root: Path) -> list[JournalEntry]:
    """What was changed and not taken back, the newest first."""
    return [entry for entry in reversed(entries(root)) if entry.state != "undone"]


def new_entry(root: Path, plan: FixPlan) -> JournalEntry:
    numbers = [int(match[1]) for path in _names(root) if (match := re.match(r"(\d+)-", path))]
    now = datetime.now(UTC).isoformat(timespec="seconds")
    before = tuple(read_before(root, change) for change in plan.changes)
    folders = _missing_folders(root, plan.changes)
    return JournalEntry(
        max(numbers, default=0) + 1, plan.check, now, "applying", plan.changes, before, folders,
        activate=plan.activate, deactivate=plan.deactivate,
    )  # fmt: skip


def _names(root: Path) -> list[str]:
    folder = root / FOLDER
    return [path.name for path in folder.iterdir()] if folder.is_dir() else []


def _missing_folders(root: Path, changes: tuple[Change, ...]) -> tuple[str, ...]:
    """The deepest first."""
    found: dict[str, None] = {}
    for change in changes:
        for parent in Path(change.path).parents if change.kind in ("file", "link") else ():
            if str(parent) != "." and not (root / parent).exists():
                found[str(parent)] = None
    return tuple(sorted(found, key=len, reverse=True))


def read_before(root: Path, change: Change) -> PathState:
    if not change.path:
        return PathState()
    path = root / change.path
    try:
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            return PathState(link=str(path.readlink()), uid=status.st_uid, gid=status.st_gid)
        mode = stat.S_IMODE(status.st_mode)
        content = path.read_bytes() if mode & 0o444 else b""  # `drop_caches` can only be written
    except FileNotFoundError:
        return PathState()
    text = base64.b64encode(_live_value(content) if change.kind == "live" else content).decode()
    return PathState(text, None, mode, status.st_uid, status.st_gid)


def _live_value(content: bytes) -> bytes:
    """`always [madvise] never` is shown, `madvise` is written."""
    chosen = re.search(rb"\[(\S+)\]", content)
    return chosen[1] if chosen else content.strip()


def content_of(before: PathState) -> bytes | None:
    return None if before.content is None else base64.b64decode(before.content)


def save(root: Path, entry: JournalEntry) -> JournalEntry:
    """On the disk when it returns."""
    folder = root / FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = folder / f".{entry.name}"
    with open(temporary, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        json.dump(plain(entry), file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / entry.name)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return entry


def saved(root: Path, entry: JournalEntry, **changed: object) -> JournalEntry:
    return save(root, replace(entry, **changed))
