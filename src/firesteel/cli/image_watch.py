"""`firesteel image watch`"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from firesteel.cli.options import common
from firesteel.cli.output.progress import SlowLines, build_line, told_on_interrupt
from firesteel.cli.output.show import line
from firesteel.edge.host.signals import cancel_on_signals
from firesteel.errors import FiresteelError, escape_unprintable
from firesteel.library import documents, images

if TYPE_CHECKING:
    from firesteel.workshop.images.factory.policy import FactoryState, ImagePolicy

_SHOWN = 10


@click.command("watch")
@click.argument("path", metavar="[FILE]", required=False, type=common.PATH)
@click.option(
    "--dry-run", is_flag=True, help="Look upstream, and say what would be done next; change nothing."
)
@click.option("--status", is_flag=True, help="Show how far each release has come, and look at nothing.")
@click.option("--again", metavar="TAG", help="Try a refused release once more.")
@common.json_option
def watch(path: Path | None, dry_run: bool, status: bool, again: str | None, as_json: bool) -> int:
    """Build new upstream releases, compare them with the current image, promote or refuse them.

    FILE says which (default FIRESTEEL_HOME/factory.yaml; docs/images.md has an example). Does what is due now
    and ends: a timer or a workflow runs it again (`firesteel render FILE --as timer|workflow`). What was
    interrupted is continued.

    \b
    Exits 0  done, or nothing was due
          1  a release was refused, or upstream could not be asked
    """
    path = images.policy_file(path)
    policies = images.read_policies(path)
    done: dict[str, list[str]] = {name: [] for name in policies}
    problems: list[FiresteelError] = []
    if again:
        images.try_again(policies, again)
    if not status:
        for name, policy in policies.items():
            try:
                with told_on_interrupt("the same command goes on where it was"):
                    asyncio.run(_run(path, name, policy, done[name], dry_run))
            except FiresteelError as error:  # the other images do not depend on it
                problems.append(error)
    states = {name: images.policy_state(name) for name in policies}
    _show(states, done, as_json)
    if problems:
        raise problems[0]
    return int(any("refused" in line for lines in done.values() for line in lines))


async def _run(path: Path, name: str, policy: ImagePolicy, done: list[str], dry_run: bool) -> None:
    cancel_on_signals()
    if dry_run:
        done.append(await images.next_action(path, name, policy))
        return
    lines = SlowLines()
    async for event in images.run_policy(path, name, policy):
        if isinstance(event, str):
            done.append(event)
            lines.print(f"{name}: {escape_unprintable(event)}")
        else:
            lines.print(f"{name}: {build_line(event)}")


def _show(states: dict[str, FactoryState], done: dict[str, list[str]], as_json: bool) -> None:
    if as_json:
        shown = tuple(
            documents.images.FactoryImageJson.of(
                name=name,
                looked=_day(state.looked_s) if state.looked_s else None,
                current=state.current.tag if state.current else None,
                releases=state.releases,
                done=tuple(done[name]),
            )
            for name, state in states.items()
        )
        common.print_json(documents.images.ImageWatchJson.of(images=shown))
        return
    for name, state in states.items():
        looked = f"looked {_day(state.looked_s)}" if state.looked_s else "never looked"
        line(f"{name}: {looked}; current {state.current.image_tag if state.current else 'none'}")
        for action in done[name]:
            line(f"  now           {action}")
        for found in state.releases[:_SHOWN]:
            why = f": {'; '.join(found.why)}" if found.why else ""
            stage = "current" if found == state.current else found.stage
            line(f"  {found.tag:<13} {stage}{why}")
        if len(state.releases) > _SHOWN:
            line(f"  ... and {len(state.releases) - _SHOWN} older ones (--json lists them)")


def _day(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"
