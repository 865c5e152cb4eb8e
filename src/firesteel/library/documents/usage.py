"""`firesteel usage --json`, and `GET /api/usage` of the gateway"""

from __future__ import annotations

from typing import Literal

from firesteel.gateway.admin.usage import BudgetStatus, UsageRow
from firesteel.library.documents.document import Document


class UsageJson(Document, kw_only=True):
    """`firesteel usage --json`"""

    document: Literal["firesteel.usage/1"] = "firesteel.usage/1"
    timezone: str
    """Of the days: `CET, UTC+01:00`."""
    since: str
    until: str
    by: tuple[str, ...]
    rows: tuple[UsageRow, ...]
    total: UsageRow
    budgets: tuple[BudgetStatus, ...]
