"""`firesteel top --json`"""

from __future__ import annotations

from typing import Literal

from firesteel.gateway.state import GpuStatus, MemoryStatus, ModelStatus
from firesteel.library.documents.document import Document


class TopJson(Document, kw_only=True):
    """`firesteel top --json`"""

    document: Literal["firesteel.top/1"] = "firesteel.top/1"
    url: str
    version: str
    models: tuple[ModelStatus, ...]
    memory: MemoryStatus
    gpu: GpuStatus | None
    waiting: int
    """Requests that wait, for all models."""
