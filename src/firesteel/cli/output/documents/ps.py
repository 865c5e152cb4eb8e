"""`firesteel ps --json`"""

from __future__ import annotations

from typing import Literal

from firesteel.cli.output.services import ServiceStatus
from firesteel.facts.documents import Document
from firesteel.gateway.address import Address


class PsJson(Document):
    """`firesteel ps --json`"""

    document: Literal["firesteel.ps/1"] = "firesteel.ps/1"
    services: tuple[ServiceStatus, ...]
    gateway: Address | None
    """Where `firesteel serve` listens, while it runs."""
