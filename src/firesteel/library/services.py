"""Services as `ps` and bare `firesteel` show them: what runs, where, and what is wrong with it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from firesteel.dataclass import dataclass
from firesteel.edge.files.home import Home
from firesteel.edge.host.process import port_is_free, port_owner
from firesteel.run.cluster_status import ClusterStatus, read_status
from firesteel.run.live_figures import LiveFigures
from firesteel.run.service import Service, death, hang_of, load

if TYPE_CHECKING:
    from firesteel.proposals import Proposal

Phase = Literal[
    "starting", "ready", "hung", "stopping", "unkept", "dead", "not running", "answers", "does not answer"
]
"""The last three: of a service file, what is not started, and what is at a `url`."""


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    name: str
    phase: Phase
    url: str
    pid: int | None = None
    started_at: float | None = None
    restarts: int = 0
    at_boot: bool = False
    why: str | None = None
    """What is wrong with it."""
    next: str | None = None
    """What to type."""
    log: str | None = None
    cluster: ClusterStatus | None = None
    """Of a service over several hosts: what its runner sees of each of them."""
    figures: LiveFigures | None = None
    """While it is ready: how fast it answers, how full its cache is."""


def service_status(service: Service, figures: LiveFigures | None = None) -> ServiceStatus:
    state = service.state
    engine = state.engine if state and service.phase not in ("dead", "unkept") else None
    why, next_ = _problem(service)
    return ServiceStatus(
        name=service.name,
        phase=service.phase,
        url=f"{service.spec.url}/v1" if service.spec.url else "",
        pid=engine.number if engine else None,
        started_at=state.started_at if state else None,
        restarts=state.restarts if state else 0,
        at_boot=service.spec.at_boot,
        why=why,
        next=next_,
        log=str(service.log),
        cluster=read_status(service.folder) if service.phase != "dead" else None,
        figures=figures,
    )


def what_is_left(home: Home, proposals: Iterable[Proposal]) -> str:
    """What runs after an interruption, as a look at processes and ports shows, as a sentence."""
    return "; ".join(_what_is_left(home, proposal) for proposal in proposals)


def _what_is_left(home: Home, proposal: Proposal) -> str:
    name, port = proposal.name, proposal.plan.launch.port
    service = load(home, name)
    if service is None or service.phase == "dead":
        owner = None if port_is_free(port) else port_owner(port) or "another program"
        return f"{name} does not run" + (f" (port {port} is in use by {owner})" if owner else "")
    if service.phase == "ready":
        return f"{name} is up on {service.spec.url}/v1, and `firesteel down {name}` stops it"
    return f"{name} is {service.phase}, and `firesteel down {name}` stops it"


def _problem(service: Service) -> tuple[str | None, str | None]:
    """What is wrong with it, and what to type."""
    name = service.name
    if not service.spec.start and service.phase != "dead":
        return "it runs, but its spec.json cannot be read", f"firesteel down {name}"
    if service.phase == "unkept":
        return (
            "its supervisor was killed; the container still runs, without a guard",
            f"firesteel down {name}",
        )
    if service.phase == "dead" and service.state is None and os.path.lexists(service.folder / "state.json"):
        return "state.json cannot be read, so how it ended is not known", service.spec.again
    if service.phase == "dead":
        return death(service.state), f"firesteel logs {name}, then {service.spec.again}"
    if service.phase == "hung":
        return hang_of(service.state), f"firesteel logs {name}; it is restarted if that lasts"
    if service.state and service.state.why:  # the engine died, and the supervisor is starting it again
        return service.state.why, f"firesteel logs {name}"
    return None, None
