"""A run: measure every point in random order, again and again, until its figures are precise or the budget
ends.

    async for event in measure(order): ...

`Schedule` chooses the next point, `Repetition` applies its load. The first repetition of each point is cold
and does not count. Every sample is yielded as soon as it is known, so that the caller can store it: a run
that is interrupted continues from the samples that were stored.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, cast, get_args
from urllib.parse import urlsplit
from uuid import uuid4

from msgspec import field

from firesteel.bench.load.client import RequestTimeouts, TargetServer
from firesteel.bench.load.client_cost import ClientCost, late_text
from firesteel.bench.load.find import LoadSearch
from firesteel.bench.load.own_prompts import OwnPrompts, choose_prompts
from firesteel.bench.load.prepare import Prepared, prepare
from firesteel.bench.load.prompts import Prompt
from firesteel.bench.load.repetition import Repetition, SharedLoad, gather_limited
from firesteel.bench.load.sampler import (
    Counters,
    Sampler,
    mean_watts,
    readings_within,
    sum_counters,
    summarize,
)
from firesteel.bench.load.schedule import ENOUGH, RunLimits, Schedule, describe_users
from firesteel.bench.load.throttle import throttle_notes
from firesteel.bench.results.context import PointContext
from firesteel.bench.results.figures import figures
from firesteel.bench.values import BenchRun, Point, PointFigures, RequestSample, RequestSettings, Subject
from firesteel.launch import EngineName
from firesteel.values import Value, replace

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


Event = RunProgress | RunStarted | SampleTaken | RunFinished


async def measure(order: RunOrder) -> AsyncIterator[Event]:
    """The last event is RunFinished. A failing server shows in its samples; nothing is raised for it."""
    async with _sampler(order) as sampler:
        await sampler.wait_ready()  # its start would take time from the first measurements
        async with aclosing(_measure(order, sampler)) as events:  # a caller may leave early
            async for event in events:
                yield event


def _sampler(order: RunOrder) -> Sampler:
    subject = order.subject
    engine = cast(EngineName, subject.engine) if subject.engine in get_args(EngineName) else None
    return Sampler(subject.url, engine, order.key, urlsplit(subject.url).hostname in _LOOPBACK)


async def _measure(order: RunOrder, sampler: Sampler) -> AsyncGenerator[Event]:
    began, began_at = time.perf_counter(), datetime.now(UTC).isoformat(timespec="seconds")
    yield RunProgress("asking how the server counts tokens")
    prepared = await prepare(
        order.subject,
        order.settings,
        [point.text for point in order.points],
        key=order.key,
        requests=order.requests,
    )
    state = _RunState(order, prepared, sampler, began, began_at)
    if order.own:
        yield RunProgress("counting the tokens of your prompts")
        await state.choose_prompts(order.own)
    yield RunStarted(state.run())
    with state.cost:
        while (index := state.schedule.next(state.spent_s)) is not None:
            if state.add_points():
                yield RunStarted(replace(state.run(), figures=()))
            yield RunProgress(state.progress_text(index), state.schedule.left_s)
            for sample in await state.repeat(index):
                yield SampleTaken(sample)
    yield RunFinished(state.run(), tuple(state.samples))


class _RunState:
    def __init__(
        self, order: RunOrder, prepared: Prepared, sampler: Sampler, began: float, began_at: str
    ) -> None:
        self.order = order
        self.prepared = prepared
        self.sampler = sampler
        self.began = began
        self.began_at = began_at
        self.samples = list(order.earlier_samples)
        self.cost = ClientCost()
        self.windows: dict[int, list[tuple[float, float]]] = {}
        """By point, when its load was applied."""
        self.counters: dict[int, list[Counters]] = {}
        """By point, the engine's counters over each repetition."""
        self.queued = 0
        self.own: tuple[Prompt, ...] = ()
        self.schedule = self._plan_points()
        if self.samples and not order.is_search:  # a resumed run's clock continues where it was interrupted
            self.began -= max(sample.started_s + sample.total_s for sample in self.samples) + 1.0

    def _plan_points(self) -> Schedule | LoadSearch:
        order = self.order
        if order.is_search:
            (point,), budget_s = order.points, order.limits.budget_s
            return LoadSearch([point], order.settings.target, budget_s, self._samples)
        repetitions = [len({s.repetition for s in self._samples(i)}) for i in range(len(order.points))]
        return Schedule(order.points, order.limits, order.settings.seed, self._is_precise, repetitions)

    async def choose_prompts(self, own: OwnPrompts) -> None:
        order, prepared = self.order, self.prepared
        (count,) = {writer.count for writer in prepared.writers.values()}
        answer = max(point.answer_tokens for point in order.points)
        most = order.context - answer - (prepared.template_tokens or 0) - 1 if order.context else None
        seed = order.settings.seed
        self.own, notes = await choose_prompts(own, seed, count, most, gather_limited)
        self.prepared = replace(prepared, notes=(*prepared.notes, *notes))

    def add_points(self) -> bool:
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

    async def repeat(self, index: int) -> list[RequestSample]:
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
        if given_up := schedule.given_up():
            yield f"{len(given_up)} of {len(points)} points gave nothing but wrong answers"
