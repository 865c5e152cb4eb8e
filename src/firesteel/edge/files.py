"""The user's files: texts that may start an engine, logs of any length, settings of other programs.

Limited in files and in bytes per file; hidden and vendored folders and links are skipped. A log is read in
pieces. Settings are found where their program looks, and replaced as a whole, with a backup. `GitChanges`
says which lines have changed since a commit. Nothing is interpreted beyond checking that it is sound.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from codecs import getincrementaldecoder
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from firesteel.edge import home
from firesteel.errors import FiresteelError, UsageError

MAX_FILES = 10_000
MAX_BYTES = 12 * 2**20
"""More than any reader accepts; a longer file is refused there, and never read whole."""
_SUFFIXES = {
    ".sh", ".bash", ".zsh", ".ksh", ".fish", ".md", ".markdown", ".mdx", ".rst", ".yaml", ".yml", ".service",
    ".container", ".txt", ".ipynb", ".nomad", ".hcl", ".dockerfile", ".mk", ".just", ".cmd", ".ps1", ".bat",
}  # fmt: skip
_NAMES = re.compile(
    r"(?:GNU)?makefile[\w.-]*|\.?justfile|README|(?:Docker|Container)file[\w.-]*|[\w.-]+\.(?:sh|service|ya?ml|md)\.(?:j2|tmpl|template|example|in)",
    re.IGNORECASE,
)
_HIDDEN = {".github", ".gitlab", ".devcontainer"}
"""Hidden folders with pipelines."""
_MAX_REFERENCED_BYTES = 2**20
_SKIPPED = {"node_modules", "__pycache__", "site-packages", "venv", "build", "dist"}


def read_text(path: Path, *, next: str = "") -> str:
    """`next` is what to type when there is no such file; by default, to list its folder."""
    try:
        if not path.is_file():
            raise UsageError(f"`{path}` is not a file", next=next or f"ls {shlex.quote(str(path.parent))}")
        with path.open("rb") as file:
            return file.read(MAX_BYTES).decode(errors="replace")
    except OSError as error:
        raise FiresteelError(f"{path} cannot be read: {error.strerror}", next=f"ls -l {path}") from error


def read_referenced(roots: Sequence[Path], path: str, name: str) -> str | None:
    """A file that another one names, relative to it; None if there is none, if it is too large, or if it
    is outside the folders that are checked: a text must not make us read anything else."""
    try:
        target = Path(path).parent / name
        if not target.exists():  # as most: finding out where it would be takes longer
            return None
        target = target.resolve()
        if not any(target.is_relative_to(root) for root in roots) or not target.is_file():
            return None
        if target.stat().st_size > _MAX_REFERENCED_BYTES:
            return None
        return target.read_bytes().decode(errors="replace")
    except (OSError, ValueError, RuntimeError):
        return None


def write_text(path: Path, text: str) -> None:
    """Replaces the text atomically; mode and line ends stay as they were.

    A file that could not be restored exactly is refused: one that is not UTF-8, or has mixed line ends.
    """
    path = path.resolve()  # keep a link, and write what it points to
    before = path.read_bytes()
    crlf_count = before.count(b"\r\n")
    if not _is_utf8(before) or crlf_count not in (0, before.count(b"\n")):
        raise FiresteelError(
            f"{path} is not UTF-8 or has mixed line ends; it was not changed", next=f"file {path}"
        )
    data = (text.replace("\n", "\r\n") if crlf_count else text).encode()
    try:
        if path.stat().st_nlink > 1:
            path.write_bytes(data)  # hard links: the other names must keep meaning the same file
        else:
            _replace(path, data)
    except OSError as error:
        raise FiresteelError(f"{path} cannot be written: {error.strerror}", next=f"ls -l {path}") from error


def _replace(path: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        shutil.copymode(path, name)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def write_new(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise FiresteelError(
            f"{path} cannot be written: {error.strerror}", next=f"ls -ld {path.parent}"
        ) from error


def find_files(paths: list[Path]) -> Iterator[Path]:
    """The files themselves, and those in folders, in a stable order."""
    count = 0
    for path in paths:
        for file in _files_in(path) if path.is_dir() else (path,):
            count += 1
            if count > MAX_FILES:
                raise UsageError(f"more than {MAX_FILES:,} files", next="firesteel check a smaller folder")
            yield file


def _files_in(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(
            name for name in folders if name in _HIDDEN or (name[0] != "." and name not in _SKIPPED)
        )
        for name in sorted(names):
            path = Path(root, name)
            if (path.suffix.lower() in _SUFFIXES or _NAMES.fullmatch(name)) and not path.is_symlink():
                yield path


MAX_BACKUPS = 100


def settings_path(
    variable: str, default: str, files: Sequence[str], new_file: str, environ: Mapping[str, str] = os.environ
) -> Path:
    """The first of the files that exists, or the one to create. The variable may move their folder."""
    chosen = environ.get(variable)
    folder = Path(chosen or default.replace("~", environ.get("HOME") or str(Path.home()), 1))
    return next((folder / name for name in files if (folder / name).exists()), folder / new_file)


def read_settings(path: Path) -> str:
    """Its text with Unix line ends; empty when there is no file."""
    return read_text(path).replace("\r\n", "\n") if path.exists() else ""


def replace_settings(path: Path, text: str) -> Path | None:
    """Writes the new text atomically; returns the path of the backup, if there was a file."""
    if not path.exists():
        home.write_text(path, text)
        return None
    backup = _backup_path(path)
    try:
        shutil.copy2(path, backup)
    except OSError as error:
        raise FiresteelError(
            f"{path} cannot be copied: {error.strerror}", next=f"ls -ld {path.parent}"
        ) from error
    write_text(path, text)
    return backup


def _backup_path(path: Path) -> Path:
    """A name that no earlier backup has."""
    for number in range(1, MAX_BACKUPS):
        backup = path.with_name(f"{path.name}.before-firesteel{f'-{number}' if number > 1 else ''}")
        if not backup.exists():
            return backup
    raise FiresteelError(f"{path} has {MAX_BACKUPS} backups already", next=f"rm {path}.before-firesteel*")


MAX_LOG_BYTES = 2**30
"""The longest log that is read; the first cause of a longer one is not in its last gigabyte anyway."""
_CHUNK_BYTES = 2**16


@contextmanager
def open_log(source: Path | BinaryIO, name: str) -> Iterator[Iterator[str]]:
    """The text in chunks. `name` is for messages."""
    try:
        if not isinstance(source, Path):
            yield _read_log(source, name)
            return
        with source.open("rb") as file:
            yield _read_log(file, name)
    except OSError as error:
        raise FiresteelError(f"{name} cannot be read: {error.strerror}", next=f"ls -l {name}") from error


def _read_log(file: BinaryIO, name: str) -> Iterator[str]:
    decoder, count = getincrementaldecoder("utf-8")(errors="replace"), 0
    while data := file.read(_CHUNK_BYTES):
        if not count and b"\0" in data:
            raise UsageError(
                f"{name} is not text", next="firesteel logs FILE --why, with the log of the engine"
            )
        count += len(data)
        if count > MAX_LOG_BYTES:
            raise UsageError(
                f"{name} is longer than {MAX_LOG_BYTES:,} bytes",
                next=f"head -c 100M {name} | firesteel logs - --why",
            )
        yield decoder.decode(data)
    yield decoder.decode(b"", final=True)


_GIT_TIMEOUT_S = 60
_HUNK = re.compile(r"@@ -\d+(?:,\d+)? \+(\d+)(?:,(\d+))? @@")

Lines = tuple[range, ...] | None
"""The lines of a file that are new or changed; None: all of them, the file is new."""


class GitChanges:
    """What differs from a commit, in the repository of each file; a repository is read once."""

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
            ["git", "-C", str(folder), *args], capture_output=True, timeout=_GIT_TIMEOUT_S, check=False
        )
    except FileNotFoundError:
        raise FiresteelError(
            "git is not installed here, and --changed-since needs it", next="install git"
        ) from None
    except subprocess.TimeoutExpired:
        raise FiresteelError(
            f"git took longer than {_GIT_TIMEOUT_S} s", next=f"git -C {folder} status"
        ) from None
    if ran.returncode:
        said = ran.stderr.decode(errors="replace").strip().splitlines()
        why = said[-1] if said else f"there is no commit `{args[-1].removesuffix('^{commit}')}`"
        raise UsageError(f"git: {why}", next="--changed-since with a commit or branch of this repository")
    return ran.stdout.decode(errors="replace")
