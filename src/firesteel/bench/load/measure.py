"""A run: every point visited in random order, again and again, until its figures are sure or the budget
ends.

    async for event in measure(order): ...

Rounds are shuffled by the seed, so that what drifts (clocks, heat, a neighbour) falls on all points alike.
The first visit of each point is cold and kept apart. A point is done when the intervals of decode and of
the first word are narrow enough, which is looked for from the sixth visit on: whoever looks after the third
stops where chance made them narrow. A point that gives nothing but wrong samples is given up. Where the
budget cannot give every point of `quick` three visits, it gives some points three and the others none, and
says which: one visit is no measurement. Each sample is
handed out as it is known, for whoever keeps it: the run may be cut off at any time, and goes on from the
samples that were kept.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, cast, get_args
from urllib.parse import urlsplit
from uuid import uuid4

from firesteel.bench.load.client import RequestTimeouts, TargetServer
from firesteel.bench.load.client_cost import Cost
from firesteel.bench.load.prepare import Prepared, prepare
from firesteel.bench.load.repetition import Repetition, SharedLoad, is_loop
from firesteel.bench.load.sampler import Counters, HostReading, Sampler, added, during, mean_watts, summary
from firesteel.bench.results.figures import PointContext, figures
from firesteel.bench.values import BenchRun, Point, PointFigures, RequestSample, RequestSettings, Subject
from firesteel.edge.files.history_keys import current_keys
from firesteel.launch import EngineName

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_GIVE_UP = 2
"""Visits with no good sample, one after the other."""
_SPARED = "quick"
"""The shape whose points nobody named one by one: some may be left out."""
_ENOUGH = 3
"""Warm visits, below which a point is not worth its time."""
_OVER = 0.25
"""Of the budget, how far beyond it visits that are begun may go."""
_ROUNDS = (3, 2)
"""Answers that each user of a loop has; fewer where the budget would not last."""


@dataclass(frozen=True, slots=True)
class RunLimits:
    budget_s: float = 120.0
    precision: float = 0.02
    """Half the width of an interval, as a share of its figure."""
    least_repetitions: int = 3
    most_repetitions: int = 100
    sure_from: int = 6
    """Warm visits from which on the precision is looked at."""


@dataclass(frozen=True, slots=True)
class RunOrder:
    """What to measure, and how."""

    subject: Subject
    points: tuple[Point, ...]
    settings: RequestSettings = field(default_factory=RequestSettings)
    limits: RunLimits = field(default_factory=RunLimits)
    key: str | None = field(default=None, repr=False)
    id: str = field(default_factory=lambda: uuid4().hex[:12])
    salt: str = ""
    """The same for two runs: the same prompts, for answers that are to be compared. Empty: the run's id."""
    requests: Mapping[str, Any] = field(default_factory=dict)
    """What else each request says."""
    kept: tuple[RequestSample, ...] = ()
    """Of the same run, cut off before."""
    notes: tuple[str, ...] = ()
    patience: RequestTimeouts | None = None
    """How long is too long; None: as the plan and the requests before say."""


@dataclass(frozen=True, slots=True)
class RunProgress:
    text: str
    left_s: float | None = None
    """At most, as far as is known."""


@dataclass(frozen=True, slots=True)
class RunStarted:
    run: BenchRun
    """Without figures: for whoever keeps it from the start."""


@dataclass(frozen=True, slots=True)
class SampleTaken:
    sample: RequestSample


@dataclass(frozen=True, slots=True)
class RunFinished:
    run: BenchRun
    samples: tuple[RequestSample, ...]


Event = RunProgress | RunStarted | SampleTaken | RunFinished


async def measure(order: RunOrder) -> AsyncIterator[Event]:
    """The last event is Measured. A server that fails is told by its samples; nothing is raised for it."""
    # `subject.py` names the plan's rates as an earlier version did; what is stored has the names of today.
    subject = replace(order.subject, plan=current_keys(order.subject.plan))
    order = replace(order, subject=subject)
    state = _State(order, list(order.kept))
    yield RunProgress("asking how it counts tokens")
    state.prepared = await prepare(
        order.subject,
        order.settings,
        [each.text for each in order.points],
        key=order.key,
        requests=order.requests,
    )
    yield RunStarted(state.run())
    with state.cost:
        async with state.sampler:
            while (at := state.next()) is not None:
                yield RunProgress(state.words(at), state.left_s)
                for sample in await state.visit(at):
                    yield SampleTaken(sample)
    yield RunFinished(state.run(), tuple(state.samples))


@dataclass(slots=True)
class _State:
    order: RunOrder
    samples: list[RequestSample]
    prepared: Prepared | None = None
    cost: Cost = field(default_factory=Cost)
    began: float = field(default_factory=time.perf_counter)
    began_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    todo: list[int] = field(default_factory=list)
    rounds: int = 0
    lost: dict[int, int] = field(default_factory=dict)
    """Visits in a row without a good sample."""
    windows: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    counted: dict[int, list[Counters]] = field(default_factory=dict)
    crowded: int = 0
    took_s: dict[int, list[float]] = field(default_factory=dict)
    """How long visits were, prompts and counting and all; the first is the cold one's."""
    loops: dict[int, int] = field(default_factory=dict)
    """Answers of each user in one visit."""
    dropped: set[int] = field(default_factory=set)
    sampler: Sampler = field(init=False)

    def __post_init__(self) -> None:
        subject = self.order.subject
        engine = cast(EngineName, subject.engine) if subject.engine in get_args(EngineName) else None
        is_here = urlsplit(subject.url).hostname in _LOOPBACK
        self.sampler = Sampler(subject.url, engine, self.order.key, is_here)
        if self.samples:  # this run's clock goes on where the last stretch of it ended
            self.began -= max(each.started_s + each.total_s for each in self.samples) + 1.0

    # --- what next ---

    @property
    def spent_s(self) -> float:
        return time.perf_counter() - self.began

    @property
    def left_s(self) -> float:
        return max(0.0, self.order.limits.budget_s - self.spent_s)

    def next(self) -> int | None:
        """Which point; None: all are sure, or the budget is spent."""
        self._drop()
        self.todo = [at for at in self.todo if at not in self.dropped]
        while not self.todo:
            open_ = [at for at in range(len(self.order.points)) if self._is_open(at)]
            if not open_:
                return None
            random.Random(f"{self.order.settings.seed}/{self.rounds}").shuffle(open_)
            if not self.rounds and any(self._is_spared(at) for at in open_):
                open_ = sorted(open_, key=self._worth, reverse=True)  # what may be left out comes last
            self.rounds += 1
            self.todo = open_
        at = self.todo.pop()
        return at if self.left_s > 0 or self._is_owed(at) else self.next() if self.todo else None

    # --- what the budget cannot give ---

    def _is_spared(self, at: int) -> bool:
        return self.order.points[at].shape == _SPARED

    def _worth(self, at: int) -> tuple[bool, bool, int, int]:
        """The less, the more it is worth: another kind of text goes first, then the crowd."""
        points = self.order.points
        return self._is_spared(at), points[at].text != points[0].text, points[at].users, at

    def _drop(self) -> None:
        """Which points can have their visits within the budget; the first always has what there is."""
        if not self.samples or not any(map(self._is_spared, range(len(self.order.points)))):
            return
        left = self.left_s
        for many, at in enumerate(sorted(range(len(self.order.points)), key=self._worth)):
            warm = max(0, self._visits(at) - 1)
            owed = self._cold_s(at) * (not self._visits(at)) + max(0, _ENOUGH - warm) * self._warm_s(at)
            if at in self.dropped or not self._is_spared(at):
                continue
            over = _OVER * self.order.limits.budget_s if warm else 0.0  # what has begun may end
            if many and warm < _ENOUGH and owed > left + over:
                self.dropped.add(at)
            else:
                left -= owed

    def _cold_s(self, at: int) -> float:
        """As it was, or as others of so many users were; a crowd takes longer than one."""
        if at in self.took_s:
            return self.took_s[at][0]
        points = self.order.points
        alike = [each[0] for of, each in self.took_s.items() if points[of].users == points[at].users]
        return min(alike or [each[0] for each in self.took_s.values()], default=0.0)

    def _warm_s(self, at: int) -> float:
        warm = self.took_s.get(at, [])[1:]
        loops = min(_ROUNDS) + 1 if is_loop(self.order.points[at]) else 1
        return sum(warm) / len(warm) if warm else self._cold_s(at) * loops

    def _rounds_of(self, at: int) -> int:
        """The same for all visits of a point: as the first of them found the budget."""
        most, least = _ROUNDS
        needed = _ENOUGH * (most + 1) * self._cold_s(at) * len(self.order.points)
        return (
            self.loops.setdefault(at, most if needed <= self.left_s else least) if at in self.took_s else most
        )

    def _is_owed(self, at: int) -> bool:
        """Each point gets one warm visit, though not at more than twice the budget. What was not dropped may
        end its visits a little after it."""
        budget, visits = self.order.limits.budget_s, self._visits(at)
        few = self._is_spared(at) and visits <= _ENOUGH and self.spent_s < (1 + _OVER) * budget
        return few or (visits < 2 and self.spent_s < 2 * budget)

    def _is_open(self, at: int) -> bool:
        limits, visits = self.order.limits, self._visits(at)
        if at in self.dropped:
            return False
        if self.left_s <= 0 and not self._is_owed(at):
            return False
        if self.lost.get(at, 0) >= _GIVE_UP or visits > limits.most_repetitions:
            return False
        return visits <= max(limits.least_repetitions, limits.sure_from) or not self._is_sure(at)

    def _visits(self, at: int) -> int:
        return len({each.repetition for each in self.samples if each.point == at})

    def _is_sure(self, at: int) -> bool:
        found = self.figures(at)
        known = [each for each in (found.decode_tokens_per_s, found.ttft_mean_ms) if each is not None]
        return bool(known) and all(each.half_width <= self.order.limits.precision for each in known)

    def words(self, at: int) -> str:
        point, visits = self.order.points[at], self._visits(at)
        users = f"{point.users} users" if point.users > 1 else "one user"
        found = self.figures(at).decode_tokens_per_s
        so_far = (
            f", decode {found.value:.1f} tok/s \u00b1{found.half_width:.0%}" if found and found.n > 1 else ""
        )
        many = "first visit" if not visits else f"visit {visits + 1}"
        return f"{point.shape}, {point.text}, {users}, {point.depth:,} tokens: {many}{so_far}"

    # --- doing it ---

    async def visit(self, at: int) -> list[RequestSample]:
        assert self.prepared is not None
        order, before = self.order, [each for each in self.samples if each.point == at]
        load = SharedLoad(
            TargetServer.at(order.subject.url, order.key), order.subject.model, self.prepared,
            order.salt or order.id, order.settings.seed, self.began,
            _low(order.subject.plan.get("prefill_tokens_per_s")), order.patience, _open_s(order),
            self._rounds_of(at),
        )  # fmt: skip
        began = time.perf_counter()
        repetition = 1 + max((each.repetition for each in before), default=-1)
        visit = Repetition(
            load,
            at,
            _first(order.points[at]) if not before else order.points[at],
            repetition,
            not before,
            before,
        )
        counted = await self.sampler.counters()
        found = await visit.run()
        self.windows.setdefault(at, []).append(visit.window)
        after = await self.sampler.counters()
        if counted and after and before:
            self.counted.setdefault(at, []).append(after.since(counted))
        self.samples += found
        self.took_s.setdefault(at, []).append(time.perf_counter() - began)
        self.crowded += visit.crowded
        is_lost = all(each.wrong for each in found)
        self.lost[at] = self.lost.get(at, 0) + 1 if is_lost else 0
        return found

    # --- what it came to ---

    def figures(self, at: int) -> PointFigures:
        own = [each for each in self.samples if each.point == at]
        return figures(self.order.points[at], own, self._around(at))

    def _around(self, at: int) -> PointContext:
        plan, seen = self.order.subject.plan, self._looks(at)
        told = added(self.counted.get(at, ()))
        used = [each.kv_usage for each in seen if each.kv_usage is not None]
        return PointContext(
            plan=plan,
            target=self.order.settings.target,
            watts=mean_watts(seen),
            accepted_per_step=told.accepted_per_step,
            cached_share=told.cached_share,
            kv_usage=max(used, default=None),
            preemptions=told.preemptions,
            drafts=bool(plan.get("drafts")) or bool(told.drafts),
            has_gpu=self.order.subject.host.get("gpus") not in ([], ()),
        )

    def _looks(self, at: int) -> Sequence[HostReading]:
        return during(self.sampler.looks, self.windows.get(at, []))

    def run(self) -> BenchRun:
        order = self.order
        every = tuple(self.figures(at) for at in range(len(order.points)))
        whole = all(not self._is_wanting(at) for at in range(len(order.points)))
        return BenchRun(
            id=order.id,
            began=self.began_at,
            subject=order.subject,
            settings=order.settings,
            points=order.points,
            figures=every if self.samples else (),
            is_whole=bool(self.samples) and whole,
            client=self.cost.told() if self.samples else {},
            beside={**summary(self.sampler.looks), "load_average": os.getloadavg()[0]},
            notes=(*order.notes, *(self.prepared.notes if self.prepared else ()), *self._notes()),
        )

    def _is_wanting(self, at: int) -> bool:
        """It was never visited when warm, and not because it gave nothing, or was left out."""
        return at not in self.dropped and self._visits(at) < 2 and self.lost.get(at, 0) < _GIVE_UP

    @property
    def _left_out(self) -> str:
        points = [self.order.points[at] for at in sorted(self.dropped)]
        words = (f"{each.text} with {each.users} user{'s' if each.users > 1 else ''}" for each in points)
        return f"{', '.join(words)} (a larger --budget measures them)"

    def _notes(self) -> list[str]:
        told = self.cost.told() if self.samples else {}
        lag = told.get("p99_lag_ms", 0.0)
        found = []
        if lag > 1.0:
            found.append(f"the client itself ran up to {lag:.1f} ms late (p99): this machine was busy")
        if self.crowded:
            found.append(f"{self.crowded} requests had to wait for room, which their figures count")
        if self.dropped:
            why = f"{_ENOUGH} visits of each would not fit the budget"
            found.append(f"left out or cut short, since {why}: {self._left_out}")
        given = [at for at, many in self.lost.items() if many >= _GIVE_UP]
        if given:
            found.append(f"{len(given)} of {len(self.order.points)} points gave nothing but wrong answers")
        return found


def _first(point: Point) -> Point:
    """The cold visit of an open loop is one request: what arrives after it would not be cold."""
    return replace(point, rate_per_s=None, users=1) if point.rate_per_s is not None else point


def _open_s(order: RunOrder) -> float:
    """So that each point can be visited four times within the budget."""
    return min(20.0, max(1.0, order.limits.budget_s / 4 / len(order.points)))


def _low(band: object) -> float | None:
    return float(band["low"]) if isinstance(band, Mapping) and "low" in band else None
