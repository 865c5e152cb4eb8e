"""`firesteel history`"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.text import Text

from firesteel import library
from firesteel.bench.results import exchange, other_tools, serialize
from firesteel.bench.results.history import History, RunSummary, open_history
from firesteel.bench.results.serialize import StoredRun
from firesteel.cli.options import common
from firesteel.cli.output.documents import DoneJson, HistoryJson, HistoryLineJson
from firesteel.cli.output.invocation import typed
from firesteel.cli.output.show import err, out, table
from firesteel.edge.files import text_files
from firesteel.errors import UsageError


@contextmanager
def opened() -> Iterator[History]:
    """The user's own; what was wrong with it is said on stderr."""
    with open_history(library.home()) as history:
        for note in history.notes:
            err.print(note, markup=False)
        yield history


def read_file(path: Path) -> str:
    """Whole, or not at all: half of a result is none."""
    text = text_files.open_text(path)
    if len(text.encode(errors="replace")) >= text_files.MAX_BYTES:
        most = text_files.MAX_BYTES // 2**20
        raise UsageError(f"{path} is longer than {most} MiB", next="one without every request in it")
    return text


@click.group("history", invoke_without_command=True)
@click.option("--all", "is_all", is_flag=True, help="More than the last fifty.")
@common.json_option
@click.pass_context
def command(ctx: click.Context, is_all: bool, as_json: bool) -> None:
    """Every run that was measured, the newest first; with a word, one of them.

    RUN is an id, the beginning of one, `last`, or `last~1` for the one before.
    """
    if ctx.invoked_subcommand is None:
        _list(is_all, as_json)


@command.command("list")
@click.option("--all", "is_all", is_flag=True, help="More than the last fifty.")
@common.json_option
def list_command(is_all: bool, as_json: bool) -> None:
    """Every run, the newest first."""
    _list(is_all, as_json)


def _list(is_all: bool, as_json: bool) -> None:
    with opened() as history:
        lines, notes = history.runs(10_000 if is_all else 50), history.notes
    if as_json:
        common.print_json(HistoryJson(runs=[_line_json(line) for line in lines], notes=list(notes)))
        return
    if not lines:
        out.print(typed("nothing was measured yet; next: firesteel bench"))
        return
    columns = ("name", "when", "model", "engine", "points", "samples", "")
    out.print(table(columns, [[Text(cell) for cell in _cells(line)] for line in lines]))


def _cells(line: RunSummary) -> tuple[str, ...]:
    engine = " ".join(word for word in (line.engine, line.version) if word) or "not known"
    state = "" if line.is_whole else f"not whole; to go on: {typed(f'firesteel bench --resume {line.id}')}"
    if line.origin != "measured here":
        state = line.origin
    when = line.began[:16].replace("T", " ")
    return (line.id, when, line.model, engine, str(line.points), str(line.samples), state)


def _line_json(line: RunSummary) -> HistoryLineJson:
    return HistoryLineJson(
        id=line.id,
        began=line.began,
        model=line.model,
        engine=line.engine,
        version=line.version,
        origin="measured here" if line.origin == "measured here" else "reported",
        is_whole=bool(line.is_whole),
        points=line.points,
        samples=line.samples,
    )


@command.command("show")
@click.argument("run", default="last")
@click.option("--cold", is_flag=True, help="The first, cold visits too.")
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Write a report to read.")
@common.json_option
def show(run: str, cold: bool, html: Path | None, as_json: bool) -> None:
    """The figures of one run, as `firesteel bench` printed them."""
    from firesteel.cli.output.bench import document, view  # they bring the client that measures
    from firesteel.cli.output.bench_page import write_page  # with what reads published figures

    with opened() as history:
        found = history.run(run)
        if html:
            write_page(html, found, history)
    if as_json:
        common.print_json(document(found.run, html))
        return
    out.print(view(found.run, cold))
    if html:
        err.print(f"report  {html}", markup=False)
    if found.origin != "measured here":
        out.print(f"{found.origin}, from {found.source}", markup=False)


@command.command("export")
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--file", type=click.Path(path_type=Path, dir_okay=False), help="Into this file.")
@click.option("--samples", is_flag=True, help="One run whole, with every sample, not its rows alone.")
def export(runs: tuple[str, ...], file: Path | None, samples: bool) -> None:
    """Rows to share, as JSON: figures with their intervals, and nothing that names you or your machine.

    Without a RUN, all that were measured here. With --samples one run whole: that has its addresses too.
    """
    if samples and len(runs) != 1:
        raise UsageError("--samples is for one RUN", next="firesteel history export last --samples")
    with opened() as history:
        names = runs or tuple(line.id for line in history.runs(10_000) if line.origin == "measured here")
        found = [history.run(name) for name in names]
    text = json.dumps(serialize.to_document(found[0])) if samples else exchange.export_text(_rows(found))
    if file:
        text_files.write_new(file, f"{text}\n")
    else:
        click.echo(text)


def _rows(found: list[StoredRun]) -> Iterator[exchange.ExportRow]:
    for kept in found:
        yield from exchange.export_rows(kept)


@command.command("import")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@common.json_option
def import_command(file: Path, as_json: bool) -> None:
    """Runs from a file: rows that were exported, llama-benchy's, `vllm bench`'s. They are `reported`."""
    text = read_file(file)
    found = _from_file(text, str(file))
    done = []
    with opened() as history:
        known = {line.id for line in history.runs(10_000)}
        for kept in found:
            if kept.run.id in known:
                done.append(f"{kept.run.id} was there already")
                continue
            history.begin(kept.run, "reported", kept.source)
            history.add(kept.run.id, *kept.samples)
            done.append(f"{kept.run.id}: {len(kept.run.points)} points of {kept.run.subject.model}, reported")
    _say(done, as_json)


def _from_file(text: str, where: str) -> tuple[StoredRun, ...]:
    if text.lstrip()[:1] == "{" and '"firesteel_rows"' in text[:1000]:
        return exchange.import_text(text, where)
    return (other_tools.read(text, where),)


@command.command("delete")
@click.argument("run")
@common.json_option
def delete(run: str, as_json: bool) -> None:
    """Forget a run with all its samples."""
    with opened() as history:
        _say([f"{history.delete(run)} is gone"], as_json)


def _say(done: list[str], as_json: bool) -> None:
    if as_json:
        common.print_json(DoneJson(done=done))
        return
    for line in done:
        out.print(line, markup=False)
