"""Files that may start an engine: the ones that were named, and the likely ones in folders.

Bounded: so many files, so many bytes of each; hidden and vendored folders and links are passed over.
"""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
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


def read_text(path: Path, *, next: str = "") -> str:
    """What to type when there is none is the caller's to know; a look at its folder always helps."""
    try:
        if not path.is_file():
            look = f"ls {shlex.quote(str(path.parent))}"
            raise UsageError(f"`{path}` is not a file", next=next or look)
        with path.open("rb") as file:
            return file.read(MAX_BYTES).decode(errors="replace")
    except OSError as error:
        raise FiresteelError(f"{path} cannot be read: {error.strerror}", next=f"ls -l {path}") from error


def write_text(path: Path, text: str) -> None:
    """In one move, so that a crash leaves the old text or the new; mode and line ends stay as they were.

    What cannot be given back as it was is not touched: bytes that are no UTF-8, line ends of two kinds.
    """
    path = path.resolve()  # a link stays one, and what it leads to is written
    before = path.read_bytes()
    windows = before.count(b"\r\n")
    if not _is_utf8(before) or windows not in (0, before.count(b"\n")):
        raise FiresteelError(
            f"{path} is not UTF-8, or has line ends of two kinds; it was left alone", next=f"file {path}"
        )
    data = (text.replace("\n", "\r\n") if windows else text).encode()
    try:
        if path.stat().st_nlink > 1:
            path.write_bytes(data)  # the other names must go on meaning the same file
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
