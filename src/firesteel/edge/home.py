"""firesteel's own folder: everything that it writes is under `FIRESTEEL_HOME`.

engines/   installed engines, one per version services/  one folder per running model
weights/   weights that came with a package   catalog/   the user's own recipes, models and images
                                              others/    recipes by others, trusted with flags alone
hub/       what was fetched from the Hub      secrets/   keys and tokens, one file per service
compiled/  what engines compiled              starts/    how long earlier starts took
wheels/    packages that recipes add
gateway/   what `serve` started, its socket   tune/      journals of `tune`
keys.json  the gateway's keys, hashed         requests.db, history.db: requests served, benchmark runs

A state file is one value as JSON, written whole and read with care: whatever it has become (missing, empty,
cut short, a folder, a pipe, another user's), reading it ends at once and in bounded memory. The caller gets
the value or None. Secrets are files of NAME=value lines that only their owner can read; they reach an engine
through its environment, never through arguments that `ps` shows.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import shutil
import stat
import struct
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from firesteel.edge.host.machine_files import sim_free_bytes
from firesteel.errors import FiresteelError, HostNotReady
from firesteel.launch import EngineName
from firesteel.units import show_bytes
from firesteel.values import InvalidValue, Value, from_json, plain, replace

_MAX_OTHERS_FILES, _MAX_OTHERS_BYTES = 1000, 64 * 1024


class Home(Value):
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

    @property
    def others(self) -> Path:
        """Recipes by others, trusted with flags alone: a folder each, copied or a git checkout."""
        return self.root / "others"

    @property
    def learned(self) -> Path:
        """Releases and images that `engine learn` has read: see `edge.learned_engines`."""
        return self.root / "engines-data"

    def catalog_files(self) -> list[tuple[str, str]]:
        """The user's own recipes, models and images as (path, text)."""
        paths = sorted(self.catalog.rglob("*.yaml")) if self.catalog.is_dir() else []
        return [(str(path), path.read_text("utf-8", errors="replace")) for path in paths]

    def others_files(self) -> list[tuple[str, str]]:
        """The recipes of others as (path, text): plain files, no links, none larger than a recipe can be."""
        if not self.others.is_dir():
            return []
        found = []
        for folder, folders, names in os.walk(self.others):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            paths = (Path(folder) / name for name in sorted(names) if name.endswith(".yaml"))
            found += [path for path in paths if path.is_file() and not path.is_symlink()]
        small = (path for path in found[:_MAX_OTHERS_FILES] if path.stat().st_size <= _MAX_OTHERS_BYTES)
        return [(str(path), path.read_text("utf-8", errors="replace")) for path in small]

    def secrets_path(self, name: str) -> Path:
        return self.root / "secrets" / f"{name}.env"

    @property
    def releases_path(self) -> Path:
        return self.root / "releases.json"


def home_folder(environ: Mapping[str, str] = os.environ) -> Path:
    if chosen := environ.get("FIRESTEEL_HOME"):
        return Path(chosen).expanduser().absolute()
    base = environ.get("XDG_DATA_HOME") or Path(environ.get("HOME", "~")).expanduser() / ".local/share"
    return Path(base) / "firesteel"


def find_home(environ: Mapping[str, str] = os.environ) -> Home:
    """PermissionError if it may not be read: there `glob` (3.13) and `exists` (3.14) find nothing."""
    home = Home(home_folder(environ))
    with suppress(FileNotFoundError, NotADirectoryError):
        os.scandir(home.root).close()
    return home


def expand_home(arguments: Iterable[str]) -> tuple[str, ...]:
    """Replaces `~/` by the user's folder, as a shell would; docker takes `~` for a name."""
    return tuple(
        str(Path(argument).expanduser()) if argument.startswith("~/") else argument for argument in arguments
    )


def is_path(name: str) -> bool:
    """Something on disk, or written like it; such a name is never looked up in the catalog."""
    if name.startswith((".", "/", "~")) or name.endswith((".gguf", ".json")):
        return True
    try:
        return Path(name).is_dir()
    except OSError:  # longer than any file name
        return False


def free_bytes(folder: Path) -> int:
    simulated = sim_free_bytes()
    if simulated is not None:
        return simulated
    return shutil.disk_usage(nearest_existing(folder)).free


def disk_of(folder: Path) -> int:
    """The same number for folders on the same disk."""
    return nearest_existing(folder).stat().st_dev


def nearest_existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder


def require_disk_space(folder: Path, needed_bytes: int, what: str) -> None:
    free = free_bytes(folder)
    if free < needed_bytes:
        raise HostNotReady(
            f"{what} needs {show_bytes(needed_bytes)}, the disk under {folder} has {show_bytes(free)} free",
            next="free some space, or put firesteel's folder elsewhere: FIRESTEEL_HOME=/path/with/space",
        )


@contextmanager
def writable_folder(folder: Path) -> Iterator[None]:
    """Creates the folder; a full, read-only or forbidden disk becomes a readable error."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            what, hint = f"the disk under {folder} is full", "free some space, or set"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            what, hint = f"{folder} cannot be written ({error.strerror})", "set"
        else:
            raise
        raise HostNotReady(what, next=f"{hint} another folder: FIRESTEEL_HOME=/path/with/space") from error


def write_text(path: Path, text: str) -> None:
    """Writes atomically: a crash leaves the old file or the new one."""
    with writable_folder(path.parent):
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            # A launch may carry secrets in its environment, so only the owner may read what is written here.
            opener = partial(os.open, mode=0o600)
            with open(temporary, "w", encoding="utf-8", opener=opener) as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            make_way(path)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def make_way(path: Path) -> None:
    """Renames what is in the place of one of our files and is not a file: a folder, a pipe, a broken link."""
    if os.path.lexists(path) and not path.is_file():
        aside = (path.with_name(f"{path.name}.damaged-{number}") for number in count(1))
        path.rename(next(name for name in aside if not os.path.lexists(name)))


def remove(path: Path) -> None:
    """Removes one of our files, whatever it has become."""
    make_way(path)
    path.unlink(missing_ok=True)


class Locked(Exception):
    """Another process holds the lock."""


_LOCK_PAUSE_S = 0.3
_EXCLUSIVE_S = 30.0
"""A change takes milliseconds; on a busy machine some of them wait."""
# Open-file-description locks: they end with the process, and can be queried without being taken.
# A `struct flock` over the whole file.
_WRITE_LOCK = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """An exclusive lock that ends with the process. Raises Locked when it is taken."""
    with writable_folder(path.parent):
        make_way(path)
        with path.open("a") as file:
            try:
                fcntl.fcntl(file, fcntl.F_OFD_SETLK, _WRITE_LOCK)
            except (BlockingIOError, PermissionError):
                raise Locked(str(path)) from None
            yield


@asynccontextmanager
async def wait_for_lock(path: Path, timeout_s: float, busy: str) -> AsyncIterator[None]:
    """Takes a lock, or waits for it without blocking the event loop, so that Ctrl-C works."""
    import asyncio  # a third of the imports of a plan, which waits for nothing

    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            with lock(path):
                yield
                return
        except Locked:
            await asyncio.sleep(_LOCK_PAUSE_S)
    raise FiresteelError(busy, next="firesteel ps")


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """For a file that is read, changed and written again: processes that change it at once take turns."""
    lock_file = path.with_name(f".{path.name}.lock")
    deadline = time.monotonic() + _EXCLUSIVE_S
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(lock(lock_file))
                break
            except Locked:
                if time.monotonic() > deadline:
                    what = f"another firesteel has locked {lock_file} for too long"
                    raise FiresteelError(what, next="firesteel ps") from None
            time.sleep(0.02)
        yield


def is_locked(path: Path) -> bool:
    """Queries the lock without taking it, which could keep its owner out."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        answer = fcntl.fcntl(file, fcntl.F_OFD_GETLK, _WRITE_LOCK)
    except OSError:
        return False
    finally:
        os.close(file)
    return bool(struct.unpack("hhqqi4x", answer)[0] != fcntl.F_UNLCK)


MAX_STATE_BYTES = 4 * 2**20

T = TypeVar("T")


def write_state(path: Path, value: Any) -> None:
    """A dataclass or a list of them, replaced in one step: a reader sees the old file or the new one."""
    write_text(path, json.dumps(plain(value), indent=1))


def read_state(path: Path, kind: type[T]) -> T | None:
    """The `kind` that the file holds; None when it holds none."""
    try:
        return from_json(kind, read_json(path))
    except InvalidValue:
        return None


def read_json(path: Path, max_bytes: int = MAX_STATE_BYTES) -> Any:
    """What the file holds, as plain values; None when it cannot be read or is not JSON."""
    try:
        with open(path, "rb", opener=open_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            content = file.read(max_bytes + 1)
        return json.loads(content) if len(content) <= max_bytes else None
    except (OSError, ValueError, RecursionError):
        return None


def open_without_waiting(path: str, flags: int) -> int:
    """A named pipe in place of the file would otherwise block its reader forever."""
    return os.open(path, flags | os.O_NONBLOCK)


def new_key() -> str:
    return f"fs-{secrets.token_urlsafe(24)}"


def write_secrets(path: Path, values: Mapping[str, str]) -> None:
    """Mode 0600. A value with a line break is left out: it is not a token, and would define another name."""
    lines = [f"{name}={value}\n" for name, value in values.items() if "\n" not in value]
    write_text(path, "".join(lines))


def read_secrets(path: Path) -> dict[str, str]:
    try:
        with open(path, errors="replace", opener=open_without_waiting) as file:
            text = file.read()
    except OSError:  # missing or damaged: the next `up` writes it again
        return {}
    pairs = (line.partition("=") for line in text.splitlines())
    return {name: value for name, equals, value in pairs if equals}


class EngineRelease(Value):
    """One of `image`, `package` and `engine_path`, as the model runs in a container, embedded or natively."""

    engine: EngineName
    version: str
    image: str | None = None
    package: str | None = None
    """A PyPI requirement with one version."""
    engine_path: str | None = None

    def __str__(self) -> str:
        return self.image or self.package or f"{self.engine_path} ({self.version})"


class ModelRelease(Value):
    """Which release of its engine a model uses, where `upgrade` chose another one than its recipe has."""

    model: str
    """The name of its service."""
    current: EngineRelease | None
    """None: what the recipe has."""
    previous: EngineRelease | None
    since: str

    def swapped(self, since: str) -> ModelRelease:
        """Back to the one before; doing it twice changes nothing."""
        return replace(self, current=self.previous, previous=self.current, since=since)


def chosen_release(home: Home, model: str | None) -> ModelRelease | None:
    return _chosen_releases(home).get(model or "")


def choose_release(home: Home, chosen: ModelRelease) -> None:
    with exclusive(home.releases_path):
        known = {**_chosen_releases(home), chosen.model: chosen}
        kept = [each for each in known.values() if each.current or each.previous]
        write_state(home.releases_path, kept)


def _chosen_releases(home: Home) -> dict[str, ModelRelease]:
    rows = read_state(home.releases_path, list[ModelRelease]) or []
    return {row.model: row for row in rows}
