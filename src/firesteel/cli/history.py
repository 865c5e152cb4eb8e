"""`firesteel history`"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from firesteel import __version__
from firesteel.bench.results import exchange, serialize
from firesteel.bench.results.history import History, RunSummary, open_history
from firesteel.bench.results.result_files import ALL_RUNS, import_runs
from firesteel.bench.results.serialize import StoredRun
from firesteel.cli.options import common
from firesteel.cli.output.invocation import typed
from firesteel.cli.output.show import err, out, table
from firesteel.edge.files import text_files
from firesteel.edge.files.home import find_home
from firesteel.errors import UsageError
from firesteel.library import documents


@contextmanager
def opened() -> Iterator[History]:
    """The user's history; problems with its file are reported on stderr."""
    with open_history(find_home()) as history:
        for note in history.notes:
            err.print(note)
        yield history


@click.group("history", invoke_without_command=True)
@click.option("--all", "is_all", is_flag=True, help="List all runs, not only the last fifty.")
@common.json_option
@click.pass_context
def command(ctx: click.Context, is_all: bool, as_json: bool) -> None:
    """List the measured runs, newest first; show, export, import or delete one.

    RUN is an id, the beginning of one, `last`, or `last~1` for the run before.
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_runs, is_all=is_all, as_json=as_json)


@command.command("list")
@click.option("--all", "is_all", is_flag=True, help="List all runs, not only the last fifty.")
@common.json_option
def list_runs(is_all: bool, as_json: bool) -> None:
    """List the runs, newest first."""
    with opened() as history:
        runs, notes = history.runs(ALL_RUNS if is_all else 50), history.notes
    if as_json:
        common.print_json(documents.bench.HistoryJson(runs=runs, notes=tuple(notes)))
        return
    if not runs:
        out.print(typed("no runs yet; next: firesteel bench"))
        return
    columns = ("name", "when", "model", "engine", "points", "samples", "")
    out.print(table(columns, map(_cells, runs)))


def _cells(run: RunSummary) -> tuple[str, ...]:
    engine = " ".join(word for word in (run.engine, run.version) if word) or "not known"
    state = "" if run.is_whole else f"incomplete; to continue: {typed(f'firesteel bench --resume {run.id}')}"
    if run.origin != "measured here":
        state = run.origin
    when = run.began[:16].replace("T", " ")
    return (run.id, when, run.model, engine, str(run.points), str(run.samples), state)


@command.command("show")
@click.argument("run", default="last")
@click.option("--cold", is_flag=True, help="Show the first, cold repetitions too.")
@click.option("--html", type=common.FILE, help="Write an HTML report to this file.")
@common.json_option
def show(run: str, cold: bool, html: Path | None, as_json: bool) -> None:
    """Show the figures of one run, as `firesteel bench` printed them."""
    from firesteel.cli.output.bench import view  # loads the client that measures
    from firesteel.cli.output.bench_page import write_page  # loads the published figures

    with opened() as history:
        stored = history.run(run)
        if html:
            write_page(html, stored, history)
    if as_json:
        common.print_json(documents.bench.bench_json(stored.run, html))
        return
    out.print(view(stored.run, cold))
    if html:
        err.print(f"report  {html}")
    if stored.origin != "measured here":
        out.print(f"{stored.origin}, from {stored.source}")


@command.command("export")
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--file", type=common.FILE, help="Write to this file.")
@click.option("--samples", is_flag=True, help="Export one run with every request.")
@click.option(
    "--as",
    "format",
    type=click.Choice(["json", "csv", "markdown", "llama-benchy", "llama-benchy-csv"]),
    default="json",
    show_default=True,
    help="Write rows to share, a CSV table, Markdown for an issue, or what llama-benchy writes.",
)
def export(runs: tuple[str, ...], file: Path | None, samples: bool, format: str) -> None:
    """Export runs to share: figures with their intervals, nothing that names you or your machine.

    Without RUN, everything that was measured here. With --samples one complete run, including its URLs.
    """
    if samples and (len(runs) != 1 or format != "json"):
        raise UsageError("--samples takes one RUN, as JSON", next="firesteel history export last --samples")
    with opened() as history:
        names = runs or tuple(run.id for run in history.runs(ALL_RUNS) if run.origin == "measured here")
        stored = [history.run(name) for name in names]
    if samples:
        text = json.dumps(serialize.to_document(stored[0]))
    elif format != "json":
        from firesteel.bench.report.tables import FORMATS  # loads the planner

        text = FORMATS[format](stored, __version__).rstrip("\n")
    else:
        text = exchange.export_text(row for run in stored for row in exchange.export_rows(run))
    if file:
        text_files.write_new(file, f"{text}\n")
    else:
        click.echo(text)


@command.command("chart")
@click.argument("model", required=False)
@click.option("--html", type=common.FILE, required=True, help="Write the page here.")
def chart(model: str | None, html: Path) -> None:
    """Draw the decode speed of every load over time, of MODEL or of all models, as one HTML page."""
    from firesteel.bench.report.history_page import history_page  # loads the charts

    with opened() as history:
        lines = [line for line in history.runs(ALL_RUNS) if model in (None, line.model)]
        runs = [StoredRun(history.without_samples(line.id), origin=line.origin) for line in lines]
    if not runs:
        what = f"no run of {model} is in the history" if model else "no runs yet"
        raise UsageError(what, next="firesteel history" if model else "firesteel bench")
    text_files.write_new(html, history_page(runs))
    err.print(f"report  {html}")


@command.command("import")
@click.argument("file", type=common.FILE)
@common.json_option
def import_command(file: Path, as_json: bool) -> None:
    """Import runs of firesteel, llama-benchy, `vllm bench`, guidellm or llama-bench, as `reported`."""
    with opened() as history:
        imported = import_runs(history, file)
    done = [_imported_text(id, stored) for id, stored in imported.items()]
    if as_json:
        common.print_json(documents.bench.HistoryImportJson(done=tuple(done)))
        return
    for line in done:
        out.print(line)


def _imported_text(id: str, stored: StoredRun | None) -> str:
    if stored is None:
        return f"{id} was there already"
    return f"{id}: {len(stored.run.points)} points of {stored.run.subject.model}, reported"


@command.command("delete")
@click.argument("run")
@common.json_option
def delete(run: str, as_json: bool) -> None:
    """Delete a run with all its samples."""
    with opened() as history:
        line = f"deleted {history.delete(run)}"
    if as_json:
        common.print_json(documents.bench.HistoryDeleteJson(done=(line,)))
        return
    out.print(line)
