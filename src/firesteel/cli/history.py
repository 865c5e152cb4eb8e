"""`firesteel bench list|show|export|chart|import|delete`: the runs that were measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from firesteel.cli import options
from firesteel.cli.output.invocation import typed
from firesteel.cli.output.show import err, out, table
from firesteel.library import documents, history
from firesteel.library.history import ExportFormat

if TYPE_CHECKING:
    from firesteel.bench.measurements import StoredRun
    from firesteel.bench.results.history import RunSummary


def show_notes() -> None:
    """What is wrong with the file of the history, on stderr."""
    for note in history.notes_of_history():
        err.print(note)


@click.command("list")
@click.option("--all", "is_all", is_flag=True, help="List all runs, not only the last fifty.")
@options.json_option
def list_runs(is_all: bool, as_json: bool) -> None:
    """List the measured runs, newest first.

    Other subcommands take a RUN: its id, the beginning of one, `last`, or `last~1` for the run before.
    """
    runs, notes = history.runs_in_history(None if is_all else 50)
    for note in notes:
        err.print(note)
    if as_json:
        options.print_json(documents.bench.HistoryJson.of(runs=runs, notes=notes))
        return
    if not runs:
        out.print(typed("no runs yet; next: firesteel bench"), soft_wrap=True)
        return
    columns = ("name", "when", "model", "engine", "decode tok/s", "points", "samples", "")
    out.print(table(columns, map(_cells, runs)))


def _cells(run: RunSummary) -> tuple[str, ...]:
    engine = " ".join(word for word in (run.engine, run.version) if word) or "not known"
    state = "" if run.is_whole else f"incomplete; to continue: {typed(f'firesteel bench --resume {run.id}')}"
    if run.origin != history.MEASURED_HERE:
        state = run.origin
    when = run.began[:16].replace("T", " ")
    rate = "-" if run.decode_tokens_per_s is None else f"{run.decode_tokens_per_s:.1f}"
    return (run.id, when, run.model, engine, rate, str(run.points), str(run.samples), state)


@click.command("show")
@click.argument("run", default="last")
@click.option("--cold", is_flag=True, help="Show the first, cold repetitions too.")
@click.option("--html", type=options.FILE, help="Write an HTML report to this file.")
@options.json_option
def show(run: str, cold: bool, html: Path | None, as_json: bool) -> None:
    """Show the figures of one run, as `firesteel bench` printed them."""
    from firesteel.cli.output.bench import run_view  # loads the client that measures

    show_notes()
    with history.history() as runs:
        stored = runs.run(run)
    if html:
        history.write_report(html, stored)
    if as_json:
        options.print_json(documents.bench.BenchJson.of(stored.run, html=html))
        return
    out.print(run_view(stored.run, cold))
    if html:
        err.print(f"report  {html}")
    if stored.origin != history.MEASURED_HERE:
        out.print(f"{stored.origin}, from {stored.source}")


@click.command("export")
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--file", type=options.FILE, help="Write to this file.")
@click.option("--samples", is_flag=True, help="Export one run with every request.")
@click.option(
    "--as",
    "format",
    type=click.Choice(get_args(ExportFormat)),
    default="json",
    show_default=True,
    help="Write rows to share, a CSV table, Markdown for an issue, or what llama-benchy writes.",
)
@options.json_option
def export(
    runs: tuple[str, ...], file: Path | None, samples: bool, format: ExportFormat, as_json: bool
) -> None:
    """Export runs to share: figures with their intervals, nothing that names you or your machine.

    Without RUN, everything that was measured here. With --samples one complete run, including its URLs.
    """
    show_notes()
    text = history.export_runs(runs, "json" if as_json else format, samples=samples)
    if file:
        history.write_text(file, f"{text}\n")
    if as_json or not file:
        click.echo(text)


@click.command("chart")
@click.argument("model", required=False)
@click.option("--html", type=options.FILE, required=True, help="Write the page here.")
@options.json_option
def chart(model: str | None, html: Path, as_json: bool) -> None:
    """Draw the decode speed of every load over time, of MODEL or of all models, as one HTML page."""
    show_notes()
    history.write_chart(html, model)
    if as_json:
        options.print_json(documents.bench.HistoryChartJson.of(html=html))
        return
    err.print(f"report  {html}")


@click.command("import")
@click.argument("file", type=options.FILE)
@options.json_option
def import_command(file: Path, as_json: bool) -> None:
    """Import runs of firesteel, llama-benchy, `vllm bench`, guidellm or llama-bench, as `reported`."""
    show_notes()
    imported = history.import_runs(file)
    done = [_imported_text(id, stored) for id, stored in imported.items()]
    if as_json:
        options.print_json(documents.bench.HistoryImportJson.of(done=tuple(done)))
        return
    for line in done:
        out.print(line)


def _imported_text(id: str, stored: StoredRun | None) -> str:
    if stored is None:
        return f"{id} was there already"
    return f"{id}: {len(stored.run.points)} points of {stored.run.subject.model}, reported"


@click.command("delete")
@click.argument("run")
@options.json_option
def delete(run: str, as_json: bool) -> None:
    """Delete a run with all its samples."""
    show_notes()
    line = f"deleted {history.delete_run(run)}"
    if as_json:
        options.print_json(documents.bench.HistoryDeleteJson.of(done=(line,)))
        return
    out.print(line)
