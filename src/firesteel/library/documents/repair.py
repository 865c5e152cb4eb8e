"""What `repair` prints with `--json`."""

from __future__ import annotations

from typing import Literal

from firesteel.library.documents.document import Document
from firesteel.rules.checkpoint.checks import CheckpointFinding
from firesteel.workshop.repair.scales import ReconciledGroup


class RepairJson(Document, kw_only=True):
    """`firesteel repair MODEL --json`"""

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
    """`firesteel repair MODEL --undo --json`"""

    document: Literal["firesteel.repair-undo/1"] = "firesteel.repair-undo/1"
    model: str
    restored: tuple[str, ...]
