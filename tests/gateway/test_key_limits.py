"""What a key may use: in a span, whatever the order of its requests (token buckets), and until midnight, in
the host's own days (budgets).
"""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.errors import UsageError
from firesteel.gateway.interfaces import Rejection
from firesteel.gateway.key_limits import (
    Budgets,
    KeyLimiter,
    KeyLimits,
    RateLimit,
    RateLimiter,
    Reservation,
    TokenBudget,
    TokenNeed,
    parse_budget,
    parse_rate_limit,
    period_of,
)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("60/m", RateLimit(60, 60)),
        ("5/s", RateLimit(5, 1)),
        ("1000/h", RateLimit(1000, 3600)),
        ("1/d", RateLimit(1, 86400)),
    ],
)
def test_a_rate_is_read_and_written_alike(text: str, rate: RateLimit) -> None:
    assert parse_rate_limit(text) == rate and str(rate) == text


@pytest.mark.parametrize("text", ["", "60", "0/m", "-1/m", "6/w", "1e9/m", "٣/m", "9" * 40 + "/m", "60/m "])
def test_no_rate(text: str) -> None:
    with pytest.raises(UsageError, match="is not a rate"):
        parse_rate_limit(text)


def test_a_burst_and_then_evenly() -> None:
    rates = RateLimiter({"a": KeyLimits(RateLimit(3, 60))}, now=0)
    assert [rates.admit("a", 0) is None for _ in range(4)] == [True, True, True, False]
    refusal = rates.admit("a", 5)
    assert refusal is not None and refusal.status == 429 and refusal.retry_after_s == pytest.approx(15)
    assert rates.admit("a", 20.001) is None, "one more after a third of the minute"
    assert rates.admit("a", 20.002) is not None


def test_a_quiet_day_saves_up_no_more_than_one_burst() -> None:
    rates = RateLimiter({"a": KeyLimits(RateLimit(3, 60))}, now=0)
    assert [rates.admit("a", 86400) is None for _ in range(4)] == [True, True, True, False]


def test_who_has_no_limit_is_never_refused() -> None:
    rates = RateLimiter({"a": KeyLimits(RateLimit(1, 60))}, now=0)
    assert all(rates.admit("b", 0) is None for _ in range(1000))
    rates.take("b", 10**9, 0)
    assert rates.admit("b", 0) is None


def test_tokens_are_charged_afterwards_and_the_debt_is_waited_for() -> None:
    rates = RateLimiter({"a": KeyLimits(tokens=RateLimit(600, 60))}, now=0)
    assert rates.admit("a", 0) is None
    rates.take("a", 1200, 0)
    refusal = rates.admit("a", 0)
    assert refusal is not None and refusal.retry_after_s == pytest.approx(60.1)
    assert rates.admit("a", 60.2) is None


def test_a_refused_request_costs_nothing() -> None:
    rates = RateLimiter({"a": KeyLimits(RateLimit(2, 60), RateLimit(60, 60))}, now=0)
    rates.take("a", 120, 0)
    assert all(rates.admit("a", 0) for _ in range(10)), "no tokens left"
    assert rates.admit("a", 62) is None and rates.admit("a", 62) is None


def test_keys_read_again_keep_what_was_used() -> None:
    rates = RateLimiter({"a": KeyLimits(RateLimit(1, 60)), "b": KeyLimits(RateLimit(1, 60))}, now=0)
    assert rates.admit("a", 0) is None and rates.admit("b", 0) is None
    rates.change({"a": KeyLimits(RateLimit(1, 60)), "b": KeyLimits(RateLimit(2, 60))}, now=0)
    assert rates.admit("a", 0) is not None, "a reload is no way to a fresh bucket"
    assert rates.admit("b", 0) is None, "another rate is another bucket"
    rates.change({}, now=0)
    assert rates.admit("a", 0) is None


def test_a_clock_that_steps_back_takes_nothing_away() -> None:
    rates = RateLimiter({"a": KeyLimits(RateLimit(2, 60))}, now=100)
    assert rates.admit("a", 100) is None and rates.admit("a", 50) is None
    assert rates.admit("a", 50) is not None


@given(
    st.integers(1, 50),
    st.sampled_from([1, 60, 3600]),
    st.lists(st.floats(0, 30, allow_nan=False), min_size=1, max_size=200),
)
def test_never_more_than_a_burst_and_the_rate(count: int, seconds: int, steps: list[float]) -> None:
    rates = RateLimiter({"a": KeyLimits(RateLimit(count, seconds))}, now=0)
    now, served = 0.0, 0
    for step in steps:
        now += step
        served += rates.admit("a", now) is None
        assert served <= count + now * count / seconds + 1e-6


@given(st.integers(1, 10), st.lists(st.floats(0, 5, allow_nan=False), max_size=60))
def test_a_retry_at_the_suggested_time_is_served(count: int, steps: list[float]) -> None:
    rates = RateLimiter({"a": KeyLimits(RateLimit(count, 60))}, now=0)
    now = 0.0
    for step in steps:
        now += step
        if (refusal := rates.admit("a", now)) is not None:
            assert refusal.retry_after_s is not None
            now += refusal.retry_after_s + 1e-6
            assert rates.admit("a", now) is None


def test_the_sentence_has_the_seconds_of_the_header() -> None:
    """It said `in 0 s` beside `Retry-After: 1`."""
    rates = RateLimiter({"k": KeyLimits(requests=RateLimit(10, 1))}, 0.0)
    rejection = next(found for _ in range(11) if (found := rates.admit("k", 0.0)))
    assert rejection.retry_after_s is not None and rejection.retry_after_s < 0.5
    assert rejection.why.endswith("Retry in 1 s.")


DAY = TokenBudget(100, "day")


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize(
    ("text", "tokens", "period"),
    [("200k/day", 200_000, "day"), ("5M/month", 5_000_000, "month"), ("1/day", 1, "day")],
)
def test_budgets_as_people_write_them(text: str, tokens: int, period: str) -> None:
    budget = parse_budget(text)
    assert (budget.tokens, budget.period) == (tokens, period)
    assert parse_budget(str(budget)) == budget


@pytest.mark.parametrize(
    "text",
    ["", "0/day", "-1/day", "1", "1/week", "1.5M/day", "1G/day", "9" * 13 + "/day", "1/day\n", "\u0661/day"],
)
def test_what_is_no_budget(text: str) -> None:
    with pytest.raises(UsageError, match="is not a budget") as refused:
        parse_budget(text)
    assert "--budget" in refused.value.next


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize(
    ("now", "period", "began", "ends", "hours"),
    [
        ("2026-11-16T12:00", "day", "2026-11-16", "2026-11-17", 24),
        ("2026-10-25T23:59", "day", "2026-10-25", "2026-10-26", 25),
        ("2026-03-29T00:00", "day", "2026-03-29", "2026-03-30", 23),
        ("2026-12-31T23:59:59", "month", "2026-12-01", "2027-01-01", 31 * 24),
        ("2028-02-29T01:00", "month", "2028-02-01", "2028-03-01", 29 * 24),
    ],
)
def test_a_day_is_the_hosts_own(now: str, period: str, began: str, ends: str, hours: int) -> None:
    found = period_of(at(now), "day" if period == "day" else "month")
    assert found == (at(began), at(ends))
    assert found[1] - found[0] == hours * 3600


def spend(budgets: Budgets, key: str, tokens: int, now: float) -> None:
    """A request that nothing refuses."""
    budgets.settle(key, 0, tokens, now)


def none_spent(key: str, since: float, until: float) -> int:
    return 0


@pytest.mark.usefixtures("berlin")
def test_a_used_budget_waits_for_midnight() -> None:
    budgets, noon = Budgets(), at("2026-11-16T12:00")
    budgets.change({"team": DAY}, none_spent, noon)
    spend(budgets, "team", 99, noon)
    assert budgets.reserve("team", TokenNeed(1), noon) == 1
    assert budgets.settle("team", 1, 41, noon) == 40, "its prompt was longer than estimated"
    refused = budgets.reserve("team", TokenNeed(1), noon)
    assert isinstance(refused, Rejection) and (refused.status, refused.kind) == (429, "budget_exceeded")
    assert refused.retry_after_s == 12 * 3600 and "2026-11-17 00:00+01:00" in refused.why
    assert isinstance(budgets.reserve("team", TokenNeed(1), noon + 12 * 3600 - 1), Rejection)
    assert budgets.reserve("team", TokenNeed(1), noon + 12 * 3600) == 1, "midnight"
    assert budgets.reserve("other", TokenNeed(1), noon) == 0, "it has none"


def test_what_was_spent_before_counts_and_a_changed_amount_keeps_it() -> None:
    asked: list[tuple[str, float]] = []

    def spent(key: str, since: float, until: float) -> int:
        asked.append((key, since))
        return 70

    budgets, now = Budgets(), at("2026-11-16T12:00")
    budgets.change({"team": DAY}, spent, now)
    assert asked == [("team", at("2026-11-16"))]
    spend(budgets, "team", 25, now)
    assert budgets.reserve("team", TokenNeed(2), now) == 2
    budgets.change({"team": TokenBudget(98, "day")}, spent, now)
    account = budgets.accounts["team"]
    assert (account.spent, account.left, len(asked)) == (95, 1, 1)
    budgets.change({"team": TokenBudget(96, "month")}, spent, now)
    assert asked[1:] == [("team", at("2026-11-01"))] and budgets.accounts["team"].spent == 70
    assert budgets.accounts["team"].reserved == 2


def test_a_clock_that_jumps_ahead_and_back_neither_gives_nor_locks_out() -> None:
    """A key that used its budget of a day that was not yet stayed locked out until a restart."""
    budgets, now = Budgets(), at("2026-11-16T12:00")
    budgets.change({"team": DAY}, none_spent, now)
    spend(budgets, "team", 60, now)
    year = 365 * 86_400
    spend(budgets, "team", 100, now + year)
    assert isinstance(budgets.reserve("team", TokenNeed(1), now + year), Rejection)
    assert budgets.reserve("team", TokenNeed(40), now) == 40, "today's"
    assert isinstance(budgets.reserve("team", TokenNeed(1), now), Rejection), "and no more than that"
    assert isinstance(budgets.reserve("team", TokenNeed(1), now + year), Rejection)


def test_a_clock_that_steps_back_over_midnight_gives_nothing() -> None:
    budgets, now = Budgets(), at("2026-11-16T00:00:01")
    budgets.change({"team": DAY}, none_spent, now - 7200)
    for _ in range(3):
        spend(budgets, "team", 100, now - 7200)
        spend(budgets, "team", 100, now)
    assert isinstance(budgets.reserve("team", TokenNeed(1), now - 7200), Rejection)
    assert isinstance(budgets.reserve("team", TokenNeed(1), now), Rejection)


NEEDS = st.builds(TokenNeed, st.integers(0, 60), st.none() | st.integers(0, 60), is_stream=st.just(True))


@given(st.data(), st.lists(st.tuples(NEEDS, st.integers(0, 6 * 3600)), max_size=60))
def test_no_day_takes_more_than_its_budget_however_many_at_once(
    data: st.DataObject, steps: list[tuple[TokenNeed, int]]
) -> None:
    """Requests begin, go on and end in any order; each uses what it was allowed, and no more."""
    limiter, now, errors = KeyLimiter(), at("2026-11-16T00:00"), 0
    limits = {"team": KeyLimits(tokens=RateLimit(50, 3600), budget=DAY)}
    limiter.change(limits, none_spent, 0, now)
    account = limiter.budgets.accounts["team"]
    under_way: list[tuple[Reservation, TokenNeed]] = []
    for need, pause_s in steps:
        now += pause_s
        if data.draw(st.booleans()) and under_way:
            held, began = under_way.pop(data.draw(st.integers(0, len(under_way) - 1)))
            held.used = data.draw(st.integers(0, 200)) if held.is_open else held.prompt + (began.answer or 0)
            wanted = held.used
            while held.is_open and held.tokens <= wanted:
                held.used = held.tokens
                if not limiter.extend(held, now, now):
                    wanted = held.tokens
                    assert account.budget.tokens <= account.spent + sum(
                        max(other.used, other.prompt) if other.is_open else other.budget
                        for other, _ in [*under_way, (held, began)]
                    ), "it ends only when nothing is left that others do not use"
                    break
            tokens = wanted
            error = data.draw(st.integers(0, 5))
            errors += error
            limiter.settle(held, tokens + error, now, now)
        elif not isinstance(held_or_not := limiter.reserve("team", need, now, now), Rejection):
            under_way.append((held_or_not, need))
            assert held_or_not.tokens >= need.least
        assert account.over <= errors, "only by what prompts were underestimated"
        assert account.reserved == sum(held.budget for held, _ in under_way)
        assert account.left >= -errors
    for held, _ in under_way:
        limiter.settle(held, 0, now, now)
    assert account.reserved == 0


def test_forty_at_once_share_what_there_is() -> None:
    """A hundred tokens a day gave 4,200 to forty requests at once."""
    limiter = KeyLimiter()
    limiter.change({"team": KeyLimits(budget=TokenBudget(10_000, "day"))}, none_spent, 0, 0)
    limited = [limiter.reserve("team", TokenNeed(100, 400), 0, 0) for _ in range(40)]
    assert sum(isinstance(each, Reservation) for each in limited) == 20
    assert isinstance(refused := limited[-1], Rejection) and refused.retry_after_s == 5.0
    for each in limited:
        if isinstance(each, Reservation):
            limiter.settle(each, 150, 0, 0)
    free = [limiter.reserve("team", TokenNeed(100, None), 0, 0) for _ in range(20)]
    admitted = [each for each in free if isinstance(each, Reservation)]
    assert len(admitted) > 15, "one without a limit leaves something to the next ones"
    assert sum(each.budget for each in admitted) <= 7000
    budgets = Budgets()
    budgets.change({"team": TokenBudget(4000, "day")}, none_spent, 0)
    assert budgets.reserve("team", TokenNeed(10, None, 9000), 0) == 1000, "a quarter at most"


def test_a_request_larger_than_the_bucket_waits_until_it_is_full_and_is_paid_off() -> None:
    rates = RateLimiter({"a": KeyLimits(RateLimit(2, 60), RateLimit(600, 60))}, now=0)
    assert rates.admit("a", 0) is None and rates.reserve("a", TokenNeed(10, 90), 0) == 100
    assert rates.admit("a", 0) is None
    refused = rates.reserve("a", TokenNeed(600, 900), 0)
    assert isinstance(refused, Rejection) and refused.retry_after_s == pytest.approx(10)
    assert rates.admit("a", 0) is None, "what was refused for its tokens was no request"
    assert rates.reserve("a", TokenNeed(600, 900), 10) == 1500
    refusal = rates.admit("a", 100)
    assert refusal is not None and refusal.retry_after_s == pytest.approx(0.1), "90 s for what was missing"
    rates.take("a", 300 - 1500, 100)
    assert rates.admit("a", 100) is None, "what it did not use is given back"


def test_a_rate_does_not_end_an_answer_and_is_waited_for() -> None:
    limiter = KeyLimiter()
    limiter.change({"a": KeyLimits(tokens=RateLimit(1000, 60))}, none_spent, 0, 0)
    held = limiter.reserve("a", TokenNeed(10, None), 0, 0)
    assert isinstance(held, Reservation) and held.rate == 250
    held.used = 250
    assert limiter.extend(held, 0, 0) and held.rate > 250 and held.tokens > 250
    limiter.settle(held, 7000, 0, 0)
    refusal = limiter.admit("a", 0)
    assert refusal is not None and refusal.retry_after_s == pytest.approx(360.06)


def test_no_more_requests_at_once_than_the_key_may_have() -> None:
    limiter = KeyLimiter()
    limiter.change({"a": KeyLimits(at_once=2)}, none_spent, 0, 0)
    first, _ = (limiter.reserve("a", TokenNeed(5), 0, 0) for _ in range(2))
    refused = limiter.reserve("a", TokenNeed(5), 0, 0)
    assert isinstance(refused, Rejection) and refused.status == 429 and "2 at once" in refused.why
    assert isinstance(first, Reservation)
    limiter.settle(first, 10, 0, 0)
    assert isinstance(limiter.reserve("a", TokenNeed(5), 0, 0), Reservation)
