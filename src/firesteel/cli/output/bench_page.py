"""Writes the report of a run, compared with the last run of the same model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from firesteel.bench.report.page import published_rows, report_page
from firesteel.bench.results.history import History
from firesteel.bench.results.serialize import StoredRun
from firesteel.bench.values import BenchRun
from firesteel.edge.files import text_files

_MAX_CANDIDATES = 5
_MAX_LISTED = 500


def write_page(path: Path, stored: StoredRun, history: History) -> None:
    earlier = earlier_run(history, stored.run)
    text_files.write_new(path, report_page(stored, published_rows(stored.run), earlier))


def earlier_run(history: History, run: BenchRun) -> BenchRun | None:
    """The newest earlier run of the same model and engine that shares a load with this one."""
    candidates = [
        line for line in history.runs(_MAX_LISTED)
        if line.id != run.id and line.began <= run.began and line.origin == "measured here"
        and (line.model, line.engine) == (run.subject.model, run.subject.engine)
    ]  # fmt: skip
    loads = {replace(point, shape="") for point in run.points}
    for line in candidates[:_MAX_CANDIDATES]:
        earlier = history.run(line.id).run
        if earlier.figures and any(replace(point, shape="") in loads for point in earlier.points):
            return earlier
    return None
