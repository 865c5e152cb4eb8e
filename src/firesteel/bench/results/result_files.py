"""Runs in files: those that firesteel exported, and those of other tools."""

from __future__ import annotations

from pathlib import Path

from firesteel.bench.results import exchange, other_tools
from firesteel.bench.results.history import History
from firesteel.bench.results.serialize import StoredRun
from firesteel.edge import files
from firesteel.errors import UsageError

ALL_RUNS = 10_000


def read_file(path: Path) -> str:
    """The whole file, or an error: half of a result is no result."""
    text = files.read_text(path)
    if len(text.encode(errors="replace")) >= files.MAX_BYTES:
        most = files.MAX_BYTES // 2**20
        raise UsageError(f"{path} is longer than {most} MiB", next="export it without single requests")
    return text


def find_run(history: History, name: str) -> StoredRun:
    """A file has a `.` or a `/` in its name and exists; everything else is a run of the history."""
    path = Path(name)
    if ("/" in name or "." in name) and len(name) < 4096 and "\0" not in name and path.exists():
        return other_tools.read(read_file(path), name)
    return history.run(name)


def import_runs(history: History, path: Path) -> dict[str, StoredRun | None]:
    """Adds the runs of a file as `reported`, by id; None for a run that was there already."""
    known = {run.id for run in history.runs(ALL_RUNS)}
    imported: dict[str, StoredRun | None] = {}
    for stored in _runs_in(read_file(path), str(path)):
        run = stored.run
        imported[run.id] = None if run.id in known else stored
        if run.id not in known:
            history.begin(run, "reported", stored.source)
            history.add(run.id, *stored.samples)
    return imported


def _runs_in(text: str, name: str) -> tuple[StoredRun, ...]:
    if text.lstrip()[:1] == "{" and '"firesteel_rows"' in text[:1000]:
        return exchange.import_text(text, name)
    return (other_tools.read(text, name),)
