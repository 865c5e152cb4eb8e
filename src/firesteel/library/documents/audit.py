"""What `audit` prints with `--json`."""

from __future__ import annotations

from typing import Literal

from firesteel.library.documents.document import Document
from firesteel.rules.checkpoint.checks import CheckpointFinding
from firesteel.rules.checkpoint.judge import CheckpointSummary
from firesteel.workshop.repair.scales import ReconciledGroup


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


class RepairJson(Document, kw_only=True):
    """`firesteel audit MODEL --fix --json`"""

    document: Literal["firesteel.repair/1"] = "firesteel.repair/1"
    model: str
    done: tuple[str, ...]
    """What was changed, or would be."""
    groups: tuple[ReconciledGroup, ...]
    mended: tuple[str, ...]
    left: tuple[CheckpointFinding, ...]
    written: str | None
    """The folder; null: nothing was written."""


class RepairUndoJson(Document, kw_only=True):
    """`firesteel audit MODEL --undo --json`"""

    document: Literal["firesteel.repair-undo/1"] = "firesteel.repair-undo/1"
    model: str
    restored: tuple[str, ...]
