"""What `tune` does to the world: start a candidate, measure it, stop it. All else in it only decides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from firesteel.bench.load.measure import RunOrder, RunProgress
from firesteel.bench.load.subject import of_service
from firesteel.bench.results.history import History, new_run_id
from firesteel.bench.tune.measure import CandidateScore, Effort, score
from firesteel.bench.tune.space import Goal
from firesteel.bench.values import Point, RequestSettings
from firesteel.edge.files.home import Home
from firesteel.errors import FiresteelError
from firesteel.facts import Host
from firesteel.rules import Proposal
from firesteel.run import Event as RunEvent
from firesteel.run import RunOptions, Service, all_services, bring_up, stop, stored_expected


@dataclass(frozen=True, slots=True)
class CandidateOrder:
    """What is to be measured of a candidate, and how."""

    tune: str
    points: tuple[Point, ...]
    counted: int
    """So many of the points make the goal, from the first on."""
    goal: Goal
    seed: int
    thinking: bool | None
    pains: Effort
    is_beaten: Callable[[Sequence[float]], bool]


@dataclass(frozen=True, slots=True)
class CandidateRunner:
    home: Home
    history: History
    host: Callable[[], Host]

    def up(self, proposal: Proposal, manner: RunOptions) -> AsyncIterator[RunEvent]:
        """Verified when it ends; a FiresteelError where it is not."""
        return bring_up(proposal, self.home, manner)

    async def measured(
        self, proposal: Proposal, asked: CandidateOrder
    ) -> AsyncIterator[RunProgress | CandidateScore]:
        service = self._service(proposal.name)
        if service is None:
            raise FiresteelError(f"{proposal.name} is gone", next=f"firesteel logs {proposal.name}")
        host = await asyncio.to_thread(self.host)
        found = of_service(service, stored_expected(service.folder), proposal.plan, host)
        order = RunOrder(
            found.subject,
            asked.points,
            RequestSettings(max_num_seqs=found.users, seed=asked.seed, thinking=asked.thinking),
            id=new_run_id(),
            salt=asked.tune,  # every candidate is asked the same
            notes=(f"a candidate of tune {asked.tune}",),
        )
        async for each in score(order, self.history, asked.goal, asked.counted, asked.pains, asked.is_beaten):
            yield each

    async def clear(self, name: str) -> AsyncIterator[RunEvent]:
        """Whatever runs under that name is stopped, and its memory back."""
        service = self._service(name)
        if service is not None:
            async for event in stop(service):
                yield event

    def _service(self, name: str) -> Service | None:
        return next((each for each in all_services(self.home) if each.name == name), None)
