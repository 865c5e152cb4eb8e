"""Reads and writes the user's text files, and finds those in folders that may start an engine.

Bounded in files and in bytes per file; hidden and vendored folders and links are skipped.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

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
_MAX_BESIDE = 2**20
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


def read_beside(roots: Sequence[Path], path: str, name: str) -> str | None:
    """A file that another one names, relative to it; None where there is none, where it is too large, or
    where it lies outside of the folders that are checked: a text must not make us read anything else."""
    try:
        target = Path(path).parent / name
        if not target.exists():  # as most: finding out where it would be takes longer
            return None
        target = target.resolve()
        if not any(target.is_relative_to(root) for root in roots) or not target.is_file():
            return None
        if target.stat().st_size > _MAX_BESIDE:
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
