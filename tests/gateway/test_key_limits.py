"""What a key may use: in a span, whatever the order of its requests (token buckets), and until midnight, in
the host's own days (budgets).
"""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.errors import UsageError
from firesteel.gateway.key_limits import (
    Budgets,
    KeyLimits,
    RateLimit,
    RateLimiter,
    TokenBudget,
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
    rates.charge("b", 10**9, 0)
    assert rates.admit("b", 0) is None


def test_tokens_are_charged_afterwards_and_the_debt_is_waited_for() -> None:
    rates = RateLimiter({"a": KeyLimits(tokens=RateLimit(600, 60))}, now=0)
    assert rates.admit("a", 0) is None
    rates.charge("a", 1200, 0)
    refusal = rates.admit("a", 0)
    assert refusal is not None and refusal.retry_after_s == pytest.approx(60.1)
    assert rates.admit("a", 60.2) is None


def test_a_refused_request_costs_nothing() -> None:
    rates = RateLimiter({"a": KeyLimits(RateLimit(2, 60), RateLimit(60, 60))}, now=0)
    rates.charge("a", 120, 0)
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


@pytest.mark.usefixtures("berlin")
def test_the_request_that_uses_it_up_is_answered_and_the_next_waits_for_midnight() -> None:
    budgets, noon = Budgets(), at("2026-11-16T12:00")
    budgets.change({"team": DAY}, lambda key, since: 0, noon)
    budgets.charge("team", 99, noon)
    assert budgets.admit("team", noon) is None
    budgets.charge("team", 500, noon)
    refused = budgets.admit("team", noon)
    assert refused is not None and (refused.status, refused.kind) == (429, "budget_exceeded")
    assert refused.retry_after_s == 12 * 3600 and "2026-11-17 00:00+01:00" in refused.why
    assert budgets.admit("team", noon + 12 * 3600 - 1) is not None
    assert budgets.admit("team", noon + 12 * 3600) is None, "midnight"
    assert budgets.admit("other", noon) is None, "it has none"


def test_what_was_spent_before_counts_and_a_changed_amount_keeps_it() -> None:
    asked: list[tuple[str, float]] = []

    def spent(key: str, since: float) -> int:
        asked.append((key, since))
        return 70

    budgets, now = Budgets(), at("2026-11-16T12:00")
    budgets.change({"team": DAY}, spent, now)
    assert asked == [("team", at("2026-11-16"))]
    budgets.charge("team", 25, now)
    budgets.change({"team": TokenBudget(96, "day")}, spent, now)
    assert budgets.accounts["team"].spent == 95 and len(asked) == 1
    budgets.change({"team": TokenBudget(96, "month")}, spent, now)
    assert asked[1:] == [("team", at("2026-11-01"))] and budgets.accounts["team"].spent == 70


def test_a_clock_that_steps_back_gives_nothing() -> None:
    budgets, now = Budgets(), at("2026-11-16T00:00:01")
    budgets.change({"team": DAY}, lambda key, since: 0, now)
    budgets.charge("team", 100, now)
    assert budgets.admit("team", now - 7200) is not None


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 6 * 3600)), max_size=60))
def test_no_day_takes_more_than_its_budget_and_one_request(steps: list[tuple[int, int]]) -> None:
    budgets, now = Budgets(), at("2026-11-16T00:00")
    budgets.change({"team": DAY}, lambda key, since: 0, now)
    used: dict[float, int] = {}
    for tokens, pause_s in steps:
        now += pause_s
        if budgets.admit("team", now) is None:
            budgets.charge("team", tokens, now)
            began, _ = period_of(now, "day")
            used[began] = used.get(began, 0) + tokens
    assert all(total < 100 + 40 for total in used.values())
    budgets.admit("team", now)  # the day may have changed since the last charge
    assert budgets.accounts["team"].spent == used.get(period_of(now, "day")[0], 0)
