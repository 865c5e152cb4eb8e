"""What a command that fails prints with `--json`."""

from __future__ import annotations

from typing import Literal

from firesteel.library.documents.document import Document


class ErrorJson(Document, kw_only=True):
    """Any command that failed, with its exit code"""

    document: Literal["firesteel.error/1"] = "firesteel.error/1"
    kind: str
    message: str
    next: str
    exit_code: int
