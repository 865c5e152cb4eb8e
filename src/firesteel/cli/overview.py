"""Bare `firesteel`: this host in five lines, what fits it best, what to type next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from firesteel.cli import options
from firesteel.cli.output.invocation import typed
from firesteel.cli.output.show import Row, grid, host_rows, out, speed_band
from firesteel.library import documents, plans

if TYPE_CHECKING:
    from firesteel.planner.propose import Proposal


def show(as_json: bool) -> None:
    found = plans.overview()
    if as_json:
        options.print_json(documents.services.overview_json(found))
        return
    services = ", ".join(f"{service.name} ({service.phase}) {service.url}" for service in found.running)
    more: list[Row] = [
        ("fits", _best(found.fitting)),
        ("running", services or "nothing"),
        ("next", typed(found.next)),
    ]
    out.print(grid([*host_rows(found.host), *more]))


def _best(fitting: tuple[Proposal, ...]) -> str:
    if not fitting:
        return "nothing in the catalog; `firesteel models` shows why"
    speed = fitting[0].plan.speed
    estimate = f", about {speed_band(speed.decode_tokens_per_s)} estimated" if speed else ""
    more = f"; {len(fitting) - 1} more" if len(fitting) > 1 else ""
    return f"{fitting[0].name}{estimate}{more}"
