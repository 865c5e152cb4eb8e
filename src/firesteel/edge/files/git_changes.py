"""Which lines of the user's files git says have changed since a commit."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from firesteel.errors import FiresteelError, UsageError

_TIMEOUT_S = 60
_HUNK = re.compile(r"@@ -\d+(?:,\d+)? \+(\d+)(?:,(\d+))? @@")

Lines = tuple[range, ...] | None
"""The lines of a file that are new or changed; None: all of them, the file is new."""


class GitChanges:
    """What differs from a commit, in every repository that is asked about; each is read once."""

    def __init__(self, ref: str) -> None:
        if ref.startswith("-"):
            raise UsageError(f"`{ref}` is not a commit", next="--changed-since main")
        self.ref = ref
        self._tops: dict[Path, Path] = {}
        self._changes: dict[Path, dict[Path, Lines]] = {}

    def lines(self, path: Path) -> Lines:
        """Of an absolute path; an untracked file is new."""
        folder = path.parent
        if folder not in self._tops:
            self._tops[folder] = Path(_git(folder, "rev-parse", "--show-toplevel").strip())
        top = self._tops[folder]
        if top not in self._changes:
            self._changes[top] = _changes(self.ref, top)
        return self._changes[top].get(path, ())


def _changes(ref: str, top: Path) -> dict[Path, Lines]:
    _git(top, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
    diff = ("diff", "--no-color", "--no-ext-diff", "--unified=0", ref)
    changed: dict[Path, Lines] = dict(_hunks(top, _git(top, "-c", "core.quotePath=false", *diff)))
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
