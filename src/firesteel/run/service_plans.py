"""Several models of one service file: planned together, before the first is started. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from firesteel.catalog import Catalog
from firesteel.errors import DoesNotFit
from firesteel.facts import Host
from firesteel.rules import Proposal, propose
from firesteel.run.service import Service
from firesteel.service_file import ServiceFile, chosen
from firesteel.units import show_bytes


def plan_all(
    file: ServiceFile, names: tuple[str, ...], catalog: Catalog, host: Host, running: Iterable[Service]
) -> list[Proposal]:
    """The best way for each, in the file's order, each in the room that those before it leave."""
    up = {service.name for service in running if service.phase == "ready"}
    outside = sum(entry.memory or 0 for entry in file.models.values() if entry.addresses)
    ceiling = file.memory.ceiling
    room = host.room_bytes if ceiling is None else min(host.room_bytes, max(0, ceiling - outside))
    found: list[Proposal] = []
    taken = 0
    for name, ask in chosen(file, names).items():
        left = replace(host, memory_available_bytes=host.keep_free_bytes + max(0, room - taken))
        best = propose(catalog, host if name in up else left, ask)[0]
        if not best.plan.fits:
            raise _too_many(best, found, left, ceiling, outside)
        found.append(best)
        taken += 0 if name in up else round(best.plan.memory.needed.expected)
    return found


def _too_many(
    best: Proposal, before: list[Proposal], left: Host, ceiling: int | None, outside: int
) -> DoesNotFit:
    needed = show_bytes(round(best.plan.memory.needed.expected))
    beside = f" beside {', '.join(each.name for each in before)}" if before else ""
    under = f" under the ceiling of {show_bytes(ceiling)}" if ceiling else ""
    others = f", of which {show_bytes(outside)} are for models at a `url`" if outside else ""
    room = f"room for {show_bytes(left.room_bytes)}{under}{others}"
    return DoesNotFit(
        f"{best.name} needs {needed}, and{beside} there is {room}",
        next=f"start fewer of them by name, or give {best.name} a smaller `context`",
    )
