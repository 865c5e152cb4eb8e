"""Bare `firesteel --json`."""

from __future__ import annotations

from typing import Literal

from firesteel.library.documents.document import Document, HostJson
from firesteel.library.plans import Overview
from firesteel.library.services import ServiceStatus


class OverviewJson(Document, kw_only=True):
    """`firesteel --json`"""

    document: Literal["firesteel.overview/1"] = "firesteel.overview/1"
    host: HostJson
    fits: tuple[str, ...]
    best: str | None
    running: tuple[ServiceStatus, ...]
    next: str


def overview_json(found: Overview) -> OverviewJson:
    return OverviewJson.of(
        host=found.host,
        fits=tuple(proposal.name for proposal in found.fitting),
        best=found.fitting[0].name if found.fitting else None,
        running=found.running,
        next=found.next,
    )
