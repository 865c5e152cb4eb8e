"""`firesteel pull MODEL`, `firesteel pull --prune`"""

from __future__ import annotations

import asyncio
import sys

import click

from firesteel.cli import options
from firesteel.cli.output.invocation import typed
from firesteel.cli.output.progress import done_texts
from firesteel.errors import HostNotReady, UsageError
from firesteel.library import documents, run
from firesteel.units import show_bytes


@click.command("pull")
@click.argument("model", required=False, shell_complete=options.complete_recipe)
@click.option(
    "--include",
    "patterns",
    multiple=True,
    metavar="PATTERN",
    help="Download only these files of a Hub id; repeatable.",
)
@click.option("--weights-only", is_flag=True, help="Download no image and no engine.")
@click.option("--update", is_flag=True, help="Ask the Hub for the newest revision.")
@click.option("--reread", is_flag=True, help="Read all files again and compare their digests.")
@click.option("--prune", is_flag=True, help="Remove unused files; with MODEL, its weights too.")
@click.option("--yes", is_flag=True, help="With --prune: do not ask before removing.")
@options.json_option
def command(
    model: str | None,
    patterns: tuple[str, ...],
    weights_only: bool,
    update: bool,
    reread: bool,
    prune: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Download everything that MODEL needs, so that it starts offline.

    That is its image or engine, weights, drafters and plugins. MODEL is a catalog name or any Hub id:
    ORG/NAME, ORG/NAME:Q4_K_M, ORG/NAME@REVISION. An interrupted download continues where it stopped.
    """
    if prune:
        _prune(model, yes, as_json)
        return
    if model is None:
        raise UsageError("which model?", next="firesteel models")
    if yes:
        raise UsageError("--yes needs --prune", next=f"firesteel pull {model}")
    events = run.pull(model, patterns, weights_only=weights_only, update=update, reread=reread)
    try:
        done = asyncio.run(done_texts(events)) or [f"{model} was there already"]
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    if as_json:
        options.print_json(documents.run.PullJson.of(done=tuple(done)))
    else:
        click.echo("\n".join(done))
        click.echo(typed(f"next: {run.next_after_pull(model, patterns)}"), err=True)


# --- pruning ---


def _prune(model: str | None, yes: bool, as_json: bool) -> None:
    unused = run.unused_files(model)
    total = sum(file.bytes for file in unused)
    if not as_json:
        for file in unused:
            click.echo(f"{show_bytes(file.bytes):>10}  {file.kind}  {file.path}  ({file.why})")
        click.echo(f"{show_bytes(total):>10}  in total" if unused else "nothing to remove")
    confirmed = yes or (
        not as_json and bool(unused) and sys.stdin.isatty() and click.confirm("remove these?", err=True)
    )
    left = run.remove_files(unused) if confirmed else ()
    if as_json:
        options.print_json(
            documents.run.PullPruneJson.of(
                waste=unused,
                bytes=total,
                removed=confirmed and not left,
                left=tuple(str(file.path) for file in left),
            )
        )
    elif not confirmed and unused:
        again = " ".join(["firesteel pull --prune", *([model] if model else []), "--yes"])
        click.echo(typed(f"next: {again}"), err=True)
    elif confirmed:
        click.echo(f"{show_bytes(total - sum(file.bytes for file in left))} freed")
    if left:
        paths = " ".join(str(file.path) for file in left)
        raise HostNotReady(
            f"{len(left)} of {len(unused)} belong to another user, because a container ran as root",
            next=f"sudo rm -r {paths}",
        )
