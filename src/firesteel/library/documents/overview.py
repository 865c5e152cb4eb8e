"""Bare `firesteel --json`."""

from __future__ import annotations

from typing import Literal

from firesteel.library.documents.document import Document, HostJson
from firesteel.library.services import ServiceStatus


class OverviewJson(Document):
    """`firesteel --json`"""

    document: Literal["firesteel.overview/1"] = "firesteel.overview/1"
    host: HostJson
    fits: tuple[str, ...]
    best: str | None
    running: tuple[ServiceStatus, ...]
    next: str
