"""Measured runs: made, kept, compared, and used to search for better settings."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from firesteel.edge.files.home import find_home
from firesteel.launch import Ask

if TYPE_CHECKING:  # loaded only by those who use them
    from firesteel.bench.compare.against import PlanComparison, PublishedComparison
    from firesteel.bench.compare.quality import QualityComparison
    from firesteel.bench.compare.runs import Comparison
    from firesteel.bench.load.measure import Event as BenchEvent
    from firesteel.bench.load.schedule import RunLimits
    from firesteel.bench.load.shapes import Sizes
    from firesteel.bench.results.history import History
    from firesteel.bench.results.serialize import StoredRun
    from firesteel.bench.tune.events import Event as TuneEvent
    from firesteel.bench.tune.journal import TuneOptions
    from firesteel.bench.values import RequestSettings


async def measure(
    name: str | None = None,
    *,
    url: str | None = None,
    model: str | None = None,
    key: str | None = None,
    shapes: Iterable[str] = ("quick",),
    sizes: Sizes | None = None,
    settings: RequestSettings | None = None,
    limits: RunLimits | None = None,
    resume: str | None = None,
    prompts: str | Path | None = None,
    find: bool = False,
) -> AsyncGenerator[BenchEvent]:
    """Measures a service or any OpenAI endpoint; the last event is `RunFinished`, and the run is stored.

    `resume`: an interrupted run to continue; it keeps its points and settings. `prompts`: a file with prompts
    of one's own. `find`: search for the highest load that holds `settings.target`, instead of `shapes`.
    """
    from firesteel.bench.load import own_prompts, recorded  # the client that measures

    own = own_prompts.read_prompts(Path(prompts)) if prompts else None
    server = await recorded.find_server(find_home(), name, url, model, key)
    with history() as runs:
        if resume:
            budget_s, precision = (limits.budget_s, limits.precision) if limits else (None, None)
            order = recorded.resume_order(runs, resume, server, budget_s, precision, own)
        elif find:
            order = recorded.search_order(server, sizes, settings, limits, own)
        else:
            order = recorded.make_order(server, shapes, sizes, settings, limits, own=own)
        async for event in recorded.measure_recorded(order, runs, find_home()):
            yield event


def history() -> AbstractContextManager[History]:
    """The measured runs: `with firesteel.history() as history: history.runs()`."""
    from firesteel.bench.results.history import open_history  # SQLite

    return open_history(find_home())


def stored_run(name: str = "last") -> StoredRun:
    """A run of the history by its id, `last` or `last~1`; or one from a file, also of another tool."""
    from firesteel.bench.results.result_files import find_run

    with history() as runs:
        return find_run(runs, name)


def compare(first: str, second: str, *, despite: Iterable[str] = ()) -> Comparison:
    """The second run against the first: which differences are more than chance."""
    from firesteel.bench.compare import runs

    one, other = stored_run(first), stored_run(second)
    with history() as known:
        earlier = known.runs_of(one.run.subject.launch_key, other.run.subject.launch_key)
    is_interleaved = runs.were_interleaved(one, other)
    return runs.compare(one, other, despite=tuple(despite), is_interleaved=is_interleaved, earlier=earlier)


async def compare_in_turns(
    first: str,
    second: str,
    *,
    model: str | None = None,
    key: str | None = None,
    shapes: Iterable[str] = ("quick",),
    sizes: Sizes | None = None,
    limits: RunLimits | None = None,
) -> AsyncGenerator[BenchEvent | Comparison]:
    """Measures two servers (URLs or running services) in turns; the last event is the `Comparison`."""
    from firesteel.bench.compare import ab, runs  # the client that measures
    from firesteel.bench.load.measure import RunFinished
    from firesteel.bench.results.serialize import StoredRun

    done: dict[int, StoredRun] = {}
    servers = await ab.find_servers(find_home(), (first, second), model, key)
    with history() as known:
        async for side, event in ab.measure_in_turns(known, servers, shapes, sizes, limits):
            if isinstance(event, RunFinished):
                done[side] = StoredRun(event.run, event.samples)
            yield event
    yield runs.compare(done[0], done[1], is_interleaved=True)


async def compare_answers(
    first: str, second: str, *, model: str | None = None, key: str | None = None, budget_s: float = 240.0
) -> QualityComparison:
    """Two URLs or running services, asked the same at temperature 0: how their answers differ."""
    from firesteel.bench.compare import quality
    from firesteel.bench.compare.ab import find_servers

    servers = await find_servers(find_home(), (first, second), model, key)
    pairs = [pair async for pair in quality.ask_both(servers, budget_s)]
    return quality.compare_quality((first, second), pairs)


def compare_with_plan(name: str = "last") -> tuple[PlanComparison, ...]:
    """A run against what was planned for its service."""
    from firesteel.bench.compare.against import against_plan

    return against_plan(stored_run(name).run)


def compare_with_published(name: str = "last") -> tuple[PublishedComparison, ...]:
    """A run against the published runs of the same checkpoint and engine."""
    from firesteel.bench.compare.against import all_published

    return all_published(stored_run(name).run)


async def tune(
    model: str,
    options: TuneOptions | None = None,
    *,
    context: int | None = None,
    port: int | None = None,
    resume: bool = False,
) -> AsyncGenerator[TuneEvent]:
    """Searches for better settings of a model by measured runs; the last event is `TuneResult`.

    A model that runs is stopped meanwhile and runs again at the end. `resume`: continue an interrupted one.
    """
    from firesteel.bench.tune import begin, journal
    from firesteel.bench.tune import tune as search
    from firesteel.library.run import services

    options = options or journal.TuneOptions()
    ask = Ask(model, context, options.users, port)
    entry = (begin.resume if resume else begin.begin)(find_home(), ask, options, services())
    with history() as runs:
        async for event in search.tune(entry, begin.environment(find_home(), runs)):
            yield event
