"""`firesteel top --json`"""

from __future__ import annotations

from typing import Literal

from firesteel.library.documents.document import Document
from firesteel.screens.top.snapshot import TopGpu, TopMemory, TopModel


class TopJson(Document):
    """`firesteel top --json`"""

    document: Literal["firesteel.top/1"] = "firesteel.top/1"
    url: str
    version: str
    models: tuple[TopModel, ...]
    memory: TopMemory
    gpu: TopGpu | None
    waiting: int
    """Requests that wait, for all models."""
