"""Begin a search, or continue an interrupted one."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from urllib.parse import urlsplit

from firesteel.bench.results.history import History, new_run_id
from firesteel.bench.tune import journal as journals
from firesteel.bench.tune.candidate import CandidateRunner
from firesteel.bench.tune.journal import Journal, RunningBefore, TuneOptions
from firesteel.bench.tune.points import served_users
from firesteel.bench.tune.proposals import PlanningContext
from firesteel.bench.tune.space import SearchSpace, make_search_space
from firesteel.bench.tune.tune import TuneEnvironment
from firesteel.edge.home import Home
from firesteel.errors import UsageError
from firesteel.launch import Ask
from firesteel.planner.propose import Proposal
from firesteel.run.service import Service
from firesteel.values import replace
from firesteel.workspace import Workspace


def begin(
    home: Home, ask: Ask, options: TuneOptions, services: Iterable[Service], *, anew: bool = False
) -> Journal:
    """A new search, of the setting that runs or else of the best recipe. `anew`: drop an interrupted one."""
    chosen, running = _choose(home, ask, services)
    interrupted = journals.unfinished(home, chosen.name)
    if interrupted and not anew:
        raise UsageError(
            f"search {interrupted.id} for {chosen.name} was interrupted after {len(interrupted.trials)} runs",
            next=f"firesteel tune {ask.model} --resume, or --anew to begin another",
        )
    if interrupted:
        interrupted.ended = "left"
        journals.write(home, interrupted)
    return _journal(chosen, running, ask, options, interrupted)


def resume(home: Home, ask: Ask, options: TuneOptions, services: Iterable[Service]) -> Journal:
    """The interrupted search. Its goal stays what it was; time and runs are given anew."""
    chosen, _ = _choose(home, ask, services)
    interrupted = journals.unfinished(home, chosen.name)
    if interrupted is None:
        raise UsageError(
            f"there is no interrupted search for {chosen.name}", next=f"firesteel tune {chosen.name}"
        )
    interrupted.options = replace(interrupted.options, budget_s=options.budget_s, max_runs=options.max_runs)
    return interrupted


def space_of(
    home: Home, ask: Ask, options: TuneOptions, services: Iterable[Service]
) -> tuple[str, SearchSpace]:
    """The name of the service, and what would be tried; nothing is written."""
    chosen, running = _choose(home, ask, services)
    interrupted = journals.unfinished(home, chosen.name)
    here, journal = Workspace(home), _journal(chosen, running, ask, options, interrupted)
    base = here.propose(journal.ask, here.host())[0]
    users = options.users or served_users(base)
    return chosen.name, make_search_space(base, options.goal, users, _planning_context(here))


def environment(home: Home, history: History) -> TuneEnvironment:
    """Makes each proposal in a new Workspace: a search changes the measured memory and the catalog."""
    return TuneEnvironment(
        home,
        lambda ask: Workspace(home).propose(ask, Workspace(home).host()),
        lambda: _planning_context(Workspace(home)),
        CandidateRunner(home, history, lambda: Workspace(home).host()),
    )


def _planning_context(here: Workspace) -> PlanningContext:
    catalog = here.catalog
    return PlanningContext(catalog.images, here.measured_memory, tuple(catalog.recipes.values()))


def _choose(home: Home, ask: Ask, services: Iterable[Service]) -> tuple[Proposal, Service | None]:
    """The recipe of the model that runs, or else the best one."""
    here = Workspace(home)
    proposals = here.propose(ask, here.host())
    running = {service.name: service for service in services if service.phase not in ("dead", "stopping")}
    chosen = next((proposal for proposal in proposals if proposal.name in running), proposals[0])
    if chosen.recipe is None:
        raise UsageError(
            f"{ask.model} is not in the catalog, and tune writes its result as a recipe there",
            next="firesteel models, to list the catalog",
        )
    return chosen, running.get(chosen.name)


def _journal(
    chosen: Proposal, running: Service | None, ask: Ask, options: TuneOptions, interrupted: Journal | None
) -> Journal:
    ask = replace(ask, model=chosen.recipe.name if chosen.recipe else ask.model)
    if interrupted and not interrupted.is_restored:  # what runs now is a candidate that a killed tune left
        ask = replace(interrupted.ask, context=ask.context or interrupted.ask.context)
        before = interrupted.before
    else:
        ask, before = _as_it_runs(ask, running)
    began = datetime.now(UTC).isoformat(timespec="seconds")
    return Journal(new_run_id(), began, chosen.name, ask, options, before)


def _as_it_runs(ask: Ask, running: Service | None) -> tuple[Ask, RunningBefore | None]:
    """The current setting: what the running service was asked to be."""
    if running is None:
        return ask, None
    spec = running.spec
    was = replace(spec.ask, model=spec.ask.model or ask.model, port=urlsplit(spec.url).port)
    before = RunningBefore(was, spec.listen, spec.trusts_code, spec.at_boot, spec.service_file)
    sizes = (ask.context or was.context, ask.users or was.users, ask.port or was.port)
    return replace(was, model=ask.model, context=sizes[0], users=sizes[1], port=sizes[2]), before
