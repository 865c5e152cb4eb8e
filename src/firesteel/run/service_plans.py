"""The models of one service file, planned together before the first one starts."""

from __future__ import annotations

from collections.abc import Iterable

from firesteel.errors import DoesNotFit
from firesteel.facts.host.hardware import Host
from firesteel.planner.propose import Proposal
from firesteel.run.service import Service
from firesteel.service_file import ServiceFile, chosen
from firesteel.units import show_bytes
from firesteel.values import replace
from firesteel.workspace import Workspace


def plan_all(
    file: ServiceFile, names: tuple[str, ...], workspace: Workspace, running: Iterable[Service]
) -> list[Proposal]:
    """The best way to serve each model, in the file's order, in the memory that those before it leave."""
    ready = {service.name for service in running if service.phase == "ready"}
    external_bytes = sum(entry.memory or 0 for entry in file.models.values() if entry.addresses)
    ceiling, host = file.memory.ceiling, workspace.host()
    available = host.room_bytes
    if ceiling is not None:
        available = min(available, max(0, ceiling - external_bytes))
    planned: list[Proposal] = []
    taken = 0
    for name, ask in chosen(file, names).items():
        rest = replace(host, memory_available_bytes=host.keep_free_bytes + max(0, available - taken))
        # What runs already holds its memory: it is planned on the host as it is.
        propose = workspace.propose_joined if ask.sparks else workspace.propose
        best = propose(ask, host if name in ready else rest)[0]
        if not best.plan.fits:
            raise _does_not_fit(best, planned, rest, ceiling, external_bytes)
        planned.append(best)
        taken += 0 if name in ready else round(best.plan.memory.needed.expected)
    return planned


def _does_not_fit(
    best: Proposal, planned: list[Proposal], rest: Host, ceiling: int | None, external_bytes: int
) -> DoesNotFit:
    needed = show_bytes(round(best.plan.memory.needed.expected))
    beside = f" beside {', '.join(proposal.name for proposal in planned)}" if planned else ""
    under = f" under the ceiling of {show_bytes(ceiling)}" if ceiling else ""
    external = f", of which {show_bytes(external_bytes)} are for models at a `url`" if external_bytes else ""
    return DoesNotFit(
        f"{best.name} needs {needed}, and{beside} there is room for {show_bytes(rest.room_bytes)}"
        f"{under}{external}",
        next=f"start fewer of them by name, or give {best.name} a smaller `context`",
    )
