"""Which units of a run are done: a line for each, appended only after their bytes are on the disk.

    {"plan": "DIGEST"}
    [0, [["model.layers.0.mlp.up_proj", 0.01, 3.2]]]    unit 0: squared error and norm of its matrix

A line that was torn when the run was killed, and all after it, is dropped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from firesteel.workshop.quantize.worker import BlockError

Entry = tuple[BlockError, ...]


def read_journal(path: Path, digest: str) -> list[Entry] | None:
    """The units that are done, in order; None: the journal is of another plan, or there is none."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return None
    if not lines or _parse(lines[0]) != {"plan": digest}:
        return None
    done: list[Entry] = []
    for line in lines[1:]:
        entry = _entry(_parse(line), len(done))
        if entry is None:
            break
        done.append(entry)
    return done


def _parse(line: bytes) -> object:
    try:
        return json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None


def _entry(value: object, number: int) -> Entry | None:
    if not isinstance(value, list) or len(value) != 2:
        return None
    own, errors = value
    try:
        entry = tuple(BlockError(str(name), float(error), float(norm)) for name, error, norm in errors)
    except (TypeError, ValueError):
        return None
    return entry if own == number else None


class UnitJournal:
    """Starts anew, or goes on after the entries that are kept."""

    def __init__(self, path: Path, digest: str, done: list[Entry]) -> None:
        temporary = path.with_suffix(".new")
        with temporary.open("w", encoding="utf-8") as file:
            file.write(json.dumps({"plan": digest}) + "\n")
            file.writelines(_line(number, entry) for number, entry in enumerate(done))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        self._file = path.open("a", encoding="utf-8")
        self._count = len(done)

    def append(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._file.write(_line(self._count, entry))
            self._count += 1
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _line(number: int, entry: Entry) -> str:
    return json.dumps([number, [[block.module, block.error, block.norm] for block in entry]]) + "\n"
