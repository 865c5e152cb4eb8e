"""Stored runs: found, compared, exported, imported and drawn.

Their figures as text are the same in the terminal and in the HTML report.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from firesteel import __version__
from firesteel.bench.report.tables import band, client_cost, figure, found_text, load, number
from firesteel.edge import files
from firesteel.edge.home import find_home
from firesteel.errors import UsageError
from firesteel.values import replace

if TYPE_CHECKING:
    from firesteel.bench.compare.against import PlanComparison, PublishedComparison
    from firesteel.bench.compare.runs import Comparison
    from firesteel.bench.measurements import BenchRun, StoredRun
    from firesteel.bench.results.history import History, RunSummary

__all__ = ["band", "client_cost", "figure", "found_text", "load", "number"]
"""Of the figures, for the terminal."""
ExportFormat = Literal["json", "csv", "markdown", "llama-benchy", "llama-benchy-csv"]
MEASURED_HERE = "measured here"
_MAX_CANDIDATES = 5
_MAX_LISTED = 500


def history() -> AbstractContextManager[History]:
    """The measured runs: `with firesteel.history() as history: history.runs()`."""
    from firesteel.bench.results.history import open_history  # SQLite

    return open_history(find_home())


def stored_run(name: str = "last") -> StoredRun:
    """A run of the history by its id, `last` or `last~1`; or one from a file, also of another tool."""
    from firesteel.bench.results.run_files import find_run

    with history() as runs:
        return find_run(runs, name)


def runs_in_history(most: int | None = 50) -> tuple[tuple[RunSummary, ...], tuple[str, ...]]:
    """The newest first; None: all. And what is wrong with the file of the history."""
    from firesteel.bench.results.run_files import ALL_RUNS

    with history() as runs:
        return tuple(runs.runs(ALL_RUNS if most is None else most)), tuple(runs.notes)


def notes_of_history() -> tuple[str, ...]:
    """What is wrong with the file of the history."""
    with history() as runs:
        return tuple(runs.notes)


def delete_run(name: str) -> str:
    """With all its samples; returns its id."""
    with history() as runs:
        return runs.delete(name)


def import_runs(path: Path) -> dict[str, StoredRun | None]:
    """Add the runs of a file as `reported`, by id; None for a run that was there already."""
    from firesteel.bench.results import run_files

    with history() as runs:
        return run_files.import_runs(runs, path)


# --- comparisons ---


def compare(first: str, second: str, *, despite: Iterable[str] = ()) -> Comparison:
    """The second run against the first: which differences are more than chance."""
    return compare_runs(stored_run(first), stored_run(second), despite=despite)


def compare_runs(
    one: StoredRun, other: StoredRun, *, despite: Iterable[str] = (), is_interleaved: bool = False
) -> Comparison:
    """The same of runs that are at hand. `is_interleaved`: they were measured in turns."""
    from firesteel.bench.compare import runs

    with history() as known:
        earlier = known.runs_of(one.run.subject.launch_key, other.run.subject.launch_key)
    is_interleaved = is_interleaved or runs.were_interleaved(one, other)
    return runs.compare(one, other, despite=tuple(despite), is_interleaved=is_interleaved, earlier=earlier)


def compare_with_plan(name: str = "last") -> tuple[PlanComparison, ...]:
    """A run against what was planned for its service."""
    return planned_rows(stored_run(name).run)


def planned_rows(run: BenchRun) -> tuple[PlanComparison, ...]:
    """The same of a run that is at hand."""
    from firesteel.bench.compare.against import against_plan  # loads the planner's bands

    return tuple(against_plan(run))


def require_planned(run: BenchRun) -> None:
    """Raises why there is nothing to compare with: no plan, no measurement, or a plan about other loads."""
    if planned_rows(run):
        return
    hint = "firesteel bench NAME, for a service that `up` started"
    if not run.subject.plan:
        raise UsageError(f"run {run.id} has no plan", next=hint)
    if any(figures.samples for figures in run.figures):
        raise UsageError(f"run {run.id}: its plan covers none of its figures", next=hint)
    if run.is_whole:
        raise UsageError(f"run {run.id}: all of its requests failed", next=f"firesteel bench show {run.id}")
    what = f"run {run.id} ended before a repetition of it counted"
    raise UsageError(what, next=f"firesteel bench --resume {run.id}")


def compare_with_published(name: str = "last") -> tuple[PublishedComparison, ...]:
    """A run against the published runs of the same checkpoint and engine."""
    return published_rows(stored_run(name).run)


def published_rows(run: BenchRun) -> tuple[PublishedComparison, ...]:
    """The same of a run that is at hand."""
    from firesteel.bench.compare.against import all_published

    return tuple(all_published(run))


def require_published(run: BenchRun) -> None:
    """Raises when there is none."""
    if published_rows(run):
        return
    raise UsageError(
        f"there is no published run of {run.subject.launch.get('model') or run.subject.model} on "
        f"{run.subject.engine or 'an unknown engine'} at these depths",
        next=f"firesteel bench compare {run.id} --plan",
    )


# --- as text and as pages ---


def as_text(stored: Sequence[StoredRun], format: ExportFormat) -> str:
    """Rows to share, a table, or what llama-benchy writes."""
    if format == "json":
        from firesteel.bench.results import run_files

        return run_files.export_text(row for run in stored for row in run_files.export_rows(run))
    from firesteel.bench.report.export import FORMATS  # loads the planner

    return FORMATS[format](list(stored), __version__)


def export_runs(names: Sequence[str] = (), format: ExportFormat = "json", *, samples: bool = False) -> str:
    """Runs to share: figures with their intervals, nothing that names the user or the machine.

    Without names, everything that was measured here. `samples`: one complete run, with its URLs.
    """
    from firesteel.bench.results.run_files import ALL_RUNS

    if samples and (len(names) != 1 or format != "json"):
        raise UsageError("--samples takes one RUN, as JSON", next="firesteel bench export last --samples")
    with history() as runs:
        wanted = names or tuple(run.id for run in runs.runs(ALL_RUNS) if run.origin == MEASURED_HERE)
        stored = [runs.run(name) for name in wanted]
    if samples:
        import json

        from firesteel.bench.measurements import to_document

        return json.dumps(to_document(stored[0]))
    return as_text(stored, format).rstrip("\n")


def write_text(path: Path, text: str) -> None:
    """A file that was not there before, or that the user may replace."""
    files.write_new(path, text)


def write_report(path: Path, stored: StoredRun) -> None:
    """One HTML page, compared with the last earlier run of the same model and engine."""
    from firesteel.bench.report.page import published_rows, report_page

    with history() as runs:
        earlier = earlier_run(runs, stored.run)
    files.write_new(path, report_page(stored, published_rows(stored.run), earlier))


def write_chart(path: Path, model: str | None = None) -> None:
    """The decode speed of every load over time, of one model or of all, as one HTML page."""
    from firesteel.bench.measurements import StoredRun
    from firesteel.bench.report.page import history_page  # loads the charts
    from firesteel.bench.results.run_files import ALL_RUNS

    with history() as known:
        lines = [line for line in known.runs(ALL_RUNS) if model in (None, line.model)]
        runs = [StoredRun(known.without_samples(line.id), origin=line.origin) for line in lines]
    if not runs:
        what = f"no run of {model} is in the history" if model else "no runs yet"
        raise UsageError(what, next="firesteel bench list" if model else "firesteel bench")
    files.write_new(path, history_page(runs))


def earlier_run(history: History, run: BenchRun) -> BenchRun | None:
    """The newest earlier run of the same model and engine that shares a load with this one."""
    candidates = [
        line for line in history.runs(_MAX_LISTED)
        if line.id != run.id and line.began <= run.began and line.origin == MEASURED_HERE
        and (line.model, line.engine) == (run.subject.model, run.subject.engine)
    ]  # fmt: skip
    loads = {replace(point, shape="") for point in run.points}
    for line in candidates[:_MAX_CANDIDATES]:
        earlier = history.run(line.id).run
        if earlier.figures and any(replace(point, shape="") in loads for point in earlier.points):
            return earlier
    return None
