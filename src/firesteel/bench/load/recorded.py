"""A measurement that is stored while it runs, so that an interrupted one can be resumed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import replace

from firesteel.bench.load.contention import watch_contention
from firesteel.bench.load.measure import Event, RunFinished, RunOrder, RunStarted, SampleTaken, measure
from firesteel.bench.load.schedule import RunLimits
from firesteel.bench.load.shapes import Sizes, fit_context, points
from firesteel.bench.load.subject import FoundSubject
from firesteel.bench.results.history import History, new_run_id
from firesteel.bench.values import BenchRun, Point, RequestSample, RequestSettings
from firesteel.edge.files.home import Home
from firesteel.errors import UsageError


def make_order(
    server: FoundSubject,
    key: str | None,
    shapes: Iterable[str] = ("quick",),
    sizes: Sizes | None = None,
    settings: RequestSettings | None = None,
    limits: RunLimits | None = None,
) -> RunOrder:
    """The points of these shapes that fit in the server's context."""
    wanted, notes = fit_context(points(shapes, sizes), server.context)
    if not wanted:
        raise UsageError(f"none of these points fits: {notes[0]}", next="--depth with fewer tokens")
    settings = replace(settings or RequestSettings(), max_num_seqs=server.users)
    notes = (*notes, *_queueing(wanted, server))
    return RunOrder(server.subject, wanted, settings, limits or RunLimits(), key, new_run_id(), notes=notes)


def _queueing(wanted: Iterable[Point], server: FoundSubject) -> Iterable[str]:
    most = max((point.users for point in wanted if point.rate_per_s is None), default=0)
    if server.users and most > server.users:
        yield f"it serves {server.users} requests at once; with {most} users the others wait"


def resume_order(
    history: History, name: str, server: FoundSubject, key: str | None, limits: RunLimits | None = None
) -> RunOrder:
    """The same points and settings; without limits, again as much time as the run had."""
    stored = history.resume(name)
    run = stored.run
    if run.subject.model != server.subject.model:
        what = f"run {run.id} measured {run.subject.model}, not {server.subject.model}"
        raise UsageError(what, next="firesteel bench")
    usual = RunLimits()
    limits = limits or RunLimits(
        run.limits.get("budget_s", usual.budget_s), run.limits.get("precision", usual.precision)
    )
    limits = replace(limits, budget_s=elapsed(stored.samples) + limits.budget_s)
    return RunOrder(
        server.subject, run.points, run.settings, limits, key, run.id, earlier_samples=stored.samples
    )


async def measure_recorded(order: RunOrder, history: History, home: Home) -> AsyncIterator[Event]:
    """The last event is RunFinished; its run is in the history."""
    with watch_contention(home, order.subject.url, order.id) as others:
        async for event in measure(order):
            if isinstance(event, RunStarted) and not history.is_begun(order.id):
                history.begin(_annotated(event.run, order, others()))
            elif isinstance(event, SampleTaken):
                history.add(order.id, event.sample)
            elif isinstance(event, RunFinished):
                event = replace(event, run=_annotated(event.run, order, others()))
                history.finish(event.run)
            yield event


def _annotated(run: BenchRun, order: RunOrder, notes: tuple[str, ...]) -> BenchRun:
    """With its limits, so that it can be resumed; of a resumed run, those of this part."""
    limits, elapsed_s = order.limits, elapsed(order.earlier_samples)
    return replace(
        run,
        notes=(*run.notes, *notes),
        limits={"budget_s": limits.budget_s - elapsed_s, "precision": limits.precision},
    )


def elapsed(samples: Iterable[RequestSample]) -> float:
    """Seconds of the run's clock that earlier parts took, counted as `measure` counts them."""
    ends = [sample.started_s + sample.total_s for sample in samples]
    return max(ends) + 1.0 if ends else 0.0
