"""A candidate runner that starts nothing: the true speed of the simulated Spark without its clock, and a
record of the calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from msgspec import field

from firesteel.bench.load.measure import RunProgress
from firesteel.bench.measurements import BenchRun, Point, RequestSample, RequestSettings, Subject
from firesteel.bench.results.history import new_run_id
from firesteel.bench.tune.candidate import CandidateOrder, CandidateRunner, CandidateScore, Effort, rounds
from firesteel.edge.sim.batch import ActiveAnswer, Batch, EngineSpeed
from firesteel.edge.sim.engine_config import engine_speed
from firesteel.edge.sim.spark import SimSpark
from firesteel.errors import FiresteelError
from firesteel.launch import Launch
from firesteel.planner.propose import Proposal
from firesteel.run.events import Event as RunEvent
from firesteel.run.events import PhaseProgress, ServiceReady
from firesteel.run.report import Report
from firesteel.run.spec import RunOptions
from firesteel.values import replace

_TEXTS = {"code": "code", "prose": "prose", "json": "structured", "math": "reasoning"}


class SimulatedRunner(CandidateRunner):
    world: SimSpark = field(default_factory=SimSpark)
    ups: list[Launch] = field(default_factory=list)
    recipes: list[str | None] = field(default_factory=list)
    run_options: list[RunOptions] = field(default_factory=list)
    running: list[Launch] = field(default_factory=list)
    """Empty, or the one."""
    broken: dict[str, FiresteelError] = field(default_factory=dict)
    """By a value of `attention-backend`, how it fails to come up."""
    start_s: dict[str, float] = field(default_factory=dict)
    """By `load-format`."""
    logs: list[Callable[[Launch], str]] = field(default_factory=list)
    """What the engine's log says of a launch."""
    noise: float = 0.002
    efforts: list[Effort] = field(default_factory=list)

    async def up(self, proposal: Proposal, options: RunOptions) -> AsyncIterator[RunEvent]:
        launch = proposal.plan.launch
        assert not self.running, "two at once"
        self.ups.append(launch)
        self.recipes.append(proposal.recipe.name if proposal.recipe else None)
        self.run_options.append(options)
        yield PhaseProgress("launch", "starting")
        if (error := self.broken.get(str(launch.flags.get("attention-backend")))) is not None:
            raise error
        self.running.append(launch)
        took = self.start_s.get(str(launch.flags.get("load-format")), 30.0)
        url = f"http://127.0.0.1:{launch.port}/v1"
        yield ServiceReady(Report(launch.name, url, launch.model, launch.engine, None, (), (), took, 1.0, ""))

    async def measure(
        self, proposal: Proposal, order: CandidateOrder
    ) -> AsyncIterator[RunProgress | CandidateScore]:
        assert self.running == [proposal.plan.launch], "what is measured is not what runs"
        self.efforts.append(order.effort)
        yield RunProgress("measuring")
        pace = true_pace(proposal, self.world)
        samples: list[RequestSample] = []
        for count in (3, 6):  # a short look, then a better one
            samples = [
                each
                for at, point in enumerate(order.points)
                for each in self._samples(pace, at, point, count)
            ]
            values = rounds(samples, order.points[: order.goal_points], order.goal)
            if order.is_beaten(values):
                break
        run = BenchRun(
            new_run_id(), "2026-11-15", Subject("http://simulated", "m"), RequestSettings(), order.points
        )
        yield CandidateScore(run, tuple(samples), values, order.is_beaten(values))

    def _samples(self, pace: EngineSpeed, at: int, point: Point, count: int) -> list[RequestSample]:
        took = took_s(pace, point)
        found = []
        for repetition in range(count):
            wobble = 1 + self.noise * (1, -1, 0.5, -0.5, 0.2, -0.2)[repetition]
            for user in range(point.users):
                each = took[user] * wobble
                found.append(
                    RequestSample(
                        at,
                        repetition,
                        100.0 * repetition,
                        0.01,
                        each,
                        each,
                        completion_tokens=point.answer_tokens,
                    )
                )
        return found

    def log(self, name: str) -> str:
        return "".join(logged(self.running[-1]) for logged in self.logs)

    async def clear(self, name: str) -> AsyncIterator[RunEvent]:
        if self.running:
            self.running.clear()
            yield PhaseProgress("stop", f"stopping {name}")


_PACES: dict[str, EngineSpeed] = {}


def true_pace(proposal: Proposal, world: SimSpark) -> EngineSpeed:
    """Cached: the simulated Spark plans a launch ten times for it."""
    key = f"{proposal.plan.launch.flags} {world}"
    if key not in _PACES:
        _PACES[key] = EngineSpeed.read(engine_speed(proposal.plan, world))
    return _PACES[key]


def took_s(pace: EngineSpeed, point: Point) -> list[float]:
    """Seconds until each user has an answer: the simulated Spark's own steps, added up and not waited for."""
    batch, now = Batch(replace(pace, caches_prefixes=False, jitter=0.0)), 0.0
    order = [
        ActiveAnswer(point.prompt_tokens, [("content", "x")] * point.answer_tokens, _TEXTS[point.text])
        for _ in range(point.users)
    ]
    batch.waiting.extend(order)
    done: dict[int, float] = {}
    for _ in range(100_000):
        batch._admit()
        if not batch.running:
            return [done[id(each)] for each in order]
        reading = next((each for each in batch.running if each.unread), None)
        step = batch._step_s(reading)
        now += step
        batch._advance(reading, step)
        done |= {id(each): now for each in order if each.is_gone and id(each) not in done}
    raise AssertionError("it does not end")


def true_score(proposal: Proposal, world: SimSpark, points: tuple[Point, ...], goal: Any) -> float:
    pace = true_pace(proposal, world)
    samples = []
    for at, point in enumerate(points):
        for each in took_s(pace, point):
            samples.append(RequestSample(at, 0, 0.0, 0.01, each, each, completion_tokens=point.answer_tokens))
    return rounds(samples, points, goal)[0]
