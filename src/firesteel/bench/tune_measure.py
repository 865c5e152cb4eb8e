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

from firesteel.bench.measure import Began, Limits, Measured, Order, Progress, Took, measure
from firesteel.bench.space import Goal
from firesteel.bench.store import History
from firesteel.bench.values import Point, Run, Sample


@dataclass(frozen=True, slots=True)
class Pains:
    """How much is taken with one candidate."""

    short: Limits
    well: Limits

    @classmethod
    def within(cls, budget_s: float) -> Pains:
        """A short budget is not spent on the first candidate."""
        short_s, well_s = min(300.0, budget_s / 10), min(900.0, budget_s / 5)
        return cls(Limits(short_s, 0.02, 3, 3), Limits(well_s, 0.01, 5, 8))


@dataclass(frozen=True, slots=True)
class Scored:
    run: Run
    samples: tuple[Sample, ...]
    values: tuple[float, ...]
    """One a round."""
    was_beaten: bool = False


async def scored(
    order: Order,
    history: History,
    goal: Goal,
    counted: int,
    pains: Pains,
    is_beaten: Callable[[Sequence[float]], bool],
) -> AsyncIterator[Progress | Scored]:
    """The last is Scored. `counted`: so many of the order's points make the goal, from the first on."""
    done: Measured | None = None
    for limits in (pains.short, pains.well):
        again = replace(order, limits=limits, kept=done.samples if done else ())
        async for event in measure(again):
            if isinstance(event, Began) and done is None:
                history.begin(event.run)
            elif isinstance(event, Took):
                history.add(order.id, event.sample)
            elif isinstance(event, Progress):
                yield event
            elif isinstance(event, Measured):
                done = event
        assert done is not None  # the last event always is
        history.finish(done.run)
        values = rounds(done.samples, order.points[:counted], goal)
        beaten = is_beaten(values)
        if beaten or not values:
            break
    assert done is not None
    yield Scored(done.run, done.samples, values, beaten)


def rounds(samples: Iterable[Sample], points: Sequence[Point], goal: Goal) -> tuple[float, ...]:
    """The goal, round by round; a round in which a point went wrong is left out."""
    by_point = [visit_rates(samples, at, goal) for at in range(len(points))]
    common = set.intersection(*(set(rates) for rates in by_point)) if by_point else set()
    return tuple(_middle([rates[each] for rates in by_point]) for each in sorted(common))


def visit_rates(samples: Iterable[Sample], point: int, goal: Goal) -> dict[int, float]:
    """By repetition, of warm visits in which nothing went wrong."""
    visits: dict[int, list[Sample]] = defaultdict(list)
    for each in samples:
        if each.point == point and not each.is_cold:
            visits[each.repetition].append(each)
    rates = {at: _rate(visit, goal) for at, visit in visits.items()}
    return {at: rate for at, rate in rates.items() if rate > 0}


def _rate(visit: Sequence[Sample], goal: Goal) -> float:
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
