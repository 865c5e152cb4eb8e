"""Budgets: what may be used until midnight, in the host's own days."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.errors import UsageError
from firesteel.gateway.budgets import Budgets, TokenBudget, parse_budget, period_of

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
