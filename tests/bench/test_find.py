"""The search for the highest load that holds a target: by arithmetic, and once against a real socket."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.bench.load.find import LoadJudgement, LoadSearch, bracket, found_load, judge, next_load
from firesteel.bench.load.measure import RunFinished, RunOrder, RunStarted, measure
from firesteel.bench.load.schedule import RunLimits
from firesteel.bench.measurements import FoundLoad, LoadKind, Point, RequestSample, RequestSettings, Subject
from firesteel.bench.report.tables import found_text
from firesteel.values import replace
from tests.bench.faulty_server import MODEL, FaultyServer, serving

TARGET = {"ttft_ms": 1000.0, "inter_token_ms": 50.0}
ONE = Point("single", "prose", 1, 512, 101)
HOLDS, MISSES, UNCLEAR = (LoadJudgement(verdict) for verdict in ("holds", "misses", "cannot tell"))


def took(ttft_s: float, repetition: int, token_s: float = 0.02, users: int = 1) -> list[RequestSample]:
    """One repetition: every user asks once, all equally fast."""
    gaps = (token_s,) * 100
    last_s = ttft_s + 100 * token_s
    sample = RequestSample(0, repetition, 100.0 * repetition, ttft_s, last_s, last_s, gaps, 512, 101)
    return [replace(sample, stream=stream if users > 1 else None) for stream in range(users)]


def judged(*waits: float, token_s: float = 0.02, target: dict[str, float] = TARGET) -> str:
    samples = [each for at, wait in enumerate(waits, 1) for each in took(wait, at, token_s)]
    return judge(ONE, samples, target).verdict


def test_a_load_holds_or_misses_with_its_whole_interval() -> None:
    assert judged() == "cannot tell"
    assert judged(0.9) == "cannot tell", "once may be chance"
    assert judged(0.4) == "holds", "even if it were twice as long"
    assert judged(0.9, 0.91, 0.92) == "holds"
    assert judged(0.9, 0.7, 1.1) == "cannot tell"
    assert judged(1.2, 1.25, 1.22) == "misses"
    assert judged(0.4, 0.4, 0.4, token_s=0.06) == "misses", "every figure must hold"
    assert judged(0.4, 0.4, 0.4, token_s=0.06, target={"ttft_ms": 1000.0}) == "holds"


def test_failed_requests_miss_the_target() -> None:
    good = [each for at in (1, 2, 3) for each in took(0.1, at)]
    wrong = [replace(each, wrong="http", why="HTTP 500") for each in took(0.1, 4)]
    found = judge(ONE, [*good, *wrong], TARGET)
    assert found.verdict == "misses" and found.why == "1 of 4 requests failed: HTTP 500"
    late = [replace(each, wrong="late") for each in wrong]
    assert judge(ONE, [*good, *late], TARGET).verdict == "holds", "a late client is not the server's fault"


def test_a_rate_that_is_not_kept_up_with_misses() -> None:
    point = replace(ONE, users=512, rate_per_s=1.0)
    (sample,) = took(0.1, 1)
    growing = [replace(sample, started_s=100.0 + at, total_s=0.1 + at) for at in range(60)]
    assert "answered in time" in judge(point, growing, TARGET).why


@given(capacity=st.integers(0, 1500), kind=st.sampled_from(["users", "requests per second"]))
def test_the_search_ends_next_to_the_true_capacity(capacity: int, kind: LoadKind) -> None:
    tried: dict[float, LoadJudgement] = {}
    while (load := next_load(tried, 1.0, kind)) is not None:
        assert load not in tried and load > 0
        tried[load] = HOLDS if load <= capacity else MISSES
    assert len(tried) <= 20
    held, above = bracket(tried)
    if capacity >= 1:
        assert held is not None and held <= capacity
        assert above is None or above - held <= max(1.0, 0.11 * held)
        assert above is not None or held in (1000, 1024)
    else:
        assert held is None


def test_what_cannot_be_told_does_not_hold() -> None:
    tried = {1.0: HOLDS, 2.0: HOLDS, 4.0: UNCLEAR, 3.0: HOLDS, 8.0: MISSES}
    found = found_load(tried, "users", is_final=True)
    assert (found.holds, found.unclear, found.misses) == (3, (4.0,), 8)
    text = found_text(replace(found, why="4: TTFT"), TARGET)
    assert text == (
        "up to 3 users hold the first token within 1,000 ms and a token every 50 ms, for nine in ten "
        "requests; cannot tell for 4; 8 miss it (at 4: TTFT)"
    )


def test_nothing_holds_or_time_was_up() -> None:
    assert found_text(found_load({1.0: MISSES}, "users", is_final=True), TARGET).startswith(
        "no number of users"
    )
    assert "larger --budget" in found_text(FoundLoad("users", 8, 16, is_final=False), TARGET)
    assert "no time was left" in found_text(FoundLoad("requests per second", is_final=False), TARGET)


class Server:
    """Its first token takes a second times users over capacity, give or take; a repetition takes a minute."""

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity
        self.samples: dict[int, list[RequestSample]] = {}
        self.search = LoadSearch([ONE], TARGET, 1e6, lambda index: self.samples.get(index, []))

    def run(self) -> tuple[FoundLoad, ...]:
        spent_s = 0.0
        while (index := self.search.next(spent_s)) is not None:
            point, repetition = self.search.points[index], self.search.repetitions[index]
            rate = point.rate_per_s
            wait_s = (point.users if rate is None else rate) / self.capacity * (1 + 0.01 * (repetition % 2))
            new = took(wait_s, repetition, users=min(point.users, 40))
            new = [replace(each, is_cold=repetition == 0, stream=None) for each in new]
            self.samples.setdefault(index, []).extend(new)
            self.search.record(index, 60.0, has_good_sample=True)
            spent_s += 60.0
        return self.search.results()


@pytest.mark.parametrize("capacity", [2.5, 11.5, 100.5, 2000.0])
def test_a_search_finds_users_and_rate(capacity: float) -> None:
    users, rate = Server(capacity).run()
    assert users.is_final and rate.is_final
    expected = min(1024, int(capacity))
    assert users.holds is not None and 0.9 * expected - 1 <= users.holds <= expected
    assert rate.holds is not None and 0.85 * min(1000.0, capacity) <= rate.holds <= capacity
    assert (users.misses is None) == (capacity > 1024)


def test_no_rate_is_tried_where_one_user_is_too_many() -> None:
    users, rate = Server(0.5).run()
    assert users.holds is None and users.misses == 1 and users.is_final
    assert rate == FoundLoad("requests per second") and "not even one user" in found_text(rate, TARGET)


def test_a_rate_whose_arrivals_take_longer_than_the_time_left_is_not_tried() -> None:
    server = Server(2.5)
    server.search.budget_s = 1500.0
    _, rate = server.run()
    assert rate.holds is None or 8 / rate.holds <= 1500
    slow = LoadSearch([ONE], TARGET, 100.0, lambda _: (), kind="requests per second", spent_s=50.0)
    assert slow._has_time_for(0.2) and not slow._has_time_for(0.1)


def test_a_search_keeps_to_its_time() -> None:
    server = Server(100.5)
    server.search.budget_s = 600.0
    users, rate = server.run()
    assert server.search.spent_s <= 660 and not users.is_final
    assert sum(server.search.repetitions) <= 11
    assert rate.kind == "requests per second"


@pytest.mark.simulated_time
@pytest.mark.usefixtures("simulated_clock")
async def test_a_real_search_ends_and_stores_its_points() -> None:
    """Eight answers at once would take it no longer: only the time limits what it finds."""
    settings = RequestSettings(target={"ttft_ms": 60_000.0})
    points: list[int] = []
    done: RunFinished | None = None
    async with serving(FaultyServer(first_s=0.05, token_s=0)) as url:
        order = RunOrder(
            Subject(url, MODEL),
            (Point("single", "prose", 1, 40, 8),),
            settings,
            RunLimits(1.0),
            is_search=True,
        )
        async for event in measure(order):
            if isinstance(event, RunStarted):
                points.append(len(event.run.points))
                assert not event.run.figures
            done = event if isinstance(event, RunFinished) else done
    assert done is not None and done.run.is_whole and len(done.run.points) == len(done.run.figures)
    assert points == list(range(1, len(done.run.points) + 1)), "each point is told before it is measured"
    users = done.run.found[0]
    assert users.kind == "users" and users.holds is not None and users.holds >= 1
    assert {point.users for point in done.run.points if point.rate_per_s is None} >= {1}
    assert len(done.run.found) == 2
