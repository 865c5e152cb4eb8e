"""What `audit` prints with `--json`."""

from __future__ import annotations

from typing import Literal

from firesteel.library.documents.document import Document
from firesteel.rules.checkpoint.checks import CheckpointFinding
from firesteel.rules.checkpoint.judge import CheckpointSummary


class AuditJson(Document, kw_only=True):
    """`firesteel audit MODEL --json`"""

    document: Literal["firesteel.audit/1"] = "firesteel.audit/1"
    model: str
    is_clean: bool
    is_deep: bool
    summary: CheckpointSummary
    findings: tuple[CheckpointFinding, ...]
    unread: tuple[str, ...]
    """What was not read, and why."""
    read_bytes: int
    seconds: float
