"""A measurement that is stored while it runs, so that an interrupted one can be resumed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from firesteel.bench.load.contention import watch_contention
from firesteel.bench.load.measure import Event, RunFinished, RunOrder, RunStarted, SampleTaken, measure
from firesteel.bench.load.own_prompts import OwnPrompts
from firesteel.bench.load.schedule import RunLimits
from firesteel.bench.load.shapes import Sizes, fit_context, points
from firesteel.bench.load.subject import FoundSubject, of_service, of_url
from firesteel.bench.results.history import History, new_run_id
from firesteel.bench.values import BenchRun, Point, RequestSample, RequestSettings
from firesteel.edge.home import Home
from firesteel.edge.http.engine_client import is_healthy
from firesteel.errors import FiresteelError, HostNotReady, UsageError
from firesteel.planner.memory.measured import launch_key
from firesteel.planner.plan import Plan
from firesteel.run.endpoints import base_url, running_service
from firesteel.run.service import Service, api_key
from firesteel.run.verify.expected import stored_expected
from firesteel.values import replace
from firesteel.workspace import Workspace

FoundServer = tuple[FoundSubject, str | None]
"""A server and its key."""


async def find_server(
    home: Home, name: str | None, url: str | None = None, model: str | None = None, key: str | None = None
) -> FoundServer:
    """The endpoint at `url`, or else a running service (without a name, the only one)."""
    if url:
        return await of_url(base_url(url), model, key), key
    service = running_service(home, name)
    if not await is_healthy(service.spec.url, timeout_s=10):
        raise HostNotReady(f"{service.name} does not answer at {service.spec.url}", next="firesteel ps")
    plan = await asyncio.to_thread(plan_of, Workspace(home), service)
    host = await asyncio.to_thread(Workspace(home).host)
    return of_service(service, stored_expected(service.folder), plan, host), api_key(service.spec)


def plan_of(workspace: Workspace, service: Service) -> Plan | None:
    """The plan of the launch that runs, made again from what was asked for; None when it would differ."""
    try:
        proposals = workspace.propose(service.spec.ask, workspace.host())
    except FiresteelError:
        return None
    plans = (proposal.plan for proposal in proposals)
    return next((plan for plan in plans if launch_key(plan.launch) == service.spec.launch), None)


def make_order(
    server: FoundServer,
    shapes: Iterable[str] = ("quick",),
    sizes: Sizes | None = None,
    settings: RequestSettings | None = None,
    limits: RunLimits | None = None,
    *,
    context: int | None = None,
    requests: Mapping[str, Any] | None = None,
    own: OwnPrompts | None = None,
) -> RunOrder:
    """The points of these shapes that fit in the context (of the server, unless another is given)."""
    found, key = server
    every = points(shapes, sizes)
    if own:
        every = own_points(every, own)
    wanted, notes = fit_context(every, context or found.context)
    if not wanted:
        raise UsageError(f"none of these points fits: {notes[0]}", next="--depth with fewer tokens")
    most = max((point.users for point in wanted if point.rate_per_s is None), default=0)
    if found.users and most > found.users:
        notes += (f"it serves {found.users} requests at once; with {most} users the others wait",)
    return RunOrder(
        found.subject, wanted, replace(settings or RequestSettings(), max_num_seqs=found.users),
        limits or RunLimits(), key, new_run_id(), requests=requests or {}, notes=notes, own=own,
        context=context or found.context,
    )  # fmt: skip


def own_points(every: Iterable[Point], own: OwnPrompts) -> tuple[Point, ...]:
    """The same loads with prompts of the user's own: one turn each, nothing shared, one kind of text."""
    loads = (replace(point, text="prose", shared_tokens=0, turns=1, prompts=own.label) for point in every)
    return tuple(dict.fromkeys(replace(point, prompt_tokens=own.mean_tokens) for point in loads))


def search_order(
    server: FoundServer,
    sizes: Sizes | None,
    settings: RequestSettings | None,
    limits: RunLimits | None,
    own: OwnPrompts | None = None,
) -> RunOrder:
    """To find the highest load that holds `settings.target`, with prompts and answers of one size."""
    if not settings or not settings.target:
        raise UsageError("there is no target to hold", next="firesteel bench --find ttft=2s,token=50ms")
    sizes = replace(sizes or Sizes(), users=(1,))
    order = make_order(server, ("single",), sizes, settings, limits, own=own)
    if len(order.points) != 1:
        raise UsageError("--find takes one --depth, one --answer and one kind of --text", next="--depth 512")
    return replace(order, is_search=True)


def resume_order(
    history: History,
    name: str,
    server: FoundServer,
    budget_s: float | None = None,
    precision: float | None = None,
    own: OwnPrompts | None = None,
) -> RunOrder:
    """The same points and settings, and by default again as much time as the run had."""
    stored, (found, key), usual = history.resume(name), server, RunLimits()
    run = stored.run
    if run.subject.model != found.subject.model:
        what = f"run {run.id} measured {run.subject.model}, not {found.subject.model}"
        raise UsageError(what, next="firesteel bench")
    labels = {point.prompts for point in run.points}
    if labels != {own.label if own else ""}:
        what = f"run {run.id} was measured with the prompts of {' '.join(sorted(labels)) or 'no file'}"
        raise UsageError(what, next=f"firesteel bench --resume {run.id}, with --prompts and that file")
    budget_s = budget_s or run.limits.get("budget_s", usual.budget_s)
    limits = RunLimits(
        _elapsed_s(stored.samples) + budget_s, precision or run.limits.get("precision", usual.precision)
    )
    return RunOrder(
        found.subject, run.points, run.settings, limits, key, run.id, earlier_samples=stored.samples, own=own,
        context=found.context,
    )  # fmt: skip


async def measure_recorded(order: RunOrder, history: History, home: Home) -> AsyncIterator[Event]:
    """The last event is RunFinished; its run is in the history."""
    with watch_contention(home, order.subject.url, order.id) as others:
        async for event in measure(order):
            if isinstance(event, RunStarted | RunFinished):
                event = replace(event, run=_annotated(event.run, order, others()))
            record(history, order.id, event)
            yield event


def record(history: History, id: str, event: Event) -> None:
    if isinstance(event, RunStarted):
        if history.is_begun(id):
            history.add_points(event.run)
        else:
            history.begin(event.run)
    elif isinstance(event, SampleTaken):
        history.add(id, event.sample)
    elif isinstance(event, RunFinished):
        history.finish(event.run)


def _annotated(run: BenchRun, order: RunOrder, notes: tuple[str, ...]) -> BenchRun:
    """With its limits, so that it can be resumed; of a resumed run, those of this part."""
    limits, elapsed_s = order.limits, _elapsed_s(order.earlier_samples)
    return replace(
        run,
        notes=(*run.notes, *notes),
        limits={"budget_s": limits.budget_s - elapsed_s, "precision": limits.precision},
    )


def _elapsed_s(samples: Iterable[RequestSample]) -> float:
    """Seconds of the run's clock that earlier parts took, counted as `measure` counts them."""
    ends = [sample.started_s + sample.total_s for sample in samples]
    return max(ends) + 1.0 if ends else 0.0
