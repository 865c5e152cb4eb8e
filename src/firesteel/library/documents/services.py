"""What `ps` and bare `firesteel` print with `--json`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from firesteel.facts.host.gpus import GpuReading
from firesteel.gateway.address import Address
from firesteel.library.documents.document import Document, HostJson
from firesteel.library.services import ServiceStatus
from firesteel.rules.host.check import CheckLevel

if TYPE_CHECKING:
    from firesteel.library.plans import Overview
    from firesteel.library.services import ServiceList


class HostAlarmJson(Document):
    check: str
    level: CheckLevel
    says: str
    evidence: str
    do: str | None


class PsJson(Document, tag_field="document", tag="firesteel.ps/1"):
    """`firesteel ps --json`"""

    services: tuple[ServiceStatus, ...]
    gateway: Address | None
    """Where `firesteel serve` listens, while it runs."""
    host: tuple[HostAlarmJson, ...] = ()
    """What `doctor` finds wrong with the GPU and its host now, while something runs on it."""
    gpu: GpuReading | None = None
    """Its temperature and power now; null: there is none, or nothing runs."""


def ps_json(found: ServiceList) -> PsJson:
    return PsJson.of(found, host=found.alarms)


class OverviewJson(Document, tag_field="document", tag="firesteel.overview/1"):
    """`firesteel --json`"""

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
