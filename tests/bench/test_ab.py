"""Two servers whose speed is known, measured in turns."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from firesteel.bench.compare.runs import compare
from firesteel.bench.compare.servers import Side, interleave
from firesteel.bench.load.measure import Event, RunFinished, RunOrder, SampleTaken
from firesteel.bench.load.schedule import RunLimits
from firesteel.bench.measurements import Point, StoredRun, Subject
from tests.bench.faulty_server import MODEL, FaultyServer, serving
from tests.simulated_time import SIMULATED_TIME

pytestmark = SIMULATED_TIME
POINTS = (Point("single", prompt_tokens=60, answer_tokens=40), Point("single", "code", 2, 60, 40))
LIMITS = RunLimits(budget_s=60, precision=0.001, least_repetitions=4, most_repetitions=5)


async def measured(
    first: FaultyServer, second: FaultyServer
) -> tuple[list[tuple[Side, Event]], tuple[StoredRun, StoredRun]]:
    async with serving(first) as one, serving(second) as other:
        orders = [RunOrder(Subject(url, MODEL), POINTS, limits=LIMITS) for url in (one, other)]
        events = [each async for each in interleave(orders[0], orders[1])]
    done = {side: event for side, event in events if isinstance(event, RunFinished)}
    a, b = (StoredRun(done[side].run, done[side].samples) for side in (0, 1))
    return events, (a, b)


async def test_both_sides_get_the_same_prompts_in_turns() -> None:
    first, second = FaultyServer(token_s=0.004), FaultyServer(token_s=0.008)
    events, (a, b) = await measured(first, second)
    said = [[each["messages"] for each in server.asked] for server in (first, second)]
    assert sorted(map(str, said[0])) == sorted(map(str, said[1])), "both were asked the same"
    assert len({str(each) for each in said[0]}) == len(said[0]), "and never the same twice"
    sides = [side for side, event in events if isinstance(event, SampleTaken)]
    most = max(len(run) for run in _stretches(sides))
    assert most <= 12, "no one goes on for more than two visits, of two streams that ask three times"
    found = compare(a, b, is_interleaved=True)
    decode = [row for row in found.rows if row.measure == "decode"]
    assert [row.difference.verdict for row in decode] == ["slower", "slower"]
    assert [row.difference.ratio for row in decode] == [pytest.approx(0.5), pytest.approx(0.5)]
    assert found.answers is not None and found.answers.changed == 0 and found.answers.compared > 10


def _stretches(sides: Sequence[int]) -> list[list[int]]:
    found: list[list[int]] = [[]]
    for side in sides:
        if found[-1] and found[-1][-1] != side:
            found.append([])
        found[-1].append(side)
    return found


@pytest.mark.parametrize("budget_s", [30.0, 120.0])
async def test_both_sides_share_one_budget(budget_s: float) -> None:
    limits = RunLimits(budget_s / 2, precision=0.0001)
    async with serving(FaultyServer(token_s=0.05)) as one, serving(FaultyServer(token_s=0.1)) as other:
        orders = [RunOrder(Subject(url, MODEL), POINTS, limits=limits) for url in (one, other)]
        began = time.perf_counter()
        done = [event async for _, event in interleave(*orders) if isinstance(event, RunFinished)]
        assert 0.5 * budget_s <= time.perf_counter() - began <= 1.1 * budget_s
    assert all(not each.too_short for each in done)


async def test_a_dead_server_does_not_block_the_other() -> None:
    _, (a, b) = await measured(FaultyServer(token_s=0.004), FaultyServer(fault="500"))
    found = compare(a, b, is_interleaved=True)
    assert found.rows == () and found.answers is None
    assert len(a.samples) >= 10
