"""The page of a run, into a file, beside the last run of the same model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from firesteel.bench.report.report import published_rows, report_page
from firesteel.bench.results.history import History
from firesteel.bench.results.serialize import StoredRun
from firesteel.bench.values import BenchRun
from firesteel.edge.files import text_files

_LOOKED_AT = 5
_LISTED = 500


def write_page(path: Path, kept: StoredRun, history: History) -> None:
    text_files.write_new(path, report_page(kept, published_rows(kept.run), before(history, kept.run)))


def before(history: History, run: BenchRun) -> BenchRun | None:
    """The newest earlier one of the same model and engine that has a load in common with it."""
    lines = [
        line for line in history.runs(_LISTED)
        if line.id != run.id and line.began <= run.began and line.origin == "measured here"
        and (line.model, line.engine) == (run.subject.model, run.subject.engine)
    ]  # fmt: skip
    loads = {replace(point, shape="") for point in run.points}
    for line in lines[:_LOOKED_AT]:
        found = history.run(line.id).run
        if found.figures and any(replace(point, shape="") in loads for point in found.points):
            return found
    return None
