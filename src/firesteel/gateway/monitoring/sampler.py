"""Takes a sample of everything every five seconds, writes it, and keeps the last minutes for the verdicts.

    sampler = CurveSampler(store, meter.totals, executor.views, dispatcher.engine_metrics)
    sampler.start()
    sampler.recent("coder") -> RecentActivity     what `health_sentence` judges

Counters are compared with those of the last sample; nothing is measured on the path of a request. A stream's
tokens are counted by the meter when it ends, but a curve should move while it runs: the pieces that arrived
are counted, times the tokens that a piece had in the streams that have ended.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from msgspec.structs import astuple

from firesteel.edge.host.memory import meminfo
from firesteel.edge.host.nvidia_smi import read_gpu
from firesteel.engines.metrics import Activity, activity
from firesteel.errors import HostNotReady
from firesteel.facts.host.gpus import GpuReading
from firesteel.gateway.admin.meter import NOTHING_SEEN, ModelTotals, Seen
from firesteel.gateway.executor import ModelView
from firesteel.gateway.monitoring.store import SAMPLE_S, Counts, CurveRow, CurveStore, added, least_and_most
from firesteel.gateway.periodic import BackgroundTasks, repeat
from firesteel.launch import EngineName
from firesteel.values import Value, replace

RECENT_S = 300
"""What a verdict is based on."""
_GPU_EVERY = 3
"""Samples between two readings of the GPU: `nvidia-smi` takes tens of milliseconds of CPU."""
_GPU_RETRY = 60
_MAX_TOKENS_PER_PIECE = 64.0
_PREFIXES: Mapping[str, EngineName] = {"vllm:": "vllm", "sglang:": "sglang", "llamacpp:": "llamacpp"}
_NONE = ModelTotals((), (), 0.0, (), (), 0, 0, 0, 0)


class ModelSample(Value):
    """What happened to one model between two samples."""

    seconds: float
    totals: ModelTotals
    """The differences."""
    tokens: float
    busy: int
    engine: Activity
    """As of now."""
    drafted: int = 0
    accepted: int = 0
    preempted: int = 0


class RecentActivity(Value):
    """The last minutes of one model, added up."""

    seconds: float = 0.0
    busy_s: float = 0.0
    """While it served at least one request."""
    tokens: float = 0.0
    pieces: int = 0
    gaps: Counts = ()
    gaps_s: float = 0.0
    unqueued_firsts: Counts = ()
    cached_firsts: Counts = ()
    requests: int = 0
    broke: int = 0
    drafted: int = 0
    accepted: int = 0
    preempted: int = 0
    kv_used: float | None = None
    """Now."""
    tokens_per_s: float | None = None
    """In the last sample."""
    unqueued_most_s: float | None = None
    """The largest of `unqueued_firsts`; None: not known."""

    @property
    def acceptance(self) -> float | None:
        return self.accepted / self.drafted if self.drafted else None


class CurveSampler:
    def __init__(
        self,
        store: CurveStore,
        totals: Callable[[], Mapping[str, ModelTotals]],
        views: Callable[[], Iterable[ModelView]],
        engine_metrics: Callable[[], Awaitable[Mapping[str, str]]],
        *,
        gpu: Callable[[], GpuReading | None] = read_gpu,
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        notify: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`notify` gets problems with the store, for the operator."""
        self.store, self._read_totals, self._views = store, totals, views
        self._engine_metrics, self._read_gpu = engine_metrics, gpu
        self._wall_clock, self._clock, self._notify = wall_clock, clock, notify
        self.gpu: GpuReading | None = None
        self._gpu_in = 0
        self._at_s: float | None = None
        self._totals: Mapping[str, ModelTotals] = {}
        self._engines: dict[str, Activity] = {}
        self._samples: dict[str, deque[ModelSample]] = {}
        self._recent: dict[str, RecentActivity] = {}
        self._tasks = BackgroundTasks()

    def start(self) -> None:
        self._tasks.start(repeat(self.sample, lambda: pause_s(self._wall_clock())))

    async def close(self) -> None:
        await self._tasks.close()
        await asyncio.to_thread(self.store.close)

    def recent(self, model: str) -> RecentActivity:
        """Added up once a sample: pages and terminals ask every second."""
        found = self._recent.get(model)
        if found is None:
            found = self._recent[model] = _recent(self._samples.get(model, ()))
        return found

    async def sample(self) -> None:
        pages: Mapping[str, str] = {}
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(SAMPLE_S * 0.6):
                pages = await self._engine_metrics()
        self._gpu_in -= 1
        if self._gpu_in <= 0:
            self.gpu = await asyncio.to_thread(self._read_gpu)
            self._gpu_in = _GPU_EVERY if self.gpu else _GPU_RETRY
        activities = await asyncio.to_thread(
            lambda: {name: page_activity(page) for name, page in pages.items()}
        )
        now, at_s = self._wall_clock(), self._clock()
        # A sample belongs to the step that it ends.
        start = round(now / SAMPLE_S) * SAMPLE_S - SAMPLE_S
        seconds = min(at_s - self._at_s, 10.0 * SAMPLE_S) if self._at_s is not None else 0.0
        rows = self._take(activities, start, seconds)
        self._at_s = at_s
        if seconds > 0:
            problem = await asyncio.to_thread(self.store.add, rows, now)
            if problem:
                self._notify(problem)

    def _take(self, activities: Mapping[str, Activity], start: int, seconds: float) -> list[CurveRow]:
        """On the loop, at one moment."""
        totals, rows = self._read_totals(), []
        for view in self._views():
            name, status = view.config.name, view.status
            sample = self._model_sample(view, totals.get(name, _NONE), activities.get(name), seconds)
            samples = self._samples.setdefault(name, deque(maxlen=RECENT_S // SAMPLE_S))
            if seconds > 0:
                samples.append(sample)
            is_there = status is not None and (status.phase != "off" or status.waiting or sample.tokens)
            if is_there and status is not None:
                rows.append(
                    CurveRow(
                        name, start, seconds, sample.tokens, sample.totals.firsts, sample.totals.gaps,
                        float(status.waiting), sample.engine.kv_usage,
                        float(status.bytes) if status.phase != "off" and status.bytes else None, None,
                        *_known(sample.totals.first_seen), *_known(sample.totals.gap_seen),
                    )
                )  # fmt: skip
        self._totals = totals
        self._recent.clear()
        self._engines = dict(activities)
        for gone in self._samples.keys() - {view.config.name for view in self._views()}:
            del self._samples[gone]
        return [*rows, self._machine(rows, start, seconds)]

    def _model_sample(
        self, view: ModelView, totals: ModelTotals, engine: Activity | None, seconds: float
    ) -> ModelSample:
        name = view.config.name
        before_totals = self._totals.get(name, _NONE)
        difference = replace(
            ModelTotals(*map(_less, astuple(totals), astuple(before_totals))),
            first_seen=totals.first_seen, gap_seen=totals.gap_seen, unqueued_most_s=totals.unqueued_most_s,
        )  # fmt: skip
        engine, before = engine or Activity(), self._engines.get(name, Activity())
        whole = difference.completion_tokens - difference.stream_tokens
        return ModelSample(
            seconds,
            difference,
            whole + _pieces(difference) * _tokens_per_piece(totals),
            view.status.busy if view.status else 0,
            engine,
            _increase(engine.draft_tokens, before.draft_tokens),
            _increase(engine.accepted_tokens, before.accepted_tokens),
            _increase(engine.preemptions, before.preemptions),
        )

    def _machine(self, rows: list[CurveRow], start: int, seconds: float) -> CurveRow:
        try:
            memory = meminfo()
            used: float | None = float(memory.total_bytes - memory.available_bytes)
        except HostNotReady:
            used = None
        return CurveRow(
            "",
            start,
            seconds,
            sum(row.tokens for row in rows),
            added(row.firsts for row in rows),
            added(row.gaps for row in rows),
            sum(row.queue or 0.0 for row in rows),
            None,
            used,
            self.gpu.power_w if self.gpu else None,
            *least_and_most((row.first_least, row.first_most) for row in rows),
            *least_and_most((row.gap_least, row.gap_most) for row in rows),
        )


def pause_s(now: float) -> float:
    """Until the next full step, so that each has exactly one sample. A timer may go off a moment early: what
    is left of a step then is not a step, and a second sample of it would replace the first."""
    left_s = SAMPLE_S - now % SAMPLE_S
    return left_s if left_s > SAMPLE_S / 10 else left_s + SAMPLE_S


def page_activity(page: str) -> Activity:
    """Of any engine that we know: an outside server does not say which it is."""
    engine = next((engine for prefix, engine in _PREFIXES.items() if f"\n{prefix}" in f"\n{page}"), None)
    return activity(engine, page) if engine else Activity()


def _less(now: Any, before: Any) -> Any:
    """Of a count, or of counts."""
    if not isinstance(now, tuple):
        return now - before
    return tuple(a - b for a, b in zip(now, before, strict=True)) if before else now


def _known(seen: Seen) -> tuple[float | None, float | None]:
    return seen if seen != NOTHING_SEEN else (None, None)


def _pieces(totals: ModelTotals) -> int:
    return sum(totals.firsts) + sum(totals.gaps)


def _tokens_per_piece(totals: ModelTotals) -> float:
    """Engines send one token in a piece, or several with speculation; under load pieces arrive together.
    Streams that have not ended make it too low, so it is never below 1."""
    pieces = _pieces(totals)
    return min(max(1.0, totals.stream_tokens / pieces), _MAX_TOKENS_PER_PIECE) if pieces else 1.0


def _increase(now: int | None, before: int | None) -> int:
    """Of a counter that starts again with its engine."""
    return 0 if now is None or before is None or now < before else now - before


def _recent(samples: Iterable[ModelSample]) -> RecentActivity:
    rows = list(samples)
    if not rows:
        return RecentActivity()
    last = rows[-1]
    return RecentActivity(
        sum(row.seconds for row in rows),
        sum(row.seconds for row in rows if row.busy),
        sum(row.tokens for row in rows),
        sum(_pieces(row.totals) for row in rows),
        added(row.totals.gaps for row in rows),
        sum(row.totals.gaps_s for row in rows),
        added(row.totals.unqueued_firsts for row in rows),
        added(row.totals.cached_firsts for row in rows),
        sum(row.totals.requests for row in rows),
        sum(row.totals.broke for row in rows),
        sum(row.drafted for row in rows),
        sum(row.accepted for row in rows),
        sum(row.preempted for row in rows),
        last.engine.kv_usage,
        last.tokens / last.seconds if last.seconds else None,
        max(row.totals.unqueued_most_s for row in rows) or None,
    )
