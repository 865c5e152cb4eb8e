"""`firesteel up [MODEL]`"""

from __future__ import annotations

import asyncio
import signal

import click

from firesteel import library
from firesteel.cli import words
from firesteel.cli.documents import StepJson, StepsJson
from firesteel.cli.fill import report_json
from firesteel.cli.progress import follow
from firesteel.cli.show import err, out, plan_view, report_view
from firesteel.cli.typed import typed
from firesteel.launch import Ask
from firesteel.rules import Proposal, insist
from firesteel.run import Ready, make_steps


@click.command("up")
@click.argument("model", required=False)
@words.size_options
@click.option("--dry-run", is_flag=True, help="Print the commands and run none.")
@words.json_option
def command(
    model: str | None, context: int | None, users: int | None, port: int | None, dry_run: bool, as_json: bool
) -> None:
    """Plan, check, launch and verify MODEL: a model that answers.

    With no name and no GPU, fetches a small model and serves it on the CPU, for real.
    """
    proposals = library.propose(Ask(model, context, users, port), library.host())
    best = proposals[0]
    if dry_run:
        insist(best)
        _print_steps(best, as_json)
        return
    if model is None and best.plan.host.gpus:
        out.print(plan_view(best, tuple(each for each in proposals[1:] if each.can_run)))
        out.print(typed(f"\nnext: firesteel up {best.name}"))
        return
    try:
        ready = asyncio.run(_up(best))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    if as_json:
        words.print_json(report_json(ready.report, ready.already))
        return
    if ready.already:
        err.print(f"{ready.report.name} is already up; this is the report of its start")
    out.print(report_view(ready.report))
    out.print(typed(f"\nnext: firesteel down {ready.report.name}, when you are done"))


async def _up(proposal: Proposal) -> Ready:
    last = None
    # Whatever ends us, a closed terminal or a service manager, takes back what was started, like Ctrl-C.
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    async for event in follow(library.up(proposal)):
        last = event
    assert isinstance(last, Ready)
    return last


def _print_steps(proposal: Proposal, as_json: bool) -> None:
    todo = make_steps(proposal, library.home())
    if as_json:
        rows = [
            StepJson(
                command=list(step.command.argv),
                env=dict(step.command.env),
                why=step.why,
                undo=list(step.undo.argv) if step.undo else None,
            )
            for step in todo
        ]
        words.print_json(StepsJson(name=proposal.name, steps=rows))
        return
    for step in todo:
        click.echo(f"# {step.why}")
        click.echo(str(step.command))
        if step.undo:
            click.echo(f"# undo: {step.undo}")
