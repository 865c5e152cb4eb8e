"""Searches for better settings of a model by measured runs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from firesteel.bench.compare.stats import mean_interval
from firesteel.bench.load.measure import RunProgress
from firesteel.bench.tune import tune as search
from firesteel.bench.tune.journal import Journal, TuneOptions
from firesteel.bench.tune.outcome import Event, SpacePlanned, TrialFinished, TrialStarted, TuneResult
from firesteel.edge.home import find_home
from firesteel.launch import Ask
from firesteel.library import run
from firesteel.library.history import history
from firesteel.run.events import PhaseProgress

if TYPE_CHECKING:
    from firesteel.bench.measurements import MeasuredFigure
    from firesteel.bench.tune.journal import Trial
    from firesteel.bench.tune.search import SearchSpace

__all__ = [  # values of other packages that its functions take or return
    "Journal",
    "PhaseProgress",
    "RunProgress",
    "SpacePlanned",
    "TrialFinished",
    "TrialStarted",
    "TuneOptions",
    "TuneResult",
]


def tune(
    model: str,
    options: TuneOptions | None = None,
    *,
    context: int | None = None,
    port: int | None = None,
    resume: bool = False,
) -> AsyncGenerator[Event]:
    """Search for better settings of a model by measured runs; the last event is `TuneResult`.

    A model that runs is stopped meanwhile and runs again at the end. `resume`: continue an interrupted one.
    """
    options = options or TuneOptions()
    ask = Ask(model, context, options.users, port)
    return run_search(begin_search(ask, options, resume=resume))


def plan_search(ask: Ask, options: TuneOptions) -> tuple[str, SearchSpace]:
    """The name of the service, and what would be tried; nothing is started or written."""
    return search.space_of(find_home(), ask, options, run.services())


def begin_search(ask: Ask, options: TuneOptions, *, resume: bool = False, anew: bool = False) -> Journal:
    """A new search, or an interrupted one. `anew`: drop an interrupted one."""
    if resume:
        return search.resume(find_home(), ask, options, run.services())
    return search.begin(find_home(), ask, options, run.services(), anew=anew)


async def run_search(journal: Journal) -> AsyncGenerator[Event]:
    """The last event is `TuneResult`."""
    with history() as runs:
        async for event in search.tune(journal, search.environment(find_home(), runs)):
            yield event


def interval_of(trial: Trial) -> MeasuredFigure | None:
    """The mean of what it measured; None: it measured nothing."""
    return mean_interval(trial.values)
