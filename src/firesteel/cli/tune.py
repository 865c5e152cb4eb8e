"""`firesteel tune MODEL`"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import click

from firesteel import engines, library
from firesteel.bench.load.measure import RunProgress
from firesteel.bench.results.history import new_run_id, open_history
from firesteel.bench.tune import journal as journals
from firesteel.bench.tune.candidate import CandidateRunner
from firesteel.bench.tune.events import Event, SpacePlanned, TrialFinished, TrialStarted, TuneResult
from firesteel.bench.tune.journal import Journal, RunningBefore, TuneOptions
from firesteel.bench.tune.proposals import PlanningContext
from firesteel.bench.tune.space import make_search_space
from firesteel.bench.tune.tune import TuneEnvironment, tune
from firesteel.cli.options import bench, common
from firesteel.cli.output.invocation import typed
from firesteel.cli.output.progress import SlowLines
from firesteel.cli.output.show import err, out
from firesteel.cli.output.tune import ROLES, outcome, setting_text, space_text, space_view, view
from firesteel.edge.host.signals import cancel_on_signals
from firesteel.errors import UsageError
from firesteel.launch import Ask
from firesteel.proposals import Proposal
from firesteel.run import PhaseProgress, Service


@click.command("tune")
@click.argument("model")
@click.option(
    "--goal",
    type=click.Choice(["latency", "throughput"]),
    default="latency",
    show_default=True,
    help="Make one user's answers fast, or all users' together.",
)
@bench.text_option()
@click.option("--users", type=click.IntRange(1, 1024), help="Tune for this many requests at once.")
@click.option("--context", type=click.IntRange(1), help="Allow each request this many tokens.")
@click.option("--port", type=click.IntRange(1, 65535), help="Serve on this port while measuring.")
@common.runtime_options
@click.option(
    "--budget",
    default="2h",
    callback=bench.one(bench.seconds),
    metavar="TIME",
    show_default=True,
    help="Search for this long at most.",
)
@click.option(
    "--max-runs",
    type=click.IntRange(2, 1000),
    default=40,
    show_default=True,
    help="Start the engine at most this often.",
)
@click.option("--only", multiple=True, metavar="KNOB", help="Change only this setting; repeatable.")
@click.option(
    "--depth",
    default="512",
    callback=bench.one(bench.tokens),
    show_default=True,
    help="Send prompts of this many tokens.",
)
@click.option(
    "--answer",
    default="128",
    callback=bench.one(bench.tokens),
    show_default=True,
    help="Ask for answers of this many tokens.",
)
@bench.thinking_option
@bench.seed_option()
@click.option("--resume", is_flag=True, help="Continue a search that was interrupted.")
@click.option("--anew", is_flag=True, help="Drop an interrupted search and begin another.")
@click.option("--dry-run", is_flag=True, help="Print what would and would not be tried, and start nothing.")
@common.json_option
def command(model: str, resume: bool, anew: bool, dry_run: bool, as_json: bool, **options: Any) -> None:
    """Search for better settings of MODEL: each candidate is started, verified and measured.

    Tries speculative decoding, batch sizes, cache types and kernels, if the engine has them, they fit and no
    rule stops them. A setting that is really better is left running and written as a recipe, MODEL-tuned;
    otherwise what ran before runs again.

    \b
    Exits 0  finished, whether or not something better was found
          1  the current setting could not be measured
    """
    journal = _journal(model, resume, anew, dry_run, options)
    if dry_run:
        _show_space(journal, as_json)
        return
    with open_history(library.home()) as history:
        environment = TuneEnvironment(
            library.home(),
            lambda ask: library.propose(ask, library.host()),
            _planning_context,
            CandidateRunner(library.home(), history, library.host),
        )
        result = _run(tune(journal, environment), journal)
    if as_json:
        from firesteel.bench.documents import tune_json

        common.print_json(tune_json(result))
    else:
        out.print(view(result))


# --- options -> journal ---


def _journal(model: str, resume: bool, anew: bool, dry_run: bool, options: Mapping[str, Any]) -> Journal:
    wish = TuneOptions(
        options["goal"], options["text"], options["users"], options["budget"], options["max_runs"],
        options["depth"], options["answer"], options["seed"],
        {"on": True, "off": False}.get(options["thinking"]), options["only"],
    )  # fmt: skip
    ask = Ask(
        model, options["context"], options["users"], options["port"],
        runtime=options["runtime"], engine_path=options["engine_path"],
    )  # fmt: skip
    chosen, running = _choose(ask)
    interrupted = journals.unfinished(library.home(), chosen.name)
    if resume:
        if interrupted is None:
            raise UsageError(
                f"there is no interrupted search for {chosen.name}", next=f"firesteel tune {chosen.name}"
            )
        # The goal stays what it was; time and runs may be given anew.
        interrupted.options = replace(interrupted.options, budget_s=wish.budget_s, max_runs=wish.max_runs)
        return interrupted
    if interrupted and not (anew or dry_run):
        raise UsageError(
            f"search {interrupted.id} for {chosen.name} was interrupted after {len(interrupted.trials)} runs",
            next=f"firesteel tune {model} --resume, or --anew to begin another",
        )
    if interrupted and not dry_run:
        interrupted.ended = "left"
        journals.write(library.home(), interrupted)
    ask = replace(ask, model=chosen.recipe.name if chosen.recipe else model)
    if interrupted and not interrupted.is_restored:  # what runs now is a candidate that a killed tune left
        ask = replace(interrupted.ask, context=ask.context or interrupted.ask.context)
        before = interrupted.before
    else:
        ask, before = _as_it_runs(ask, running)
    began = datetime.now(UTC).isoformat(timespec="seconds")
    return Journal(new_run_id(), began, chosen.name, ask, wish, before)


def _choose(ask: Ask) -> tuple[Proposal, Service | None]:
    """The recipe of the model that runs, or else the best one."""
    proposals = library.propose(ask, library.host())
    running = {
        service.name: service for service in library.services() if service.phase not in ("dead", "stopping")
    }
    chosen = next((proposal for proposal in proposals if proposal.name in running), proposals[0])
    if chosen.recipe is None:
        raise UsageError(
            f"{ask.model} is not in the catalog, and tune writes its result as a recipe there",
            next="firesteel models, to list the catalog",
        )
    return chosen, running.get(chosen.name)


def _as_it_runs(ask: Ask, running: Service | None) -> tuple[Ask, RunningBefore | None]:
    """The current setting: what the running service was asked to be."""
    if running is None:
        return ask, None
    spec = running.spec
    was = replace(spec.ask, model=spec.ask.model or ask.model, port=urlsplit(spec.url).port)
    before = RunningBefore(was, spec.listen, spec.trusts_code, spec.at_boot, spec.service_file)
    sizes = (ask.context or was.context, ask.users or was.users, ask.port or was.port)
    return replace(was, model=ask.model, context=sizes[0], users=sizes[1], port=sizes[2]), before


def _planning_context() -> PlanningContext:
    workspace = library.workspace()
    catalog = workspace.catalog
    return PlanningContext(catalog.images, workspace.measured_memory, tuple(catalog.recipes.values()))


def _show_space(journal: Journal, as_json: bool) -> None:
    base = library.propose(journal.ask, library.host())[0]
    users = journal.options.users or engines.served_capacity(base.plan.launch).users or 1
    space = make_search_space(base, journal.options.goal, users, _planning_context())
    if as_json:
        from firesteel.bench.documents import space_json

        common.print_json(space_json(journal.name, space))
    else:
        out.print(space_view(space))


# --- the search ---


def _run(events: AsyncIterator[Event], journal: Journal) -> TuneResult:
    try:
        return asyncio.run(_followed(events))
    except (asyncio.CancelledError, KeyboardInterrupt):
        again = typed(f"firesteel tune {journal.ask.model} --resume")
        state = "what ran before runs again" if journal.before else "nothing was left running"
        err.print(f"{state}; to continue: {again}", markup=False)  # click drops the text of an interrupt
        raise KeyboardInterrupt from None


async def _followed(events: AsyncIterator[Event]) -> TuneResult:
    """Shows progress on stderr. A signal ends the search like Ctrl-C, and what ran before runs again."""
    cancel_on_signals()
    result, lines = None, SlowLines()
    async for event in events:
        match event:
            case SpacePlanned():
                err.print(f"{'space':<7} {space_text(event)}", markup=False)
            case TrialStarted():
                role = f" ({ROLES[event.role]})" if event.role != "search" else ""
                err.print(f"run {event.number:<3} {setting_text(event.changes)}{role}", markup=False)
            case TrialFinished():
                err.print(f"        {outcome(event.trial)}", markup=False)
            case RunProgress():
                lines.print(f"        {event.text} ...")
            case PhaseProgress():
                lines.print(f"        {event.phase}: {event.text} ...")
            case TuneResult():
                result = event
            case _:
                pass
    assert result is not None
    return result
