"""One candidate that is up: measured shortly, given up when it is clearly beaten, else measured well.

The goal is one number a round, more is better, over all kinds of text by their geometric mean:

    latency      answer tokens by the whole time of a request, as a user feels it: reading, then writing
    throughput   answer tokens of all users by the time that the load was on
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import exp, fsum, log

from firesteel.bench.load.measure import (
    RunFinished,
    RunLimits,
    RunOrder,
    RunProgress,
    RunStarted,
    SampleTaken,
    measure,
)
from firesteel.bench.results.history import History
from firesteel.bench.tune.space import Goal
from firesteel.bench.values import BenchRun, Point, RequestSample


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is taken with one candidate."""

    short: RunLimits
    well: RunLimits

    @classmethod
    def within(cls, budget_s: float) -> Effort:
        """A short budget is not spent on the first candidate."""
        short_s, well_s = min(300.0, budget_s / 10), min(900.0, budget_s / 5)
        return cls(RunLimits(short_s, 0.02, 3, 3), RunLimits(well_s, 0.01, 5, 8))


@dataclass(frozen=True, slots=True)
class CandidateScore:
    run: BenchRun
    samples: tuple[RequestSample, ...]
    values: tuple[float, ...]
    """One a round."""
    was_beaten: bool = False


async def score(
    order: RunOrder,
    history: History,
    goal: Goal,
    counted: int,
    pains: Effort,
    is_beaten: Callable[[Sequence[float]], bool],
) -> AsyncIterator[RunProgress | CandidateScore]:
    """The last is Scored. `counted`: so many of the order's points make the goal, from the first on."""
    done: RunFinished | None = None
    for limits in (pains.short, pains.well):
        again = replace(order, limits=limits, kept=done.samples if done else ())
        async for event in measure(again):
            if isinstance(event, RunStarted) and done is None:
                history.begin(event.run)
            elif isinstance(event, SampleTaken):
                history.add(order.id, event.sample)
            elif isinstance(event, RunProgress):
                yield event
            elif isinstance(event, RunFinished):
                done = event
        assert done is not None  # the last event always is
        history.finish(done.run)
        values = rounds(done.samples, order.points[:counted], goal)
        beaten = is_beaten(values)
        if beaten or not values:
            break
    assert done is not None
    yield CandidateScore(done.run, done.samples, values, beaten)


def rounds(samples: Iterable[RequestSample], points: Sequence[Point], goal: Goal) -> tuple[float, ...]:
    """The goal, round by round; a round in which a point went wrong is left out."""
    by_point = [repetition_rates(samples, at, goal) for at in range(len(points))]
    common = set.intersection(*(set(rates) for rates in by_point)) if by_point else set()
    return tuple(_middle([rates[each] for rates in by_point]) for each in sorted(common))


def repetition_rates(samples: Iterable[RequestSample], point: int, goal: Goal) -> dict[int, float]:
    """By repetition, of warm visits in which nothing went wrong."""
    visits: dict[int, list[RequestSample]] = defaultdict(list)
    for each in samples:
        if each.point == point and not each.is_cold:
            visits[each.repetition].append(each)
    rates = {at: _rate(visit, goal) for at, visit in visits.items()}
    return {at: rate for at, rate in rates.items() if rate > 0}


def _rate(visit: Sequence[RequestSample], goal: Goal) -> float:
    """0: no figure can be made of it."""
    if any(each.wrong or not each.completion_tokens or each.total_s <= 0 for each in visit):
        return 0.0
    if goal == "latency":
        return _middle([(each.completion_tokens or 0) / each.total_s for each in visit])
    began = min(each.started_s for each in visit)
    took = max(each.started_s + each.total_s for each in visit) - began
    return sum(each.completion_tokens or 0 for each in visit) / took if took > 0 else 0.0


def _middle(rates: Sequence[float]) -> float:
    return exp(fsum(map(log, rates)) / len(rates))
