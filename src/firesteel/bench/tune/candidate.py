"""Start a candidate, measure it, stop it: the only part of `tune` that acts. Everything else decides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from firesteel.bench.load.measure import RunOrder, RunProgress
from firesteel.bench.load.subject import of_service
from firesteel.bench.results.history import History, new_run_id
from firesteel.bench.tune.knobs import Goal
from firesteel.bench.tune.measure import CandidateScore, Effort, score
from firesteel.bench.values import Point, RequestSettings
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
from firesteel.values import Value

_PORTS_TRIED = 100


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

    async def clear(self, name: str) -> AsyncIterator[RunEvent]:
        """Stop what runs under that name, and wait until its memory is free."""
        if service := load(self.home, name):
            async for event in stop(service):
                yield event

    def free_port(self, port: int) -> int | None:
        """This one, or the next that nobody uses."""
        others = range(port, min(port + _PORTS_TRIED, 65536))
        return next((other for other in others if port_is_free(other)), None)
