"""How much a key may use: token buckets. Pure: the clock is handed in.

    rates = Rates({"team": Limits(requests=Rate(60, 60), tokens=Rate(100_000, 60))})
    rates.admit("team", now)          None, or the 429 that is to be sent
    rates.charge("team", tokens, now) when a request has ended, with what its engine counted

A bucket holds a whole span's worth and fills evenly, so that a quiet minute may be followed by a burst. What
an answer costs is known only when it has ended: tokens are charged then, into debt if need be, and the next
request waits until the debt is paid.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from firesteel.errors import UsageError
from firesteel.gateway.interfaces import Refusal

_SPANS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_RATE = re.compile(r"([1-9][0-9]{0,11})/([smhd])", re.ASCII)


@dataclass(frozen=True, slots=True)
class RateLimit:
    count: int
    seconds: int

    def __str__(self) -> str:
        letters = {seconds: letter for letter, seconds in _SPANS.items()}
        return f"{self.count}/{letters[self.seconds]}"


def parse_rate_limit(text: str) -> RateLimit:
    """`60/m` -> 60 in a minute."""
    match = _RATE.fullmatch(text)
    if match is None:
        raise UsageError(f"`{text[:40]}` is no rate", next="--rate 60/m, or 5/s, 1000/h, 10000/d")
    return RateLimit(int(match[1]), _SPANS[match[2]])


@dataclass(frozen=True, slots=True)
class KeyLimits:
    requests: RateLimit | None = None
    tokens: RateLimit | None = None


NO_LIMITS = KeyLimits()


class TokenBucket:
    __slots__ = ("_at", "_level", "rate")

    def __init__(self, rate: RateLimit, now: float) -> None:
        self.rate = rate
        self._level = float(rate.count)
        self._at = now

    def level(self, now: float) -> float:
        """A clock that steps back takes nothing away."""
        if now > self._at:
            rate = self.rate
            self._level = min(rate.count, self._level + (now - self._at) * rate.count / rate.seconds)
            self._at = now
        return self._level

    def take(self, count: float, now: float) -> None:
        self._level = self.level(now) - count

    def seconds_until(self, wanted: float, now: float) -> float:
        """0: it holds as much already."""
        return max(0.0, (wanted - self.level(now)) * self.rate.seconds / self.rate.count)


class RateLimiter:
    """The buckets of every key that has a limit."""

    def __init__(self, limits: Mapping[str, KeyLimits] | None = None, now: float = 0.0) -> None:
        self._requests: dict[str, TokenBucket] = {}
        self._tokens: dict[str, TokenBucket] = {}
        self.change(limits or {}, now)

    def change(self, limits: Mapping[str, KeyLimits], now: float) -> None:
        """The keys were read again: a bucket whose rate is as it was keeps what it holds."""
        requests = {name: each.requests for name, each in limits.items() if each.requests}
        tokens = {name: each.tokens for name, each in limits.items() if each.tokens}
        self._requests = _kept(self._requests, requests, now)
        self._tokens = _kept(self._tokens, tokens, now)
        self.limited = frozenset((*requests, *tokens))
        """The keys that have a limit; of others nothing need be asked."""

    def admit(self, key: str, now: float) -> Refusal | None:
        """Takes one request out of the bucket, or says when to come again; a refused one costs nothing."""
        tokens = self._tokens.get(key)
        if tokens is not None and (wait := tokens.seconds_until(1, now)):
            return _refusal(key, "tokens", tokens.rate, wait)
        requests = self._requests.get(key)
        if requests is None:
            return None
        if wait := requests.seconds_until(1, now):
            return _refusal(key, "requests", requests.rate, wait)
        requests.take(1, now)
        return None

    def charge(self, key: str, tokens: int, now: float) -> None:
        if (bucket := self._tokens.get(key)) is not None:
            bucket.take(max(0, tokens), now)


def _kept(
    old: Mapping[str, TokenBucket], rates: Mapping[str, RateLimit], now: float
) -> dict[str, TokenBucket]:
    def bucket(name: str, rate: RateLimit) -> TokenBucket:
        held = old.get(name)
        return held if held is not None and held.rate == rate else TokenBucket(rate, now)

    return {name: bucket(name, rate) for name, rate in rates.items()}


def _refusal(key: str, what: str, rate: RateLimit, wait_s: float) -> Refusal:
    why = f"key `{key}` has used its {what}, {rate}. Come again in {wait_s:.0f} s."
    return Refusal(429, "rate_limit_exceeded", why, retry_after_s=wait_s)
