"""Apply a fix and take it back. The only part of `doctor` that changes a host.

Each step first stands in the journal. Taking back compares what is there now with what was there before and
with what the fix wrote: what somebody else has changed since is left alone, and told.
"""

from __future__ import annotations

import difflib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from firesteel.edge.home import Locked, lock
from firesteel.errors import FiresteelError
from firesteel.hosts.doctor import journal
from firesteel.hosts.doctor.journal import JournalEntry, PathState, content_of, read_before, saved
from firesteel.rules.host.fixes import Change, FixPlan
from firesteel.values import Value

_COMMAND_TIMEOUT_S = 120


class Undone(Value):
    entry: JournalEntry
    left: tuple[str, ...]
    """What was not taken back, and why."""


@contextmanager
def exclusive(root: Path) -> Iterator[None]:
    """Only one `doctor --fix` or `--undo` at a time."""
    folder = root / journal.FOLDER
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
    """Makes the changes; what fails half-way is taken back at once."""
    entry = journal.save(root, journal.new_entry(root, plan))
    problems: list[str] = []
    try:
        for index, change in enumerate(plan.changes):
            entry = saved(root, entry, started=index + 1)
            _make(root, change)
        for command in plan.activate:
            if problem := run_command(root, command):
                problems.append(problem)
    except BaseException as error:
        left = undo(root, entry).left
        rest = f"; not taken back: {'; '.join(left)}" if left else "; everything was taken back"
        if isinstance(error, (OSError, FiresteelError)):
            raise FiresteelError(f"{plan.check}: {error}{rest}", next="firesteel doctor") from error
        raise
    return saved(root, entry, state="done", result="; ".join(problems))


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
    """Takes a fix back, however far it got; once taken back, nothing happens."""
    left: list[str] = []
    was_done = entry.state == "done"
    entry = saved(root, entry, state="applying")  # until it is taken back, it is half done
    steps = list(zip(entry.changes, entry.before, strict=True))[: entry.started]
    for change, before in reversed(steps):
        if problem := _take_back(root, change, before, was_done=was_done):
            left.append(problem)
    _remove_temporaries(root, entry)
    for folder in entry.folders:
        path = root / folder
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
    for command in entry.deactivate:
        if problem := run_command(root, command):
            left.append(problem)
    return Undone(saved(root, entry, state="undone", result="; ".join(left)), tuple(left))


def _remove_temporaries(root: Path, entry: JournalEntry) -> None:
    """Of a run that was killed while it wrote a file."""
    for change in entry.changes:
        if change.kind in ("file", "link"):
            path = root / change.path
            path.with_name(f".{path.name}.firesteel").unlink(missing_ok=True)


def _take_back(root: Path, change: Change, before: PathState, *, was_done: bool) -> str | None:
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
        return f"/{change.path} was changed by somebody else since, and stays as it is"
    _restore(root / change.path, before)
    return None


def _restore_value(root: Path, change: Change, before: PathState, now: PathState) -> str | None:
    value, current = content_of(before), content_of(now)
    if not value or current is None:  # it can only be written, or its device is gone
        return None
    if current != change.after.encode():
        return f"/{change.path} is {current.decode(errors='replace')} now, which somebody else set"
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
