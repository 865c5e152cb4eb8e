"""Token buckets: what a key may use in a span, whatever the order of its requests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.errors import UsageError
from firesteel.gateway.rate_limits import KeyLimits, RateLimit, RateLimiter, parse_rate_limit


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
