"""Measure one running candidate: briefly first, and thoroughly unless it is clearly beaten.

The goal is one number per round, more is better, as the geometric mean over all kinds of text:

    latency      answer tokens over the whole time of a request, as a user feels it: reading, then writing
    throughput   answer tokens of all users over the time that the load lasted
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from statistics import geometric_mean

from firesteel.bench.load.measure import RunFinished, RunOrder, RunProgress, measure
from firesteel.bench.load.recorded import record
from firesteel.bench.load.schedule import RunLimits
from firesteel.bench.results.history import History
from firesteel.bench.tune.knobs import Goal
from firesteel.bench.values import BenchRun, Point, RequestSample
from firesteel.values import Value, replace


class Effort(Value):
    """How much time one candidate gets."""

    brief: RunLimits
    thorough: RunLimits

    @classmethod
    def within(cls, seconds: float) -> Effort:
        """The brief measurement ends after three rounds; the thorough one continues it in what is left."""
        return cls(RunLimits(min(300.0, seconds), 0.02, 3, 3), RunLimits(min(900.0, seconds), 0.01, 5, 30))


class CandidateScore(Value):
    run: BenchRun
    samples: tuple[RequestSample, ...]
    values: tuple[float, ...]
    """One per round."""
    was_beaten: bool = False


async def score(
    order: RunOrder,
    history: History,
    goal: Goal,
    goal_points: int,
    effort: Effort,
    is_beaten: Callable[[Sequence[float]], bool],
) -> AsyncIterator[RunProgress | CandidateScore]:
    """The last event is the score. `goal_points`: how many of the points, from the first on, make up the
    goal."""
    finished: RunFinished | None = None
    for limits in (effort.brief, effort.thorough):
        stage = replace(order, limits=limits, earlier_samples=finished.samples if finished else ())
        async for event in measure(stage):
            record(history, order.id, event)
            if isinstance(event, RunProgress):
                yield event
            elif isinstance(event, RunFinished):
                finished = event
        assert finished is not None  # it is always the last event
        values = rounds(finished.samples, order.points[:goal_points], goal)
        beaten = is_beaten(values)
        if beaten or not values:
            break
    assert finished is not None
    yield CandidateScore(finished.run, finished.samples, values, beaten)


def rounds(samples: Iterable[RequestSample], points: Sequence[Point], goal: Goal) -> tuple[float, ...]:
    """The goal by round; a round in which a point failed is left out."""
    by_point = [repetition_rates(samples, index, goal) for index in range(len(points))]
    common = set.intersection(*(set(rates) for rates in by_point)) if by_point else set()
    return tuple(geometric_mean([rates[number] for rates in by_point]) for number in sorted(common))


def repetition_rates(samples: Iterable[RequestSample], point: int, goal: Goal) -> dict[int, float]:
    """By repetition, for warm ones without a failure."""
    repetitions: dict[int, list[RequestSample]] = defaultdict(list)
    for sample in samples:
        if sample.point == point and not sample.is_cold:
            repetitions[sample.repetition].append(sample)
    rates = {number: _rate(found, goal) for number, found in repetitions.items()}
    return {number: rate for number, rate in rates.items() if rate > 0}


def _rate(samples: Sequence[RequestSample], goal: Goal) -> float:
    """0: it has no rate."""
    if any(sample.wrong or not sample.completion_tokens or sample.total_s <= 0 for sample in samples):
        return 0.0
    if goal == "latency":
        return geometric_mean([(sample.completion_tokens or 0) / sample.total_s for sample in samples])
    began = min(sample.started_s for sample in samples)
    duration_s = max(sample.started_s + sample.total_s for sample in samples) - began
    tokens = sum(sample.completion_tokens or 0 for sample in samples)
    return tokens / duration_s if duration_s > 0 else 0.0
