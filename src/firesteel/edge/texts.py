"""Files that may start an engine: the ones that were named, and the likely ones in folders.

Bounded: so many files, so many bytes of each; hidden and vendored folders and links are passed over.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from firesteel.errors import FiresteelError, UsageError

MAX_FILES = 10_000
MAX_BYTES = 12 * 2**20
"""More than any reader takes; what is longer is refused there, and never read whole."""
_SUFFIXES = {
    ".sh", ".bash", ".zsh", ".md", ".markdown", ".mdx", ".yaml", ".yml", ".service", ".container", ".txt",
}  # fmt: skip
_NAMES = {"Makefile", "justfile", "README"}
_PASSED_OVER = {"node_modules", "__pycache__", "site-packages", "venv", "build", "dist"}


def open_text(path: Path) -> str:
    try:
        if not path.is_file():
            raise UsageError(f"`{path}` is not a file", next="firesteel check -, and paste the line")
        with path.open("rb") as file:
            return file.read(MAX_BYTES).decode(errors="replace")
    except OSError as error:
        raise FiresteelError(f"{path} cannot be read: {error.strerror}", next=f"ls -l {path}") from error


def write_text(path: Path, text: str) -> None:
    """In one move, so that a crash leaves the old text or the new; mode and line ends stay as they were."""
    before = path.read_bytes()
    if b"\r\n" in before:
        text = text.replace("\n", "\r\n")
    new = path.with_name(f".{path.name}.firesteel")
    try:
        with new.open("wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        shutil.copymode(path, new)
        new.replace(path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise FiresteelError(f"{path} cannot be written: {error.strerror}", next=f"ls -l {path}") from error


def write_new(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise FiresteelError(
            f"{path} cannot be written: {error.strerror}", next=f"ls -ld {path.parent}"
        ) from error


def gather(paths: list[Path]) -> Iterator[Path]:
    """The files themselves, and what a folder holds, in a stable order."""
    count = 0
    for path in paths:
        for found in _inside(path) if path.is_dir() else (path,):
            count += 1
            if count > MAX_FILES:
                raise UsageError(f"more than {MAX_FILES:,} files", next="firesteel check a smaller folder")
            yield found


def _inside(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name[0] != "." and name not in _PASSED_OVER)
        for name in sorted(names):
            path = Path(root, name)
            if (path.suffix.lower() in _SUFFIXES or name in _NAMES) and not path.is_symlink():
                yield path
