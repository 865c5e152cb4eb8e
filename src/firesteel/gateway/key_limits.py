"""How much a key may use: rate limits and budgets. Pure: the time is passed in.

    rates = RateLimiter({"team": KeyLimits(requests=RateLimit(60, 60), tokens=RateLimit(100_000, 60))})
    rates.admit("team", now)          None, or the 429 to send
    rates.charge("team", tokens, now) when a request has ended, with the engine's token count

A rate limit bounds how fast a key may be; a budget, how much it may use until a certain midnight. Both are
charged when a request ends, since its cost is known only then.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from math import ceil
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
    """What each key with a budget has left: tokens a day or a month, in the host's own days.

        budgets = Budgets()
        budgets.change({"team": TokenBudget(5_000_000, "month")}, spent, now)
        budgets.admit("team", now)              None, or the 429 to send
        budgets.charge("team", tokens, now)     when a request has ended

    The request that uses up the budget is answered in full, and the next is refused.
    """

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


UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_RATE = re.compile(r"([1-9][0-9]{0,11})/([smhd])", re.ASCII)


class RateLimit(Value):
    count: int
    seconds: int

    def __str__(self) -> str:
        letters = {seconds: letter for letter, seconds in UNIT_SECONDS.items()}
        return f"{self.count}/{letters[self.seconds]}"


def parse_rate_limit(text: str) -> RateLimit:
    """`60/m` -> 60 per minute."""
    match = _RATE.fullmatch(text)
    if match is None:
        raise UsageError(f"`{text[:40]}` is not a rate", next="--rate 60/m, or 5/s, 1000/h, 10000/d")
    return RateLimit(int(match[1]), UNIT_SECONDS[match[2]])


class KeyLimits(Value):
    requests: RateLimit | None = None
    tokens: RateLimit | None = None
    budget: TokenBudget | None = None


NO_LIMITS = KeyLimits()


class TokenBucket:
    __slots__ = ("_level", "_updated_s", "rate")

    def __init__(self, rate: RateLimit, now: float) -> None:
        self.rate = rate
        self._level = float(rate.count)
        self._updated_s = now

    def level(self, now: float) -> float:
        """A clock that steps back changes nothing."""
        if now > self._updated_s:
            rate = self.rate
            self._level = min(rate.count, self._level + (now - self._updated_s) * rate.count / rate.seconds)
            self._updated_s = now
        return self._level

    def take(self, count: float, now: float) -> None:
        self._level = self.level(now) - count

    def seconds_until(self, count: float, now: float) -> float:
        """Until the bucket holds `count`; 0: it does already."""
        return max(0.0, (count - self.level(now)) * self.rate.seconds / self.rate.count)


class RateLimiter:
    """The buckets of every key that has a limit.

    A bucket holds the allowance of its whole period and refills evenly, so a quiet minute may be followed by
    a burst. The tokens of a response are charged at its end, into debt if necessary, and the next request
    waits until the debt is paid.
    """

    def __init__(self, limits: Mapping[str, KeyLimits] | None = None, now: float = 0.0) -> None:
        self._requests: dict[str, TokenBucket] = {}
        self._tokens: dict[str, TokenBucket] = {}
        self.change(limits or {}, now)

    def change(self, limits: Mapping[str, KeyLimits], now: float) -> None:
        """Apply changed limits; a bucket whose rate did not change keeps its level."""
        requests = {name: key.requests for name, key in limits.items() if key.requests}
        tokens = {name: key.tokens for name, key in limits.items() if key.tokens}
        self._requests = _update(self._requests, requests, now)
        self._tokens = _update(self._tokens, tokens, now)
        self.limited = frozenset((*requests, *tokens))
        """Keys that have a limit."""

    def admit(self, key: str, now: float) -> Rejection | None:
        """Take one request from the bucket, or return when to retry; a rejected request costs nothing."""
        tokens = self._tokens.get(key)
        if tokens is not None and (wait := tokens.seconds_until(1, now)):
            return _rejection(key, "tokens", tokens.rate, wait)
        requests = self._requests.get(key)
        if requests is None:
            return None
        if wait := requests.seconds_until(1, now):
            return _rejection(key, "requests", requests.rate, wait)
        requests.take(1, now)
        return None

    def charge(self, key: str, tokens: int, now: float) -> None:
        if (bucket := self._tokens.get(key)) is not None:
            bucket.take(max(0, tokens), now)


def _update(
    old: Mapping[str, TokenBucket], rates: Mapping[str, RateLimit], now: float
) -> dict[str, TokenBucket]:
    def bucket(name: str, rate: RateLimit) -> TokenBucket:
        existing = old.get(name)
        return existing if existing is not None and existing.rate == rate else TokenBucket(rate, now)

    return {name: bucket(name, rate) for name, rate in rates.items()}


def _rejection(key: str, what: str, rate: RateLimit, wait_s: float) -> Rejection:
    seconds = max(1, ceil(wait_s))  # as in `Retry-After`
    why = f"key `{key}` has reached its limit of {what}, {rate}. Retry in {seconds} s."
    return Rejection(429, "rate_limit_exceeded", why, retry_after_s=wait_s)
