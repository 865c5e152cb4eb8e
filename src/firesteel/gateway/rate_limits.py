"""Rate limits of keys, as token buckets. Pure: the time is passed in.

    rates = RateLimiter({"team": KeyLimits(requests=RateLimit(60, 60), tokens=RateLimit(100_000, 60))})
    rates.admit("team", now)          None, or the 429 to send
    rates.charge("team", tokens, now) when a request has ended, with the engine's token count

A bucket holds the allowance of its whole period and refills evenly, so a quiet minute may be followed by a
burst. The cost of a response is known only at its end: tokens are charged then, into debt if necessary, and
the next request waits until the debt is paid.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import ceil

from firesteel.errors import UsageError
from firesteel.gateway.budgets import TokenBudget
from firesteel.gateway.interfaces import Rejection
from firesteel.values import Value

_PERIODS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_RATE = re.compile(r"([1-9][0-9]{0,11})/([smhd])", re.ASCII)


class RateLimit(Value):
    count: int
    seconds: int

    def __str__(self) -> str:
        letters = {seconds: letter for letter, seconds in _PERIODS.items()}
        return f"{self.count}/{letters[self.seconds]}"


def parse_rate_limit(text: str) -> RateLimit:
    """`60/m` -> 60 per minute."""
    match = _RATE.fullmatch(text)
    if match is None:
        raise UsageError(f"`{text[:40]}` is not a rate", next="--rate 60/m, or 5/s, 1000/h, 10000/d")
    return RateLimit(int(match[1]), _PERIODS[match[2]])


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
    """The buckets of every key that has a limit."""

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
