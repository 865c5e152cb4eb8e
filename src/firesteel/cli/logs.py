"""`firesteel logs [NAME]`; with `--why`, why the engine did not start."""

from __future__ import annotations

import sys
from typing import get_args

import click
from click.core import ParameterSource

from firesteel.cli import options
from firesteel.errors import UsageError, escape_unprintable
from firesteel.launch import EngineName
from firesteel.library import documents, run


@click.command("logs")
@click.argument("name", metavar="[NAME|FILE|-]", required=False, shell_complete=options.complete_service)
@click.option(
    "-n",
    "--lines",
    "count",
    type=click.IntRange(1),
    default=50,
    show_default=True,
    help="Print this many lines from the end.",
)
@click.option("--node", metavar="NAME", help="Print what its rank on this node wrote.")
@click.option("--why", is_flag=True, help="Find out from the log why the engine did not start.")
@click.option(
    "--engine",
    type=click.Choice(get_args(EngineName)),
    help="With --why: read it as this engine's log, if the log does not show which it is.",
)
@options.json_option
def command(
    name: str | None, count: int, node: str | None, why: bool, engine: EngineName | None, as_json: bool
) -> int:
    """Print what the engine of NAME wrote to its log, or find out from it why the engine did not start.

    Without NAME, the log that was written to last. Logs are kept after `firesteel down`. --why reads also a
    FILE or stdin (`-`), with the log of any vLLM, SGLang or llama.cpp.

    \b
    Exits 0  printed; with --why: the engine started, or the cause is known
          1  with --why: a failure of an unknown kind, or not an engine's log
    """
    if why:
        has_count = click.get_current_context().get_parameter_source("count") is not ParameterSource.DEFAULT
        if node or has_count:
            what = f"--why reads the whole log, and does not go with {'--node' if node else '--lines'}"
            raise UsageError(what, next="firesteel logs NAME --why")
        return _show_why(name, engine, as_json)
    if engine:
        raise UsageError("--engine needs --why", next=f"firesteel logs NAME --why --engine {engine}")
    log = run.read_log(name, count, node=node)
    if as_json:
        options.print_json(log)
        return 0
    for line in log.lines:
        click.echo(line)
    click.echo(f"# {log.path}", err=True)
    return 0


def _show_why(name: str | None, engine: EngineName | None, as_json: bool) -> int:
    from firesteel.cli.output.diagnosis import (
        diagnosis_view,
    )  # rich, the rules and the engines: most print a log
    from firesteel.cli.output.show import out
    from firesteel.library.check import diagnose_log

    found = diagnose_log(name or run.log_file().parent.name, engine, sys.stdin.buffer)
    if as_json:
        options.print_json(documents.check.diagnosis_json(escape_unprintable(found.name), found.diagnosis))
    else:
        out.print(diagnosis_view(found), soft_wrap=True)
    return found.exit_code
