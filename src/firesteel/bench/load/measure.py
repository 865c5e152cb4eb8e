"""A run: measure every point in random order, again and again, until its figures are precise or the budget
ends.

    async for event in measure_recorded(make_order(server), history, home): ...

`Schedule` chooses the next point, `Repetition` applies its load. The first repetition of each point is cold
and does not count. Every sample is yielded and stored as soon as it is known, so a run that is interrupted
continues from the samples that were stored.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, cast, get_args
from urllib.parse import urlsplit
from uuid import uuid4

from msgspec import field

from firesteel.bench.load.client import ClientCost, RequestTimeouts, TargetServer, late_text
from firesteel.bench.load.contention import watch_contention
from firesteel.bench.load.find import LoadSearch
from firesteel.bench.load.prompts import OwnPrompts, Prompt, choose_prompts
from firesteel.bench.load.repetition import Repetition, SharedLoad, gather_limited
from firesteel.bench.load.sampler import (
    Counters,
    HostReading,
    Sampler,
    mean_watts,
    readings_within,
    sum_counters,
    summarize,
)
from firesteel.bench.load.schedule import (
    ENOUGH,
    OVERTIME,
    RunLimits,
    Schedule,
    Sizes,
    budget_text,
    describe_users,
    fit_context,
    points,
)
from firesteel.bench.load.server import FoundSubject, Prepared, of_service, of_url, prepare
from firesteel.bench.measurements import (
    BenchRun,
    Point,
    PointContext,
    PointFigures,
    RequestSample,
    RequestSettings,
    Subject,
)
from firesteel.bench.results.figures import figures
from firesteel.bench.results.history import History, new_run_id
from firesteel.edge.home import Home
from firesteel.edge.http.engine_client import is_healthy
from firesteel.errors import FiresteelError, HostNotReady, ServerNotReady, UsageError
from firesteel.facts.host.host_facts import HostFacts
from firesteel.facts.host.probe import Probe, Section
from firesteel.launch import EngineName
from firesteel.planner.memory.measured import launch_key
from firesteel.planner.plan import Plan
from firesteel.rules.host.findings import judge
from firesteel.run.endpoints import base_url, running_service
from firesteel.run.service import Service, api_key
from firesteel.run.verify.expected import stored_expected
from firesteel.units import show_seconds
from firesteel.values import Value, replace
from firesteel.workspace import Workspace

_POINTS_OF_SEARCH = 4
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class RunOrder(Value):
    """What to measure, and how."""

    subject: Subject
    points: tuple[Point, ...]
    settings: RequestSettings = field(default_factory=RequestSettings)
    limits: RunLimits = field(default_factory=RunLimits)
    key: str | None = None
    id: str = field(default_factory=lambda: uuid4().hex[:12])
    salt: str = ""
    """Two runs with the same salt get the same prompts, so that answers can be compared. Empty: the run's
    id."""
    requests: Mapping[str, Any] = {}
    """More fields for every request."""
    earlier_samples: tuple[RequestSample, ...] = ()
    """Of the same run, before it was interrupted."""
    notes: tuple[str, ...] = ()
    timeouts: RequestTimeouts | None = None
    """None: derived from the plan and from earlier samples."""
    own: OwnPrompts | None = None
    """Prompts of the user's own; None: they are generated."""
    context: int | None = None
    """Tokens that the server serves; longer prompts of the user's own are left out."""
    is_search: bool = False
    """Find the highest load that holds `settings.target`, beginning with the one point."""

    def __repr__(self) -> str:
        return f"RunOrder({self.id!r})"  # not the key: a traceback may be pasted somewhere


class RunProgress(Value):
    text: str
    left_s: float | None = None
    """At most, as far as is known."""


class RunStarted(Value):
    run: BenchRun
    """Without figures, so that it can be stored from the start. A search repeats it with each new point."""


class SampleTaken(Value):
    sample: RequestSample


class RunFinished(Value):
    run: BenchRun
    samples: tuple[RequestSample, ...]
    too_short: str = ""
    """Why the budget did not allow a single figure. Empty: there are figures, or the server failed."""
    wanted_s: float = 0.0
    """A budget that would do, where it was too short."""


Event = RunProgress | RunStarted | SampleTaken | RunFinished


async def measure(order: RunOrder) -> AsyncIterator[Event]:
    """The last event is RunFinished. A failing server shows in its samples; only one that does not answer at
    all within the budget raises an error.

    The budget covers everything but the time between two events, in which another run may have its turn.
    """
    state = _RunState(order)
    async with aclosing(state.events()) as events:  # type: ignore[type-var]  # it is a generator
        async for event in events:
            paused = time.perf_counter()
            yield event
            state.began += time.perf_counter() - paused


class _RunState:
    prepared: Prepared
    sampler: Sampler
    """Both are there once the server has answered."""

    def __init__(self, order: RunOrder) -> None:
        self.order = order
        self.began = time.perf_counter()
        """Later after each pause, and earlier for a run that is resumed: its clock continues."""
        self.began_at = datetime.now(UTC).isoformat(timespec="seconds")
        self.samples = list(order.earlier_samples)
        self.cost = ClientCost()
        self.windows: dict[int, list[tuple[float, float]]] = {}
        """By point, when its load was applied."""
        self.counters: dict[int, list[Counters]] = {}
        """By point, the engine's counters over each repetition."""
        self.queued = 0
        self.own: tuple[Prompt, ...] = ()
        self.was_cut_off = False
        before_s = 0.0 if order.is_search else _elapsed_s(order.earlier_samples)
        self.began -= before_s
        self.most_s = order.limits.budget_s + OVERTIME * (order.limits.budget_s - before_s)
        self.schedule = self._plan_points()

    async def events(self) -> AsyncIterator[Event]:
        order, subject = self.order, self.order.subject
        engine = cast(EngineName, subject.engine) if subject.engine in get_args(EngineName) else None
        is_here = urlsplit(subject.url).hostname in _LOOPBACK
        async with Sampler(subject.url, engine, order.key, is_here) as self.sampler:
            await self.sampler.wait_ready()  # its start would disturb the first measurements
            yield RunProgress("asking how the server counts tokens")
            await self._prepare()
            if order.own:
                yield RunProgress("counting the tokens of your prompts")
                await self._choose_prompts(order.own)
            yield RunStarted(self.run())
            with self.cost:
                while (index := self.schedule.next(self.spent_s)) is not None:
                    if self._add_points():
                        yield RunStarted(replace(self.run(), figures=()))
                    yield RunProgress(self.progress_text(index), self.schedule.left_s)
                    for sample in await self._repeat_in_time(index):
                        yield SampleTaken(sample)
            yield RunFinished(self.run(), tuple(self.samples), self._too_short(), self.schedule.wanted_s)

    async def _prepare(self) -> None:
        order, texts = self.order, [point.text for point in self.order.points]
        try:
            async with asyncio.timeout(self.most_s - self.spent_s):
                self.prepared = await prepare(
                    order.subject, order.settings, texts, key=order.key, requests=order.requests
                )
        except TimeoutError:
            raise ServerNotReady(
                f"{order.subject.url} did not answer a few tiny requests in {show_seconds(self.spent_s)}",
                next="a larger --budget, or firesteel ps",
            ) from None

    def _plan_points(self) -> Schedule | LoadSearch:
        order = self.order
        if order.is_search:
            (point,), budget_s = order.points, order.limits.budget_s
            return LoadSearch([point], order.settings.target, budget_s, self._samples)
        repetitions = [len({s.repetition for s in self._samples(i)}) for i in range(len(order.points))]
        return Schedule(order.points, order.limits, order.settings.seed, self._is_precise, repetitions)

    async def _choose_prompts(self, own: OwnPrompts) -> None:
        order, prepared = self.order, self.prepared
        (count,) = {writer.count for writer in prepared.writers.values()}
        answer = max(point.answer_tokens for point in order.points)
        most = order.context - answer - (prepared.template_tokens or 0) - 1 if order.context else None
        seed = order.settings.seed
        self.own, notes = await choose_prompts(own, seed, count, most, gather_limited)
        self.prepared = replace(prepared, notes=(*prepared.notes, *notes))

    def _add_points(self) -> bool:
        """Whether a search has new points."""
        is_new = len(self.schedule.points) > len(self.order.points)
        if is_new:
            self.order = replace(self.order, points=tuple(self.schedule.points))
        return is_new

    @property
    def spent_s(self) -> float:
        return time.perf_counter() - self.began

    def _samples(self, index: int) -> list[RequestSample]:
        return [sample for sample in self.samples if sample.point == index]

    def _is_precise(self, index: int) -> bool:
        found = self.figures(index)
        known = [f for f in (found.decode_tokens_per_s, found.ttft_mean_ms) if f is not None]
        return bool(known) and all(figure.half_width <= self.order.limits.precision for figure in known)

    def progress_text(self, index: int) -> str:
        point, repetitions = self.order.points[index], self.schedule.repetitions[index]
        users = f"{point.users} users" if point.users > 1 else "one user"
        users = users if point.rate_per_s is None else f"{point.rate_per_s:g} requests/s"
        decode = self.figures(index).decode_tokens_per_s
        so_far = ""
        if decode and decode.n > 1:
            so_far = f", decode {decode.value:.1f} tok/s \u00b1{decode.half_width:.0%}"
        load = f"{point.shape}, {point.text_label}, {users}, {point.depth:,} tokens"
        return f"{load}: repetition {repetitions + 1}{so_far}"

    # --- one repetition ---

    async def _repeat_in_time(self, index: int) -> list[RequestSample]:
        """Nothing, if it does not end in the time there is: half a repetition has no figures."""
        try:
            async with asyncio.timeout(self.most_s - self.spent_s):
                return await self._repeat(index)
        except TimeoutError:
            self.was_cut_off = True
            return []

    async def _repeat(self, index: int) -> list[RequestSample]:
        earlier, began = self._samples(index), time.perf_counter()
        point, is_cold = self.order.points[index], not earlier
        if is_cold and point.rate_per_s is not None:  # in an open loop, only the first request is cold
            point = replace(point, rate_per_s=None, users=1)
        number = 1 + max((sample.repetition for sample in earlier), default=-1)
        repetition = Repetition(self._load(index), index, point, number, is_cold, earlier)
        before = await self.sampler.counters()
        samples = await repetition.run()
        after = await self.sampler.counters()
        self.windows.setdefault(index, []).append(repetition.window)
        if before and after and not is_cold:
            self.counters.setdefault(index, []).append(after.since(before))
        self.samples += samples
        self.queued += repetition.queued
        has_good_sample = not all(sample.wrong for sample in samples)
        self.schedule.record(index, time.perf_counter() - began, has_good_sample=has_good_sample)
        return samples

    def _load(self, index: int) -> SharedLoad:
        order = self.order
        planned = order.subject.plan.get("prefill_tokens_per_s")
        slowest = float(planned["low"]) if isinstance(planned, Mapping) and "low" in planned else None
        # Each point of an open loop should fit into the budget four times, and a search has several.
        points = _POINTS_OF_SEARCH if order.is_search else len(order.points)
        open_s = min(20.0, max(1.0, order.limits.budget_s / 4 / points))
        return SharedLoad(
            TargetServer.at(order.subject.url, order.key), order.subject.model, self.prepared, self.cost,
            order.salt or order.id, order.settings.seed, self.began, slowest, order.timeouts, open_s,
            self.schedule.rounds(index), self.own,
        )  # fmt: skip

    # --- results ---

    def figures(self, index: int) -> PointFigures:
        return figures(self.order.points[index], self._samples(index), self._context(index))

    def _context(self, index: int) -> PointContext:
        readings = readings_within(self.sampler.readings, self.windows.get(index, []))
        counters = sum_counters(self.counters.get(index, ()))
        kv_usage = [reading.kv_usage for reading in readings if reading.kv_usage is not None]
        context = PointContext.of(self.order.subject, self.order.settings)
        return replace(
            context,
            watts=mean_watts(readings),
            accepted_per_step=counters.accepted_per_step,
            cached_share=counters.cached_share,
            kv_usage=max(kv_usage, default=None),
            preemptions=counters.preemptions,
            drafts=context.drafts or bool(counters.drafts),
        )

    def run(self) -> BenchRun:
        order, indices = self.order, range(len(self.order.points))
        has_samples = bool(self.samples)
        return BenchRun(
            id=order.id,
            began=self.began_at,
            subject=order.subject,
            settings=order.settings,
            points=order.points,
            figures=tuple(map(self.figures, indices)) if has_samples else (),
            is_whole=has_samples and not any(map(self.schedule.is_missing, indices)),
            client=self.cost.summary() if has_samples else {},
            beside={**summarize(self.sampler.readings), "load_average": os.getloadavg()[0]},
            notes=(*order.notes, *self.prepared.notes, *self._notes()),
            found=self.schedule.results() if has_samples and isinstance(self.schedule, LoadSearch) else (),
        )

    def _notes(self) -> Iterator[str]:
        points, schedule = self.order.points, self.schedule
        if late := late_text(self.cost.summary()):
            yield late
        yield from throttle_notes(self.sampler.readings, self.order.subject.host.get("gpus", ()))
        if self.queued:
            yield f"{self.queued} requests had to wait for a free slot; their figures include the wait"
        sent = len(self.samples)
        if self.own and sent > len(self.own):
            often = f"{len(self.own)} prompts were sent {sent} times in all"
            yield f"{often}: a prefix cache answers repeated ones faster"
        if schedule.dropped:
            names = [describe_users(points[index]) for index in sorted(schedule.dropped)]
            yield (
                f"left out or cut short, since {ENOUGH} repetitions of each do not fit into the budget: "
                f"{', '.join(names)} (a larger --budget measures them)"
            )
        if isinstance(schedule, Schedule) and (missing := schedule.missing_note()):
            yield missing
        elif self.was_cut_off:
            yield "the last repetition was cut off at the end of the budget and does not count"
        if given_up := schedule.given_up():
            yield f"{len(given_up)} of {len(points)} points gave nothing but wrong answers"

    def _too_short(self) -> str:
        """As in `RunFinished`."""
        if any(not sample.is_cold or sample.wrong for sample in self.samples):
            return ""
        budget = show_seconds(self.order.limits.budget_s)
        return f"a budget of {budget} is too short to measure anything here. {self.schedule.why_missing}"


# --- was the GPU throttled? ---

_THROTTLE_CHECKS = ("clock-under-load", "heat")


def throttle_notes(readings: Sequence[HostReading], gpus: Sequence[str]) -> tuple[str, ...]:
    """For a run on a GB10; on other GPUs only a slowdown by the hardware is known to be one."""
    if not gpus or not readings:
        return ()
    rows = "\n".join(_smi_row(gpus[0].partition(",")[0], reading) for reading in readings)
    findings = judge(HostFacts.of(Probe({"gpu": Section(rows)})), _THROTTLE_CHECKS)
    return tuple(
        f"the GPU was throttled ({finding.check}): {finding.says}; {finding.do}"
        for finding in findings
        if finding.level in ("stop", "warn")
    )


def _smi_row(name: str, reading: HostReading) -> str:
    """As nvidia-smi would print it."""
    cells = (
        name, "", "", "[N/A]", reading.temperature_c, reading.power_w, reading.clock_mhz, "",
        reading.use_percent, "", None if reading.reasons is None else f"0x{int(reading.reasons):x}",
    )  # fmt: skip
    return ", ".join("[N/A]" if cell is None else f"{cell}" for cell in cells)


# --- a run that is stored while it is made ---

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
    """The last event is RunFinished; its run is in the history. Raises an error if the budget was too short
    for a single figure; the run can be resumed then."""
    # The limits are kept so that the run can be resumed; of a resumed run, those of this part.
    budget_s = order.limits.budget_s - _elapsed_s(order.earlier_samples)
    limits = {"budget_s": budget_s, "precision": order.limits.precision}
    with watch_contention(home, order.subject.url, order.id) as others:
        async for event in measure(order):
            if isinstance(event, RunStarted | RunFinished):
                notes = (*event.run.notes, *others())
                event = replace(event, run=replace(event.run, notes=notes, limits=limits))
            record(history, order.id, event)
            if isinstance(event, RunFinished) and event.too_short:
                again = f"firesteel bench --resume {order.id} --budget {budget_text(event.wanted_s)}"
                raise FiresteelError(event.too_short, next=again)
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


def _elapsed_s(samples: Iterable[RequestSample]) -> float:
    """Seconds of the run's clock that earlier parts took, counted as `measure` counts them."""
    ends = [sample.started_s + sample.total_s for sample in samples]
    return max(ends) + 1.0 if ends else 0.0
