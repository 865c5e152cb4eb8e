"""Begin a search, or continue an interrupted one, for a model that does not run yet."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from firesteel.bench.results.history import History, new_run_id
from firesteel.bench.tune import journal as journals
from firesteel.bench.tune.candidate import CandidateRunner
from firesteel.bench.tune.journal import Journal, TuneOptions
from firesteel.bench.tune.proposals import PlanningContext
from firesteel.bench.tune.tune import TuneEnvironment
from firesteel.edge.files.home import Home
from firesteel.errors import UsageError
from firesteel.launch import Ask
from firesteel.run import Service
from firesteel.workspace import Workspace


def begin(home: Home, ask: Ask, options: TuneOptions, services: Iterable[Service]) -> Journal:
    """The journal of the search that was interrupted, or a new one."""
    here = Workspace(home)
    chosen = here.propose(ask, here.host())[0]
    if chosen.recipe is None:
        raise UsageError(
            f"{ask.model} is not in the catalog, and tune writes its result as a recipe there",
            next="firesteel models, to list the catalog",
        )
    if interrupted := journals.unfinished(home, chosen.name):
        return interrupted
    if any(service.name == chosen.name and service.phase not in ("dead", "stopping") for service in services):
        raise UsageError(f"{chosen.name} is running", next=f"firesteel down {chosen.name}")
    began = datetime.now(UTC).isoformat(timespec="seconds")
    return Journal(new_run_id(), began, chosen.name, ask, options)


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
