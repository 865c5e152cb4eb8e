"""firesteel's own folder: everything that it writes is under `FIRESTEEL_HOME`.

engines/   pulled engines, one a version      models/    weights that came with a package
services/  one folder a running model         recipes/ models/ images.yaml   the user's own catalog
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from firesteel.errors import HostNotReady
from firesteel.units import show_bytes


@dataclass(frozen=True, slots=True)
class Home:
    root: Path

    @property
    def engines(self) -> Path:
        return self.root / "engines"

    @property
    def weights(self) -> Path:
        return self.root / "weights"

    @property
    def services(self) -> Path:
        return self.root / "services"

    @property
    def catalog(self) -> Path:
        return self.root / "catalog"


def find_home(environ: Mapping[str, str] = os.environ) -> Home:
    if chosen := environ.get("FIRESTEEL_HOME"):
        return Home(Path(chosen).expanduser().absolute())
    base = environ.get("XDG_DATA_HOME") or Path(environ.get("HOME", "~")).expanduser() / ".local/share"
    return Home(Path(base) / "firesteel")


def expand_home(words: Iterable[str]) -> tuple[str, ...]:
    """`~/x` -> the user's own folder, as a shell would; docker takes `~` for a name."""
    return tuple(str(Path(word).expanduser()) if word.startswith("~/") else word for word in words)


def catalog_files(home: Home) -> list[tuple[str, str]]:
    """The user's own recipes, models and images as (path, text)."""
    found = sorted(home.catalog.rglob("*.yaml")) if home.catalog.is_dir() else []
    return [
        (str(path.relative_to(home.catalog)), path.read_text("utf-8", errors="replace")) for path in found
    ]


def free_bytes(folder: Path) -> int:
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def need_disk(folder: Path, needed_bytes: int, what: str) -> None:
    free = free_bytes(folder)
    if free < needed_bytes:
        raise HostNotReady(
            f"{what} needs {show_bytes(needed_bytes)}, the disk under {folder} has {show_bytes(free)} free",
            next="free some space, or put firesteel's folder elsewhere: FIRESTEEL_HOME=/path/with/space",
        )


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Makes the folder; a full, read-only or forbidden disk becomes a sentence."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            what = f"the disk under {folder} is full"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR):
            what = f"{folder} cannot be written ({error.strerror})"
        else:
            raise
        raise HostNotReady(
            what, next="free space or set another folder: FIRESTEEL_HOME=/path/with/space"
        ) from error


def write_text(path: Path, text: str) -> None:
    """Whole or not at all, whatever dies meanwhile."""
    with writing(path.parent):
        half = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with half.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            half.replace(path)
        finally:
            half.unlink(missing_ok=True)


class Locked(Exception):
    """Somebody else holds the lock."""


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """An exclusive lock that goes with the process. Raises Locked when taken."""
    with writing(path.parent), path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Locked(str(path)) from None
        yield


def is_locked(path: Path) -> bool:
    if not path.exists():
        return False
    try:
        with lock(path):
            return False
    except Locked:
        return True
