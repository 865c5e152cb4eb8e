"""Which lines of the user's files git says have changed since a commit."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from firesteel.errors import FiresteelError, UsageError

_TIMEOUT_S = 60
_HUNK = re.compile(r"@@ -\d+(?:,\d+)? \+(\d+)(?:,(\d+))? @@")

ChangedLines = Mapping[Path, tuple[range, ...] | None]
"""Absolute paths -> the lines that are new or changed; None: every line, the file is new."""


def changed_since(ref: str, folder: Path) -> ChangedLines:
    """Files of the repository around a folder that differ from a commit, untracked ones too."""
    if ref.startswith("-"):
        raise UsageError(f"`{ref}` is not a commit", next="--changed-since main")
    return _changes(ref, _top(folder))


@cache
def _top(folder: Path) -> Path:
    return Path(_git(folder, "rev-parse", "--show-toplevel").strip())


@cache
def _changes(ref: str, top: Path) -> ChangedLines:
    _git(top, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
    changed: dict[Path, tuple[range, ...] | None] = dict(
        _hunks(
            top,
            _git(
                top, "-c", "core.quotePath=false", "diff", "--no-color", "--no-ext-diff", "--unified=0", ref
            ),
        )
    )
    untracked = _git(top, "ls-files", "--others", "--exclude-standard", "-z")
    changed.update((top / name, None) for name in untracked.split("\0") if name)
    return changed


def _hunks(top: Path, diff: str) -> list[tuple[Path, tuple[range, ...]]]:
    found: dict[Path, list[range]] = {}
    lines: list[range] = []
    for line in diff.split("\n"):
        if line.startswith("+++ "):
            lines = []
            if line.startswith("+++ b/"):
                found[top / line[6:].rstrip("\t")] = lines
        elif hunk := _HUNK.match(line):
            start, count = int(hunk[1]), int(hunk[2] or 1)
            lines.append(range(start, start + max(count, 1)))
    return [(path, tuple(ranges)) for path, ranges in found.items()]


def _git(folder: Path, *args: str) -> str:
    try:
        ran = subprocess.run(
            ["git", "-C", str(folder), *args], capture_output=True, timeout=_TIMEOUT_S, check=False
        )
    except FileNotFoundError:
        raise FiresteelError(
            "there is no `git` here, and --changed-since asks it", next="install git"
        ) from None
    except subprocess.TimeoutExpired:
        raise FiresteelError(f"git took longer than {_TIMEOUT_S} s", next=f"git -C {folder} status") from None
    if ran.returncode:
        said = ran.stderr.decode(errors="replace").strip().splitlines()
        why = said[-1] if said else f"there is no commit `{args[-1].removesuffix('^{commit}')}`"
        raise UsageError(f"git: {why}", next="--changed-since with a commit or branch of this repository")
    return ran.stdout.decode(errors="replace")
