"""The gateway's keys, and what was used with them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from firesteel.edge.home import find_home
from firesteel.gateway import keys as gateway_keys
from firesteel.gateway.key_limits import (
    NO_LIMITS,
    KeyLimits,
    RateLimit,
    TokenBudget,
    parse_budget,
    parse_rate_limit,
)
from firesteel.gateway.keys import MAX_PRIORITY, Key

if TYPE_CHECKING:
    from firesteel.gateway.admin.usage import UsageReport

__all__ = [  # values of other packages that its functions take or return, and their parsers
    "MAX_PRIORITY",
    "Key",
    "KeyLimits",
    "RateLimit",
    "TokenBudget",
    "parse_budget",
    "parse_rate_limit",
]


def keys_file() -> Path:
    return gateway_keys.keys_path(find_home())


def parse_expiry(text: str) -> datetime:
    """After `12h` or `30d` from now, or after a day, `2026-12-31`."""
    return gateway_keys.parse_expiry(text, time.time())


def keys() -> tuple[Key, ...]:
    """The gateway's keys, without their tokens."""
    return tuple(gateway_keys.read_keys(keys_file()).values())


def add_key(
    name: str,
    *,
    scope: Literal["inference", "admin", "metrics"] = "inference",
    models: tuple[str, ...] | None = None,
    limits: KeyLimits | None = None,
    priority: int = 0,
    expires: datetime | None = None,
) -> tuple[Key, str]:
    """The key and its token, which is stored nowhere."""
    return gateway_keys.add_key(
        keys_file(),
        name,
        scope=scope,
        models=models,
        limits=limits or NO_LIMITS,
        priority=priority,
        expires=expires,
    )


def revoke_key(name: str) -> Key:
    """A running gateway refuses it within seconds."""
    return gateway_keys.revoke_key(keys_file(), name)


def usage(
    since: str | None = None,
    until: str | None = None,
    *,
    key: str | None = None,
    model: str | None = None,
    by: Iterable[str] = ("day", "key", "model"),
) -> UsageReport:
    """Requests and tokens by day, key and model, and what is left of the budgets; the last 30 days."""
    from firesteel.gateway.admin import usage as reports  # SQLite

    options = {"since": since, "until": until, "key": key, "model": model, "by": ",".join(by)}
    return reports.read_report(find_home(), reports.parse_query(options), time.time())


def usage_as_csv(report: UsageReport) -> str:
    from firesteel.gateway.admin.usage import csv_text

    return csv_text(report)
