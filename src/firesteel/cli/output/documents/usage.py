"""`firesteel usage --json`, and `GET /api/usage` of the gateway"""

from __future__ import annotations

from dataclasses import asdict
from typing import Literal

from firesteel.facts.documents import Document
from firesteel.gateway.admin.usage import UsageReport
from firesteel.gateway.budgets import BudgetPeriod


class UsageRowJson(Document):
    day: str | None
    """In `timezone`. Null, as for `key` and `model`: all of them, `by` does not have it."""
    key: str | None
    """Empty: no keys were in use."""
    model: str | None
    requests: int
    """Those that were refused do not count."""
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    """The part of the prompts that the engine had processed before."""


class BudgetJson(Document):
    key: str
    tokens: int
    period: BudgetPeriod
    spent: int
    left: int
    ends: str
    """When the next period begins."""


class UsageJson(Document):
    """`firesteel usage --json`"""

    document: Literal["firesteel.usage/1"] = "firesteel.usage/1"
    timezone: str
    """Of the days: `CET, UTC+01:00`."""
    since: str
    until: str
    by: tuple[str, ...]
    rows: tuple[UsageRowJson, ...]
    total: UsageRowJson
    budgets: tuple[BudgetJson, ...]


def usage_json(report: UsageReport) -> UsageJson:
    return UsageJson(**asdict(report))
