"""`firesteel pull MODEL`, `firesteel pull --prune`"""

from __future__ import annotations

import asyncio
import shlex
import signal
import sys
from collections.abc import AsyncIterator

import click

from firesteel import library
from firesteel.cli.options import common
from firesteel.cli.output.documents import DoneJson, PruneJson, WasteJson
from firesteel.cli.output.invocation import typed
from firesteel.cli.output.progress import follow
from firesteel.edge.model_reference import is_hub_id
from firesteel.errors import HostNotReady, UsageError
from firesteel.run import (
    Event,
    PhaseDone,
    UnusedFile,
    find_unused,
    parse_name,
    pull_launch,
    pull_weights,
    pulled_gguf,
    remove_unused,
    weights_needed,
)
from firesteel.units import show_bytes


@click.command("pull")
@click.argument("model", required=False)
@click.option("--include", "patterns", multiple=True, metavar="PATTERN", help="Only these files of a Hub id.")
@click.option("--weights-only", is_flag=True, help="No image and no engine.")
@click.option("--update", is_flag=True, help="Ask the Hub for the newest revision.")
@click.option("--reread", is_flag=True, help="Read all files again and compare their digests.")
@click.option("--prune", is_flag=True, help="Remove what nothing uses; with MODEL, its weights too.")
@click.option("--yes", is_flag=True, help="With --prune: do not ask.")
@common.json_option
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
    """Fetch all that MODEL needs now: image or engine, weights, drafts, plugins. Then it starts offline.

    MODEL is a catalog name or any Hub id: ORG/NAME, ORG/NAME:Q4_K_M, ORG/NAME@REVISION. A fetch that broke
    off goes on where it stopped.
    """
    if prune:
        _prune(model, yes, as_json)
        return
    if model is None:
        raise UsageError("which model?", next="firesteel models")
    if yes:
        raise UsageError("--yes goes with --prune", next=f"firesteel pull {model}")
    events, name = _meant(model, patterns, weights_only, update, reread)
    try:
        done = asyncio.run(_follow(events)) or [f"{name} was there already"]
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    if as_json:
        common.print_json(DoneJson(done=done))
    else:
        click.echo("\n".join(done))
        click.echo(typed(_next(model, patterns)), err=True)


def _meant(
    model: str, patterns: tuple[str, ...], weights_only: bool, update: bool, reread: bool
) -> tuple[AsyncIterator[Event], str]:
    """Of a catalog model all that it needs; of any other repository its files."""
    home = library.home()
    if patterns or (is_hub_id(model.partition(":")[0].partition("@")[0]) and not _is_known(model)):
        want = parse_name(model, patterns)
        return pull_weights([want], home, update=update, reread=reread), want.name
    best = library.plan(model)[0]
    if weights_only or update or reread:
        return pull_weights(weights_needed(best), home, update=update, reread=reread), best.name
    return pull_launch(best, home), best.name


def _is_known(model: str) -> bool:
    ids = [each.lower() for each in library.catalog().models]
    return model.lower() in {*ids, *(each.partition(":")[0] for each in ids)}


def _next(model: str, patterns: tuple[str, ...]) -> str:
    """A GGUF of no recipe is served by its path."""
    if is_hub_id(model.partition(":")[0].partition("@")[0]) and not _is_known(model):
        path = pulled_gguf(parse_name(model, patterns), library.home())
        if path is not None:
            return f"next: firesteel up {shlex.quote(str(path))}"
        return f"next: firesteel plan {model.partition('@')[0]}"
    return f"next: firesteel up {model}"


async def _follow(events: AsyncIterator[Event]) -> list[str]:
    """Whatever ends us ends the threads that fetch, at the next piece."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    return [event.text async for event in follow(events) if isinstance(event, PhaseDone)]


# --- pruning ---


def _prune(model: str | None, yes: bool, as_json: bool) -> None:
    named = _repositories(model) if model else []
    found = find_unused(library.home(), library.catalog(), library.host(), named)
    total = sum(waste.bytes for waste in found)
    if not as_json:
        _show(found, total)
    may = yes or (
        not as_json and bool(found) and sys.stdin.isatty() and click.confirm("remove these?", err=True)
    )
    left = remove_unused(found) if may else ()
    if as_json:
        rows = [
            WasteJson(kind=each.kind, path=str(each.path), bytes=each.bytes, why=each.why) for each in found
        ]
        common.print_json(
            PruneJson(
                waste=rows, bytes=total, removed=may and not left, left=[str(each.path) for each in left]
            )
        )
    elif not may and found:
        again = " ".join(["firesteel pull --prune", *([model] if model else []), "--yes"])
        click.echo(typed(f"next: {again}"), err=True)
    elif may:
        click.echo(f"{show_bytes(total - sum(each.bytes for each in left))} free again")
    if left:
        paths = " ".join(str(each.path) for each in left)
        raise HostNotReady(
            f"{len(left)} of {len(found)} belong to somebody else, a container that ran as root",
            next=f"sudo rm -r {paths}",
        )


def _repositories(model: str) -> list[str]:
    if _is_known(model) or not is_hub_id(model.partition(":")[0]):
        return sorted({want.repository for way in library.plan(model) for want in weights_needed(way)})
    return [parse_name(model, ()).repository]


def _show(found: tuple[UnusedFile, ...], total: int) -> None:
    for waste in found:
        click.echo(f"{show_bytes(waste.bytes):>10}  {waste.kind}  {waste.path}  ({waste.why})")
    click.echo(f"{show_bytes(total):>10}  in all" if found else "nothing to remove")
