"""Answers kept: what was worked out once from the same things is not worked out again.

A plan for a machine of the data (`--host gb10`) follows from the words typed, firesteel's own files, the
packages beside it, the user's own catalog, the environment and the screen. The name of a kept answer is a
hash of all of these (of files: path, size and the moment of their last change, which no tool can set back),
so one that anything has changed for is never found again. Tests hold the other half: a plan opens no other
file.

Nothing is kept of a plan for the machine at hand: its free memory is a fact of the moment.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from firesteel.edge.files.home import Home, write_text
from firesteel.errors import FiresteelError

_PACKAGE = Path(__file__).parents[1]
_SHELL = ("_", "PWD", "OLDPWD", "SHLVL")
"""Variables that a shell changes from one command to the next."""
_MAX_FOLDERS = 20_000
_MOST = 200
_MAX_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command prints, and its exit code."""

    text: str
    code: int
    lasts: bool = False
    """It follows from what `name` looks at, and from nothing else."""


def name(
    words: object, home: Home, environ: Mapping[str, str] = os.environ, package: Path = _PACKAGE
) -> str | None:
    """What the answer to these words is kept as; None where that cannot be told for sure."""
    try:
        origins = (
            words,
            sys.version,
            [(path, Path(path).stat().st_ctime_ns) for path in sys.path if path.endswith("-packages")],
            list(_files(str(package), ("__pycache__",))),
            home.root,
            list(_files(str(home.catalog))) if home.catalog.exists() else [],
            sorted((key, value) for key, value in environ.items() if key not in _SHELL),
            _screen(),
        )
    except OSError:
        return None
    return sha256(repr(origins).encode()).hexdigest()


def _files(folder: str, leave_out: Collection[str] = ()) -> Iterator[tuple[str, int, int]]:
    """Path, size and last change of every file under a folder."""
    waiting = [folder]
    for _ in range(_MAX_FOLDERS):
        if not waiting:
            return
        with os.scandir(waiting.pop()) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.name in leave_out:
                    continue
                if entry.is_dir():
                    waiting.append(entry.path)
                else:
                    about = entry.stat()
                    yield entry.path, about.st_size, about.st_ctime_ns
    raise OSError(f"{folder} has too many folders to look at")


def _screen() -> tuple[object, ...]:
    """What decides widths, colours and letters."""
    sizes = []
    for stream in (0, 1, 2):
        try:
            sizes.append(tuple(os.get_terminal_size(stream)))
        except OSError:
            sizes.append(())
    return (sys.stdout.encoding, sys.stdout.isatty(), *sizes)


def recall(home: Home, name: str) -> Answer | None:
    """A kept file that is damaged is as good as none."""
    try:
        with _place(home, name).open("rb") as file:
            held = json.loads(file.read(_MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    match held:
        case {"text": str(text), "code": int(code)}:
            return Answer(text, code, lasts=True)
    return None


def keep(home: Home, name: str, answer: Answer) -> None:
    """The oldest make room. A folder that cannot be written to is no reason to fail."""
    place = _place(home, name)
    with suppress(OSError, FiresteelError):
        write_text(place, json.dumps({"text": answer.text, "code": answer.code}))
        held = sorted(place.parent.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        for old in held[:-_MOST]:
            old.unlink(missing_ok=True)


def _place(home: Home, name: str) -> Path:
    return home.root / "cache" / "plans" / f"{name}.json"
