"""Shipped data: the YAML files under `data/`, compiled into one JSON file.

    load("speed/fitted.yaml", Constants)

Parsing all of them takes half a second, decoding the compiled file two milliseconds. It holds what the files
hold, as plain values: no code decides what is in it, so it changes only with them. A wheel brings it
(`hatch_build.py`); in a clone it is made in `__pycache__`, or in the user's cache folder where that is
read-only, and again when a file has been added, removed or changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TypeVar

import msgspec

from firesteel.values import YamlFile

PACKAGE = Path(__file__).parent
DATA = PACKAGE / "data"
BUILT = PACKAGE / "data.json"
"""Only in a wheel, where no source of it changes."""

T = TypeVar("T")


class _Compiled(msgspec.Struct):
    sources: str
    """Changes when a file does."""
    files: dict[str, msgspec.Raw]


def load(name: str, kind: type[T]) -> T:
    """A shipped file by its path under `data/`, as a `kind`."""
    return yaml_file(name).convert(kind)


def yaml_file(name: str) -> YamlFile:
    """A shipped file by its path under `data/`. Its source is parsed only if a mistake needs a line."""
    return YamlFile(name, msgspec.json.decode(_files()[name]), lambda: _parse(DATA, name).lines)


def names(folder: str) -> Iterator[str]:
    """The YAML files under a folder of the data, at any depth, in order: `rules/vllm.yaml`."""
    return (name for name in _files() if name.startswith(f"{folder}/"))


def read_text(name: str) -> str:
    """A shipped file that is not YAML."""
    return (DATA / name).read_text("utf-8")


def compile_data(data: Path, sources: str = "") -> bytes:
    """The YAML files under a folder as one JSON document; Raises InvalidFile."""
    paths = (path.relative_to(data).as_posix() for path in sorted(data.rglob("*.yaml")))
    files = {name: _parse(data, name).value for name in paths}
    return json.dumps({"sources": sources, "files": files}, separators=(",", ":")).encode()


def _parse(data: Path, name: str) -> YamlFile:
    return YamlFile.parse(name, (data / name).read_text("utf-8"))


@cache
def _files() -> Mapping[str, msgspec.Raw]:
    if BUILT.is_file():
        return _decode(BUILT.read_bytes()).files
    sources = _sources(DATA)
    for folder in _cache_folders():
        with suppress(OSError, msgspec.DecodeError):
            if (compiled := _decode(_read_own(folder / BUILT.name))).sources == sources:
                return compiled.files
    content = compile_data(DATA, sources)
    if not sys.dont_write_bytecode:
        _write(content)
    return _decode(content).files


def _decode(content: bytes) -> _Compiled:
    return msgspec.json.decode(content, type=_Compiled)


def _sources(data: Path) -> str:
    """The name, size and time of each file, in a few characters."""
    digest = hashlib.blake2b(digest_size=16)
    for line in sorted(_source_lines(data, "")):
        digest.update(line.encode())
    return digest.hexdigest()


def _source_lines(folder: Path | str, prefix: str) -> Iterator[str]:
    """Every command waits for this: `Path.rglob` would take three times as long."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".yaml"):
                stat = entry.stat()
                yield f"{prefix}{entry.name} {stat.st_size} {stat.st_mtime_ns}\n"
            elif entry.is_dir():
                yield from _source_lines(entry.path, f"{prefix}{entry.name}/")


def _cache_folders() -> Iterator[Path]:
    yield PACKAGE / "__pycache__"
    with suppress(RuntimeError):  # a user without a home
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        if base.is_absolute():
            yield base / "firesteel" / "data"


def _read_own(path: Path) -> bytes:
    """Recipes and rules end in commands, so only files of this user or of root are read."""
    with path.open("rb") as file:
        stat = os.fstat(file.fileno())
        if stat.st_uid not in (os.geteuid(), 0) or stat.st_mode & 0o022:
            raise PermissionError(path)
        return file.read()


def _write(content: bytes) -> None:
    import tempfile  # only when the data is compiled

    for folder in _cache_folders():
        with suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=f".{BUILT.name}.")
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            Path(temporary).replace(folder / BUILT.name)
            return
