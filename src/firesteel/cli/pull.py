"""`firesteel pull MODEL`, `firesteel pull --prune`"""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import AsyncIterator

import click

from firesteel import library
from firesteel.cli.options import common
from firesteel.cli.output.invocation import typed
from firesteel.cli.output.progress import follow
from firesteel.edge.host.signals import cancel_on_signals
from firesteel.errors import HostNotReady, UsageError
from firesteel.hub_id import is_hub_id
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
    events, name = _pull(model, patterns, weights_only, update, reread)
    try:
        done = asyncio.run(_follow(events)) or [f"{name} was there already"]
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    if as_json:
        from firesteel.run.documents import PullJson

        common.print_json(PullJson(done=tuple(done)))
    else:
        click.echo("\n".join(done))
        click.echo(typed(f"next: {_next(model, patterns)}"), err=True)


def _pull(
    model: str, patterns: tuple[str, ...], weights_only: bool, update: bool, reread: bool
) -> tuple[AsyncIterator[Event], str]:
    """Everything that a catalog model needs; only the files of any other repository."""
    home = library.home()
    if patterns or _is_only_on_hub(model):
        want = parse_name(model, patterns)
        return pull_weights([want], home, update=update, reread=reread), want.name
    best = library.plan(model)[0]
    if weights_only or update or reread:
        return pull_weights(weights_needed(best), home, update=update, reread=reread), best.name
    return pull_launch(best, home), best.name


def _is_only_on_hub(model: str) -> bool:
    """A Hub id that is not in the catalog."""
    ids = [known.lower() for known in library.catalog().models]
    is_known = model.lower() in {*ids, *(known.partition(":")[0] for known in ids)}
    return not is_known and is_hub_id(model.partition(":")[0].partition("@")[0])


def _next(model: str, patterns: tuple[str, ...]) -> str:
    if not _is_only_on_hub(model):
        return f"firesteel up {model}"
    path = pulled_gguf(parse_name(model, patterns), library.home())
    # A GGUF without a recipe is served by its path.
    return f"firesteel up {shlex.quote(str(path))}" if path else f"firesteel plan {model.partition('@')[0]}"


async def _follow(events: AsyncIterator[Event]) -> list[str]:
    cancel_on_signals()  # the download threads end at their next chunk
    return [event.text async for event in follow(events) if isinstance(event, PhaseDone)]


# --- pruning ---


def _prune(model: str | None, yes: bool, as_json: bool) -> None:
    repositories = _repositories(model) if model else []
    unused = find_unused(library.home(), library.catalog(), library.host(), repositories)
    total = sum(file.bytes for file in unused)
    if not as_json:
        _show(unused, total)
    confirmed = yes or (
        not as_json and bool(unused) and sys.stdin.isatty() and click.confirm("remove these?", err=True)
    )
    left = remove_unused(unused) if confirmed else ()
    if as_json:
        from firesteel.run.documents import PullPruneJson

        common.print_json(
            PullPruneJson(
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


def _repositories(model: str) -> list[str]:
    if _is_only_on_hub(model):
        return [parse_name(model, ()).repository]
    return sorted({want.repository for proposal in library.plan(model) for want in weights_needed(proposal)})


def _show(unused: tuple[UnusedFile, ...], total: int) -> None:
    for file in unused:
        click.echo(f"{show_bytes(file.bytes):>10}  {file.kind}  {file.path}  ({file.why})")
    click.echo(f"{show_bytes(total):>10}  in total" if unused else "nothing to remove")
