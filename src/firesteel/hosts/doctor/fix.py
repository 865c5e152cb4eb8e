"""`doctor --fix` and `--undo`: choose fixes, apply and verify them one by one, and revert them.

This is the only part of `doctor` that changes a host. Each step is first written to a journal and synced, one
file per fix under `/var/lib/firesteel/doctor`: what was before, what is now, and how far the fix got. So the
fixes of a run that was killed, or of a host that was switched off, can be reverted. That compares what is
there now with what was there before and with what the fix wrote: changes made by others since then
are kept and reported.
"""

from __future__ import annotations

import base64
import difflib
import json
import os
import re
import stat
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from firesteel.edge.home import Home, Locked, lock, read_state
from firesteel.edge.host.machine_files import sim_folder
from firesteel.errors import FiresteelError, HostNotReady, UsageError
from firesteel.hosts.doctor.examine import Examination, examine
from firesteel.rules.host.check import host_check
from firesteel.rules.host.fixes import FIXERS, ONLY_BY_NAME, Change, FixPlan, plan_fix
from firesteel.values import Value, plain, replace


class Fixed(Value):
    check: str
    verified: bool
    says: str
    """What was read afterwards, or when it will take effect."""


def root_of(root: Path | None) -> Path:
    """What stands for `/`: a simulated Spark has its own folder."""
    return root or sim_folder() or Path("/")


def plan_fixes(examination: Examination, names: Sequence[str] = ()) -> tuple[FixPlan, ...]:
    """For what is wrong: of the named checks, or of all that have a fix without a price."""
    for name in names:
        host_check(name)
    bad = {finding.check: finding for finding in examination.findings if finding.is_bad}
    chosen = names or [name for name in bad if name in FIXERS and name not in ONLY_BY_NAME]
    return tuple(plan_fix(name, examination.facts) for name in chosen if name in bad)


def require_root(root: Path, again: str) -> None:
    if root == Path("/") and os.geteuid() != 0:
        raise HostNotReady("changing the host needs root", next=f"sudo {again}")


def apply_fix(plan: FixPlan, home: Home, root: Path | None = None) -> Fixed:
    """Applies one fix and judges the host again; a fix that does not help is reverted."""
    base = root_of(root)
    with exclusive(base):
        entry = apply(base, plan)
        problems = f"; {entry.result}" if entry.result else ""
        finding = examine(home, root=root, only=(plan.check,)).findings[0]
        if not finding.is_bad:
            return Fixed(plan.check, True, f"{finding.evidence}{problems}")
        if plan.later:
            return Fixed(plan.check, True, f"takes effect {plan.later}{problems}")
        if base != Path("/") and _has_unrun_commands(base, plan):
            return Fixed(plan.check, True, f"its files are written; its commands do not run under {base}")
        undo(base, entry)
        return Fixed(plan.check, False, f"it did not help ({finding.evidence}), so it was reverted{problems}")


def _has_unrun_commands(root: Path, plan: FixPlan) -> bool:
    commands = [change.command for change in plan.changes if change.command]
    return any(not (root / "bin" / command[0]).exists() for command in commands)


def half_done(root: Path | None) -> list[str]:
    """The checks whose fix or undo was killed on the way, as far as the journal can be read."""
    return [entry.check for entry in open_entries(root_of(root)) if entry.state == "applying"]


def to_undo(root: Path | None, names: Iterable[str] = ()) -> list[JournalEntry]:
    """What would be reverted, the newest first."""
    base, wanted = root_of(root), set(names)
    folder = base / JOURNAL_FOLDER
    if folder.exists() and not os.access(folder, os.R_OK | os.X_OK):
        raise HostNotReady("the journal can be read only by root", next="sudo firesteel doctor --undo")
    found = [entry for entry in open_entries(base) if not wanted or entry.check in wanted]
    missing = wanted - {entry.check for entry in found}
    if missing:
        raise UsageError(
            f"`{min(missing)}` was not changed here by firesteel, or is already reverted",
            next="firesteel doctor --undo, which lists what was changed",
        )
    return found


def undo_fix(entry: JournalEntry, root: Path | None = None) -> Undone:
    base = root_of(root)
    with exclusive(base):
        return undo(base, entry)


# --- apply a fix, and take it back ---

_COMMAND_TIMEOUT_S = 120


class Undone(Value):
    entry: JournalEntry
    left: tuple[str, ...]
    """What was not reverted, and why."""


@contextmanager
def exclusive(root: Path) -> Iterator[None]:
    """Only one `doctor --fix` or `--undo` at a time."""
    folder = root / JOURNAL_FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with lock(folder / "lock"):
            yield
    except Locked:
        raise FiresteelError("another `firesteel doctor` is changing this host", next="wait for it") from None


def diff(root: Path, plan: FixPlan) -> str:
    """What a fix would change, as a unified diff; commands are listed after it."""
    lines: list[str] = []
    for change in plan.changes:
        lines += _change_diff(root, change)
    lines += [f"then: {' '.join(command)}" for command in plan.activate]
    return "\n".join(lines)


def _change_diff(root: Path, change: Change) -> list[str]:
    if change.kind == "command":
        undo = f"   (undo: {' '.join(change.undo)})" if change.undo else ""
        kept = f"   (/{change.path} is saved before)" if change.path else ""
        return [f"run:  {' '.join(change.command)}{undo}{kept}"]
    before = read_before(root, change)
    old = before.link if before.link is not None else (content_of(before) or b"").decode(errors="replace")
    shown = {"link": "-> ", "live": "", "file": ""}[change.kind]
    first = [f"{shown}{line}" for line in old.splitlines()]
    second = [f"{shown}{line}" for line in change.after.splitlines()]
    exists = before.link is not None or before.content is not None
    names = (f"/{change.path}" if exists else "/dev/null", f"/{change.path}")
    rows = list(difflib.unified_diff(first, second, *names, lineterm=""))
    return rows or [f"--- {names[0]}", f"+++ {names[1]}", "(an empty file)"]


def apply(root: Path, plan: FixPlan) -> JournalEntry:
    """Makes the changes; what fails half-way is reverted at once."""
    entry = write_entry(root, new_entry(root, plan))
    problems: list[str] = []
    try:
        for index, change in enumerate(plan.changes):
            entry = update_entry(root, entry, started=index + 1)
            _make(root, change)
        for command in plan.activate:
            if problem := run_command(root, command):
                problems.append(problem)
    except BaseException as error:
        left = undo(root, entry).left
        rest = f"; not reverted: {'; '.join(left)}" if left else "; everything was reverted"
        if isinstance(error, (OSError, FiresteelError)):
            raise FiresteelError(f"{plan.check}: {error}{rest}", next="firesteel doctor") from error
        raise
    return update_entry(root, entry, state="done", result="; ".join(problems))


def _make(root: Path, change: Change) -> None:
    path = root / change.path
    if change.kind == "file":
        _write(path, change.after.encode(), change.mode)
    elif change.kind == "link":
        _link(path, change.after)
    elif change.kind == "live":
        path.write_text(f"{change.after}\n")
    elif problem := run_command(root, change.command):
        raise FiresteelError(problem)


def _write(path: Path, content: bytes, mode: int, owner: tuple[int, int] | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.firesteel")
    try:
        with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(mode)
        if owner and os.geteuid() == 0:
            os.chown(temporary, *owner)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.firesteel")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(path)


def undo(root: Path, entry: JournalEntry) -> Undone:
    """Reverts a fix, however far it got; one that is already reverted stays as it is."""
    left: list[str] = []
    was_done = entry.state == "done"
    entry = update_entry(root, entry, state="applying")  # until it is reverted, it is half done
    steps = list(zip(entry.changes, entry.before, strict=True))[: entry.started]
    for change, before in reversed(steps):
        if problem := _revert(root, change, before, was_done=was_done):
            left.append(problem)
    _remove_temporaries(root, entry)
    for folder in entry.folders:
        path = root / folder
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
    for command in entry.deactivate:
        if problem := run_command(root, command):
            left.append(problem)
    return Undone(update_entry(root, entry, state="undone", result="; ".join(left)), tuple(left))


def _remove_temporaries(root: Path, entry: JournalEntry) -> None:
    """Of a run that was killed while it wrote a file."""
    for change in entry.changes:
        if change.kind in ("file", "link"):
            path = root / change.path
            path.with_name(f".{path.name}.firesteel").unlink(missing_ok=True)


def _revert(root: Path, change: Change, before: PathState, *, was_done: bool) -> str | None:
    """None when it is as it was; else why it is not."""
    if change.kind == "command":
        # A command of a run that was killed may not have run; then its undo may fail, and nothing is wrong.
        problem = run_command(root, change.undo) if change.undo else None
        if change.path:
            _restore(root / change.path, before)
        return problem if was_done else None
    now = read_before(root, change)
    if (now.link, now.content) == (before.link, before.content):
        return None
    if change.kind == "live":
        return _restore_value(root, change, before, now)
    ours = now.link == change.after if change.kind == "link" else content_of(now) == change.after.encode()
    if not ours:
        return f"/{change.path} was changed by others since then, so it is kept"
    _restore(root / change.path, before)
    return None


def _restore_value(root: Path, change: Change, before: PathState, now: PathState) -> str | None:
    value, current = content_of(before), content_of(now)
    if not value or current is None:  # it can only be written, or its device is gone
        return None
    if current != change.after.encode():
        return f"/{change.path} is {current.decode(errors='replace')} now, set by others"
    (root / change.path).write_bytes(value + b"\n")
    return None


def _restore(path: Path, before: PathState) -> None:
    if before.link is not None:
        _link(path, before.link)
    elif before.content is not None:
        _write(path, content_of(before) or b"", before.mode, (before.uid, before.gid))
    else:
        path.unlink(missing_ok=True)


def run_command(root: Path, command: tuple[str, ...]) -> str | None:
    """None when it worked. Under a folder that stands for `/`, only programs in its `bin` are run."""
    program, environ = command[0], dict(os.environ)
    if root != Path("/"):
        own = root / "bin" / program
        if not own.exists():
            return None
        program, environ = str(own), {**environ, "ROOT": str(root)}
    try:
        done = subprocess.run(
            [program, *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_COMMAND_TIMEOUT_S,
            check=False,
            env=environ,
        )
    except FileNotFoundError:
        return f"`{' '.join(command)}`: there is no {command[0]}"
    except subprocess.TimeoutExpired:
        return f"`{' '.join(command)}` did not end within {_COMMAND_TIMEOUT_S} s"
    if done.returncode == 0:
        return None
    output = done.stdout.decode(errors="replace").strip().splitlines()
    return f"`{' '.join(command)}` failed: {output[-1] if output else f'exit code {done.returncode}'}"


# --- the journal ---

JOURNAL_FOLDER = Path("var/lib/firesteel/doctor")
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


def journal_entries(root: Path) -> list[JournalEntry]:
    """The oldest first; other files are ignored."""
    folder = root / JOURNAL_FOLDER
    found = (read_state(path, JournalEntry) for path in sorted(folder.glob("[0-9]*-*.json")))
    return [entry for entry in found if entry]


def open_entries(root: Path) -> list[JournalEntry]:
    """What was changed and not reverted, the newest first."""
    return [entry for entry in reversed(journal_entries(root)) if entry.state != "undone"]


def new_entry(root: Path, plan: FixPlan) -> JournalEntry:
    files = (root / JOURNAL_FOLDER).glob("*")
    numbers = [int(match[1]) for path in files if (match := re.match(r"(\d+)-", path.name))]
    now = datetime.now(UTC).isoformat(timespec="seconds")
    before = tuple(read_before(root, change) for change in plan.changes)
    folders = _missing_folders(root, plan.changes)
    return JournalEntry(
        max(numbers, default=0) + 1, plan.check, now, "applying", plan.changes, before, folders,
        activate=plan.activate, deactivate=plan.deactivate,
    )  # fmt: skip


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


def write_entry(root: Path, entry: JournalEntry) -> JournalEntry:
    """On the disk when it returns."""
    folder = root / JOURNAL_FOLDER
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


def update_entry(root: Path, entry: JournalEntry, **changed: object) -> JournalEntry:
    return write_entry(root, replace(entry, **changed))
