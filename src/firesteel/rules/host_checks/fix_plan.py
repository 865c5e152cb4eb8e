"""What a fix changes, as values: files, links, kernel values and commands, each with its way back."""

from __future__ import annotations

from typing import Literal

from firesteel.values import Value

ChangeKind = Literal["file", "link", "live", "command"]
"""file: the content of a file. link: a symbolic link. live: a value under /proc/sys or /sys, which a reboot
resets. command: a program that changes something, with one that changes it back."""


class Change(Value):
    kind: ChangeKind
    path: str = ""
    """Without the leading `/`; of a command: a file that it rewrites, which is saved before; or empty."""
    after: str = ""
    """Content, target or value. A live value of which nothing is kept (`drop_caches`) has no way back."""
    mode: int = 0o644
    command: tuple[str, ...] = ()
    undo: tuple[str, ...] = ()


class FixPlan(Value):
    check: str
    changes: tuple[Change, ...] = ()
    activate: tuple[tuple[str, ...], ...] = ()
    """Run after the changes, so that they take effect; a failure is told."""
    deactivate: tuple[tuple[str, ...], ...] = ()
    """Run after they were taken back."""
    notes: tuple[str, ...] = ()
    """What the user should know first: whose file it is, what is interrupted."""
    later: str = ""
    """When it takes effect, if not at once: `from the next login on`."""
    refused: str = ""
    """Why it is not done: it belongs to somebody else; empty: it can be done."""


def file(path: str, text: str, mode: int = 0o644) -> Change:
    return Change("file", path, text, mode)


def link(path: str, target: str) -> Change:
    return Change("link", path, target)


def live(path: str, value: str) -> Change:
    return Change("live", path, value)


def command(do: tuple[str, ...], undo: tuple[str, ...] = (), *, saves: str = "") -> Change:
    return Change("command", saves, command=do, undo=undo)
