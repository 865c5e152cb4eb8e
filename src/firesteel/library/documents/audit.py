"""What `audit` prints with `--json`."""

from __future__ import annotations

from firesteel.library.documents.document import Document


class RepairUndoJson(Document, tag_field="document", tag="firesteel.repair-undo/1"):
    """`firesteel audit MODEL --undo --json`"""

    model: str
    restored: tuple[str, ...]
