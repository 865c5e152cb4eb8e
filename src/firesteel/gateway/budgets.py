"""Budgets of keys: tokens a day or a month, in the host's own days. Pure: the time is passed in.

    budgets = Budgets()
    budgets.change({"team": TokenBudget(5_000_000, "month")}, spent, now)
    budgets.admit("team", now)              None, or the 429 to send
    budgets.charge("team", tokens, now)     when a request has ended

A rate limit (`rate_limits.py`) bounds how fast a key may be; a budget bounds how much it may use until a
certain midnight. As there, a request is charged when it ends: the one that uses up the budget is answered in
full, and the next is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Literal

from msgspec import Struct

from firesteel.errors import UsageError
from firesteel.gateway.interfaces import Rejection
from firesteel.values import Value

BudgetPeriod = Literal["day", "month"]
_BUDGET = re.compile(r"([1-9][0-9]{0,11})([kM]?)/(day|month)", re.ASCII)
_FACTORS = {"": 1, "k": 1000, "M": 10**6}
MAX_BUDGET = 10**15


class TokenBudget(Value):
    tokens: int
    period: BudgetPeriod

    def __str__(self) -> str:
        return f"{self.tokens}/{self.period}"


def parse_budget(text: str) -> TokenBudget:
    """`200k/day`, `5M/month`."""
    match = _BUDGET.fullmatch(text)
    tokens = int(match[1]) * _FACTORS[match[2]] if match else 0
    if match is None or tokens > MAX_BUDGET:
        raise UsageError(f"`{text[:40]}` is not a budget", next="--budget 200k/day, or 5M/month")
    return TokenBudget(tokens, "day" if match[3] == "day" else "month")


def period_of(now: float, period: BudgetPeriod) -> tuple[float, float]:
    """The local day or month of a time: when it began and when the next one begins."""
    midnight = datetime.fromtimestamp(now).replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    if period == "day":
        return midnight.timestamp(), (midnight + timedelta(days=1)).timestamp()
    first = midnight.replace(day=1)
    return first.timestamp(), (first + timedelta(days=32)).replace(day=1).timestamp()


class BudgetAccount(Struct):
    budget: TokenBudget
    spent: int
    began: float
    ends: float
    """Seconds since 1970."""

    def move_on(self, now: float) -> None:
        """Begin the next period, if its time has come. A clock that steps back changes nothing."""
        if now >= self.ends:
            self.spent = 0
            self.began, self.ends = period_of(now, self.budget.period)


Spent = Callable[[str, float], int]
"""The tokens that a key was charged since a time, as the request log has them."""


class Budgets:
    """What each key with a budget has left."""

    def __init__(self) -> None:
        self.accounts: dict[str, BudgetAccount] = {}

    def change(self, budgets: Mapping[str, TokenBudget], spent: Spent, now: float) -> None:
        """Apply changed budgets; an account whose period is the same keeps what was spent."""
        self.accounts = {name: self._account(name, budget, spent, now) for name, budget in budgets.items()}

    def _account(self, name: str, budget: TokenBudget, spent: Spent, now: float) -> BudgetAccount:
        old = self.accounts.get(name)
        if old is not None and old.budget.period == budget.period:
            return BudgetAccount(budget, old.spent, old.began, old.ends)
        began, ends = period_of(now, budget.period)
        return BudgetAccount(budget, spent(name, began), began, ends)

    def admit(self, key: str, now: float) -> Rejection | None:
        account = self.accounts.get(key)
        if account is None:
            return None
        account.move_on(now)
        if account.spent < account.budget.tokens:
            return None
        until = datetime.fromtimestamp(account.ends).astimezone().isoformat(sep=" ", timespec="minutes")
        budget = account.budget
        why = (
            f"key `{key}` has used its budget of {budget} tokens. The next {budget.period} begins at {until}."
        )
        return Rejection(429, "budget_exceeded", why, retry_after_s=account.ends - now)

    def charge(self, key: str, tokens: int, now: float) -> None:
        if account := self.accounts.get(key):
            account.move_on(now)
            account.spent += tokens
