"""Shipped data files as values, compiled once and then loaded as fast as a module.

    load("rules/vllm.yaml", read_rules)

Reading a YAML file with its line numbers and validating it takes a hundred times as long as unpickling the
value, and a `check` needs all rules. So the value is kept beside the package's byte code (`__pycache__`), or
in the user's cache folder where that is read-only, the way Python keeps modules: it is built again whenever
the data file or any module of the package has changed, and a cache that cannot be read or written costs time
and nothing else. A value must be plain (dataclasses, tuples, dicts) and pickle without a heavy import.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TypeVar

PACKAGE = Path(__file__).parent
DATA = PACKAGE / "data"
_DIGEST_BYTES = 16

T = TypeVar("T")


def read_text(name: str) -> str:
    """A shipped file by its path under `data/`."""
    return (DATA / name).read_text("utf-8")


def names(folder: str) -> Iterator[str]:
    """The YAML files under a folder of the data, at any depth, in order: `rules/vllm.yaml`."""
    for path in sorted((DATA / folder).rglob("*.yaml")):
        yield path.relative_to(DATA).as_posix()


def load(name: str, build: Callable[[str, str], T], kind: str | None = None) -> T:
    """`build(name, text)` of a shipped file, from the cache unless something has changed.

    `kind` tells values apart that are built from the same file; the name of `build` by default.
    """
    kind, stat = kind or build.__qualname__, (DATA / name).stat()
    key = f"{name} {stat.st_size} {stat.st_mtime_ns} {kind} {_code_version()}"
    digest = hashlib.blake2b(key.encode(), digest_size=_DIGEST_BYTES).digest()
    file_name = f"{name.replace('/', '-')}.{kind}.{sys.implementation.cache_tag}.pickle"
    for folder in _cache_folders():
        with suppress(Exception):  # whatever is wrong with a cache, the value can be built
            content = _read_own(folder / file_name)
            if content.startswith(digest):
                return pickle.loads(content[_DIGEST_BYTES:])  # type: ignore[no-any-return]  # what was dumped below
    value = build(name, read_text(name))
    if not sys.dont_write_bytecode:
        _write(file_name, digest + pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
    return value


@cache
def _code_version() -> str:
    """Changes when any module changes: a pickled value must fit the classes that it is loaded into."""
    stats = list(_module_stats(PACKAGE))
    return f"{len(stats)} {sum(stat.st_size for stat in stats)} {sum(stat.st_mtime_ns for stat in stats)}"


def _module_stats(folder: Path | str) -> Iterator[os.stat_result]:
    """Every load waits for this: `Path.rglob` would take three times as long."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                yield entry.stat()
            elif entry.name not in ("data", "__pycache__") and entry.is_dir():
                yield from _module_stats(entry.path)


def _cache_folders() -> Iterator[Path]:
    yield PACKAGE / "__pycache__"
    with suppress(RuntimeError):  # a user without a home
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        if base.is_absolute():
            yield base / "firesteel" / "data"


def _read_own(path: Path) -> bytes:
    """Unpickling runs code, so only files of this user or of root are read, like Python's own byte code."""
    with path.open("rb") as file:
        stat = os.fstat(file.fileno())
        if stat.st_uid not in (os.geteuid(), 0) or stat.st_mode & 0o022:
            raise PermissionError(path)
        return file.read()


def _write(file_name: str, content: bytes) -> None:
    import tempfile  # only when something is compiled

    for folder in _cache_folders():
        with suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=f".{file_name}.")
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            Path(temporary).replace(folder / file_name)
            return
