"""Start a candidate, measure it, stop it: the only part of `tune` that acts. Everything else decides.

It is measured briefly first, and thoroughly unless it is clearly beaten. The goal is one number per round,
more is better, as the geometric mean over all kinds of text:

    latency      answer tokens over the whole time of a request, as a user feels it: reading, then writing
    throughput   answer tokens of all users over the time that the load lasted
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from statistics import geometric_mean

from firesteel.bench.load.measure import RunFinished, RunOrder, RunProgress, measure, record
from firesteel.bench.load.schedule import RunLimits
from firesteel.bench.load.server import of_service
from firesteel.bench.measurements import BenchRun, Point, RequestSample, RequestSettings
from firesteel.bench.results.history import History, new_run_id
from firesteel.bench.tune.knobs import Goal
from firesteel.edge.home import Home
from firesteel.edge.host.process import port_is_free
from firesteel.errors import FiresteelError
from firesteel.facts.host.hardware import Host
from firesteel.planner.propose import Proposal
from firesteel.run.down import stop
from firesteel.run.events import Event as RunEvent
from firesteel.run.service import load
from firesteel.run.spec import RunOptions
from firesteel.run.up import bring_up
from firesteel.run.verify.expected import stored_expected
from firesteel.values import Value, replace


class Effort(Value):
    """How much time one candidate gets."""

    quick: RunLimits
    thorough: RunLimits

    @classmethod
    def within(cls, seconds: float) -> Effort:
        """The quick measurement ends after three rounds; the thorough one continues it in what is left."""
        return cls(RunLimits(min(300.0, seconds), 0.02, 3, 3), RunLimits(min(900.0, seconds), 0.01, 5, 30))


class CandidateScore(Value):
    run: BenchRun
    samples: tuple[RequestSample, ...]
    values: tuple[float, ...]
    """One per round."""
    was_beaten: bool = False
    too_short: str = ""
    """Why the time did not allow a single round; empty: it did, or the server failed."""


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
    for limits in (effort.quick, effort.thorough):
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
    yield CandidateScore(finished.run, finished.samples, values, beaten, "" if values else finished.too_short)


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


# --- start and stop ---

_PORTS_TRIED = 100
_LOG_BYTES = 2**21


class CandidateOrder(Value):
    """What to measure of a candidate, and how."""

    tune: str
    points: tuple[Point, ...]
    goal_points: int
    """How many of the points, from the first on, make up the goal."""
    goal: Goal
    seed: int
    thinking: bool | None
    effort: Effort
    is_beaten: Callable[[Sequence[float]], bool]


class CandidateRunner(Value):
    home: Home
    history: History
    host: Callable[[], Host]

    def up(self, proposal: Proposal, options: RunOptions) -> AsyncIterator[RunEvent]:
        """Verified when it ends; otherwise it raises a FiresteelError."""
        return bring_up(proposal, self.home, options)

    async def measure(
        self, proposal: Proposal, order: CandidateOrder
    ) -> AsyncIterator[RunProgress | CandidateScore]:
        service = load(self.home, proposal.name)
        if service is None:
            raise FiresteelError(f"{proposal.name} is gone", next=f"firesteel logs {proposal.name}")
        host = await asyncio.to_thread(self.host)
        found = of_service(service, stored_expected(service.folder), proposal.plan, host)
        run = RunOrder(
            found.subject,
            order.points,
            RequestSettings(max_num_seqs=found.users, seed=order.seed, thinking=order.thinking),
            id=new_run_id(),
            salt=order.tune,  # all candidates get the same prompts
            notes=(f"a candidate of tune {order.tune}",),
        )
        async for event in score(
            run, self.history, order.goal, order.goal_points, order.effort, order.is_beaten
        ):
            yield event

    def log(self, name: str) -> str:
        """The beginning of its engine's log, which names what was left to the engine."""
        service = load(self.home, name)
        if service is None:
            return ""
        with service.log.open("rb") as file:
            return file.read(_LOG_BYTES).decode(errors="replace")

    async def clear(self, name: str) -> AsyncIterator[RunEvent]:
        """Stop the service of that name, and wait until its memory is free."""
        if service := load(self.home, name):
            async for event in stop(service):
                yield event

    def free_port(self, port: int) -> int | None:
        """This one, or the next that is not in use."""
        others = range(port, min(port + _PORTS_TRIED, 65536))
        return next((other for other in others if port_is_free(other)), None)
