"""How much a key may use: rate limits, budgets and requests at once. Pure: the time is passed in.

    limiter = KeyLimiter()
    limiter.change({"team": KeyLimits(tokens=RateLimit(100_000, 60))}, spent, now, clock)
    limiter.admit("team", now)                       None, or the 429; when the head of a request is here
    limiter.reserve("team", need, now, clock)        a Reservation, or the 429; when all of it is here
    limiter.extend(reservation, now, clock)          while an answer without a limit is streamed
    limiter.settle(reservation, tokens, now, clock)  when it has ended, with the engine's count

A rate limit bounds how fast a key may be; a budget, how much it may use until a certain midnight. What a
request costs is known only at its end. So what it may cost at most is reserved when it is admitted, and
requests at the same time cannot use the same tokens twice. `now` is a monotonic clock, `clock` the time of
day, which may jump.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from math import ceil
from typing import Literal

from msgspec import Struct

from firesteel.errors import UsageError
from firesteel.gateway.interfaces import Allowance, Rejection
from firesteel.values import Value, replace

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


SHARE = 4
"""An answer without a limit reserves a quarter of what is left at most, so that the next ones have some."""
STEP = 512


class TokenNeed(Value):
    """What a request may cost, as far as it is known when it arrives."""

    prompt: int
    """Estimated from its length."""
    answer: int | None = 0
    """The most that all its answers may have; None: it sets no limit."""
    most: int = STEP
    """What an answer without a limit begins with, or less: more is not reserved at a time, or requests at
    once would leave each other nothing."""
    is_stream: bool = False

    @property
    def least(self) -> int:
        return self.prompt + (1 if self.answer is None else self.answer)

    def share(self, left: int) -> int:
        """What it reserves of what is left, which is at least `least`."""
        if self.answer is not None:
            return self.least
        return max(self.least, min(left // SHARE, self.prompt + self.most))


_RETRY_S = 5.0
"""When others hold what is missing: how long a request takes is not known."""
_MAX_PERIODS = 8


class BudgetAccount(Struct):
    budget: TokenBudget
    spent: int
    began: float
    ends: float
    """Seconds since 1970."""
    reserved: int = 0
    """By requests under way."""
    others: dict[float, int] = {}
    """What was spent in other periods, by their beginning: a clock that jumps comes back to them."""

    @property
    def left(self) -> int:
        return self.budget.tokens - self.spent - self.reserved

    @property
    def over(self) -> int:
        return max(0, self.spent - self.budget.tokens)


Spent = Callable[[str, float, float], int]
"""The tokens that a key was charged from one time to another, as the request log has them."""


class Budgets:
    """What each key with a budget has left: tokens a day or a month, in the host's own days.

        budgets = Budgets()
        budgets.change({"team": TokenBudget(5_000_000, "month")}, spent, clock)
        budgets.reserve("team", TokenNeed(120, 1000), clock)   1120, or the 429 to send
        budgets.settle("team", 1120, 340, clock)               when the request has ended

    A request without a limit is answered until nothing is left; every other one fits when it is admitted. So
    a budget is exceeded only by prompts that were longer than estimated.
    """

    def __init__(self) -> None:
        self.accounts: dict[str, BudgetAccount] = {}
        self._spent: Spent = lambda key, since, until: 0

    def change(self, budgets: Mapping[str, TokenBudget], spent: Spent, now: float) -> None:
        """Apply changed budgets; an account whose period is the same keeps what was spent."""
        self._spent = spent
        self.accounts = {name: self._account(name, budget, now) for name, budget in budgets.items()}

    def _account(self, name: str, budget: TokenBudget, now: float) -> BudgetAccount:
        old = self.accounts.get(name)
        if old is not None and old.budget.period == budget.period:
            return replace(old, budget=budget)
        began, ends = period_of(now, budget.period)
        reserved = old.reserved if old is not None else 0
        return BudgetAccount(budget, self._spent(name, began, ends), began, ends, reserved)

    def _current(self, key: str, now: float) -> BudgetAccount | None:
        """Of the period that the clock shows, also after it has jumped ahead and back."""
        account = self.accounts.get(key)
        if account is None or account.began <= now < account.ends:
            return account
        account.others[account.began] = account.spent
        account.began, account.ends = period_of(now, account.budget.period)
        if account.began in account.others:
            account.spent = account.others.pop(account.began)
        else:
            account.spent = self._spent(key, account.began, account.ends)
        while len(account.others) > _MAX_PERIODS:
            del account.others[next(iter(account.others))]
        return account

    def reserve(self, key: str, need: TokenNeed, now: float) -> int | Rejection:
        account = self._current(key, now)
        if account is None:
            return 0
        if max(1, need.least) > account.left:
            return _over_budget(key, account, need, now)
        share = need.share(account.left)
        account.reserved += share
        return share

    def extend(self, key: str, missing: int, now: float) -> int:
        """Reserve more for an answer that goes on, at least what is `missing` if there is that much."""
        account = self._current(key, now)
        if account is None:
            return missing + STEP
        more = max(0, min(account.left, max(missing, min(account.left // SHARE, STEP))))
        account.reserved += more
        return more

    def settle(self, key: str, reserved: int, tokens: int, now: float) -> int:
        """Return by how much this request has exceeded the budget."""
        account = self._current(key, now)
        if account is None:
            return 0
        over = account.over
        account.reserved = max(0, account.reserved - reserved)
        account.spent += tokens
        return account.over - over


def _over_budget(key: str, account: BudgetAccount, need: TokenNeed, now: float) -> Rejection:
    until = datetime.fromtimestamp(account.ends).astimezone().isoformat(sep=" ", timespec="minutes")
    budget, retry_s = account.budget, account.ends - now
    after = f"The next {budget.period} begins at {until}."
    unspent = budget.tokens - account.spent
    if unspent <= 0:
        why = f"key `{key}` has used its budget of {budget} tokens. {after}"
    elif max(1, need.least) <= unspent:
        why = (
            f"key `{key}` has {unspent:,} tokens of its budget of {budget} left, and requests under way may "
            f"use {account.reserved:,} of them. Retry when they have ended."
        )
        retry_s = min(_RETRY_S, retry_s)
    else:
        answer = f" and an answer of up to {need.answer:,}" if need.answer else ""
        why = (
            f"key `{key}` has {unspent:,} tokens of its budget of {budget} left; this request has "
            f"a prompt of about {need.prompt:,}{answer}. Send a smaller one. {after}"
        )
    return Rejection(429, "budget_exceeded", why, retry_after_s=retry_s)


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
    at_once: int | None = None
    """Requests under way, waiting or served."""

    @property
    def is_reserved(self) -> bool:
        """Whether a request is held against them when all of it is known."""
        return bool(self.tokens or self.budget or self.at_once)


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
        """A negative count gives back."""
        self._level = min(self.rate.count, self.level(now) - count)

    def seconds_until(self, count: float, now: float) -> float:
        """Until the bucket holds `count`; 0: it does already."""
        return max(0.0, (count - self.level(now)) * self.rate.seconds / self.rate.count)


class RateLimiter:
    """The buckets of every key that has a limit.

    A bucket holds the allowance of its whole period and refills evenly, so a quiet minute may be followed by
    a burst. A request takes what it may need, into debt only if it is larger than the bucket, which must be
    full for it; the next one waits until the debt is paid.
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

    def reserve(self, key: str, need: TokenNeed, now: float) -> int | Rejection:
        """Take the tokens of a request that was admitted, or return when to retry."""
        bucket = self._tokens.get(key)
        if bucket is None:
            return 0
        if wait := bucket.seconds_until(min(need.least, bucket.rate.count), now):
            if requests := self._requests.get(key):
                requests.take(-1, now)
            return _rejection(key, "tokens", bucket.rate, wait)
        share = need.share(int(bucket.level(now)))
        bucket.take(share, now)
        return share

    def take(self, key: str, tokens: int, now: float) -> None:
        """Of a request that goes on or has ended: what it needs beyond its reservation, or gives back."""
        if (bucket := self._tokens.get(key)) is not None:
            bucket.take(tokens, now)


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


class Reservation(Allowance, kw_only=True, eq=False):
    """What a request holds of its key's limits until it has ended."""

    key: str
    budget: int
    rate: int
    is_open: bool
    """Its answer has no limit."""

    def grow(self, budget: int) -> None:
        self.budget += budget
        self.tokens += budget

    @property
    def unused(self) -> int:
        return self.budget - max(self.used, self.prompt)


class KeyLimiter:
    """All limits of all keys."""

    def __init__(self) -> None:
        self.rates, self.budgets = RateLimiter(), Budgets()
        self._at_once: dict[str, int] = {}
        self._under_way: dict[str, int] = {}
        self._streams: dict[str, list[Reservation]] = {}
        """Open ones, which may be extended."""

    def change(self, limits: Mapping[str, KeyLimits], spent: Spent, now: float, clock: float) -> None:
        self.rates.change(limits, now)
        self.budgets.change({name: key.budget for name, key in limits.items() if key.budget}, spent, clock)
        self._at_once = {name: key.at_once for name, key in limits.items() if key.at_once}

    def admit(self, key: str, now: float) -> Rejection | None:
        return self.rates.admit(key, now)

    def reserve(self, key: str, need: TokenNeed, now: float, clock: float) -> Reservation | Rejection:
        under_way, at_once = self._under_way.get(key, 0), self._at_once.get(key)
        if at_once is not None and under_way >= at_once:
            why = f"key `{key}` has {under_way} requests under way, of {at_once} at once. Retry later."
            return Rejection(429, "rate_limit_exceeded", why, retry_after_s=_RETRY_S)
        budget = self.budgets.reserve(key, need, clock)
        if isinstance(budget, Rejection):
            return budget
        rate = self.rates.reserve(key, need, now)
        if isinstance(rate, Rejection):
            self.budgets.settle(key, budget, 0, clock)
            return rate
        self._under_way[key] = under_way + 1
        is_open = need.answer is None
        held = Reservation(need.prompt, budget or rate, key=key, budget=budget, rate=rate, is_open=is_open)
        if is_open and need.is_stream:
            self._streams.setdefault(key, []).append(held)
        return held

    def extend(self, held: Reservation, now: float, clock: float) -> bool:
        """False: the budget of its key is spent. A rate does not end an answer; what is beyond it is waited
        for afterwards."""
        missing = held.used + 1 - held.tokens
        if held.budget:
            more = self.budgets.extend(held.key, missing, clock)
            held.grow(more)
            while held.tokens <= held.used and self._take_unused(held):
                pass  # ends: what the others have becomes less each time
        else:
            more = max(STEP, missing)
            held.tokens += more
        if held.rate:
            held.rate += more
            self.rates.take(held.key, more, now)
        return held.tokens > held.used

    def _take_unused(self, held: Reservation) -> bool:
        """All is reserved, and not all is spent: take half of what the stream with the most has left."""
        giver = max(self._streams.get(held.key, [held]), key=lambda other: other.unused)
        if giver is held or giver.unused <= 0:
            return False
        half = (giver.unused + 1) // 2
        giver.grow(-half)
        held.grow(half)
        return True

    def settle(self, held: Reservation, tokens: int, now: float, clock: float) -> int:
        """Return by how many tokens the budget was exceeded by this request."""
        key = held.key
        self._under_way[key] -= 1
        if not self._under_way[key]:
            del self._under_way[key]
        if held in (streams := self._streams.get(key, [])):
            streams.remove(held)
            if not streams:
                del self._streams[key]
        self.rates.take(key, tokens - held.rate, now)
        return self.budgets.settle(key, held.budget, tokens, clock)
