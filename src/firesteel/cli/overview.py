"""Bare `firesteel`: this host in five lines, what fits it best, what to type next."""

from __future__ import annotations

from firesteel.cli.options import common
from firesteel.cli.output.invocation import typed
from firesteel.cli.output.recipe_rows import Row, speed_band
from firesteel.cli.output.show import grid, host_rows, out
from firesteel.launch import Ask
from firesteel.library import documents, plans, run
from firesteel.library.services import service_status
from firesteel.proposals import Proposal
from firesteel.run.service import Service


def show(as_json: bool) -> None:
    host = plans.host()
    fitting = [proposal for proposal in plans.propose(Ask(), host) if proposal.can_run]
    running = run.services()
    next_command = _next(fitting, running, has_gpu=bool(host.gpus))
    if as_json:
        common.print_json(
            documents.overview.OverviewJson.of(
                host=host,
                fits=tuple(proposal.name for proposal in fitting),
                best=fitting[0].name if fitting else None,
                running=tuple(map(service_status, running)),
                next=next_command,
            )
        )
        return
    services = ", ".join(f"{service.name} ({service.phase}) {service.spec.url}/v1" for service in running)
    more: list[Row] = [
        ("fits", _best(fitting)),
        ("running", services or "nothing"),
        ("next", typed(next_command)),
    ]
    out.print(grid([*host_rows(host), *more]))


def _best(fitting: list[Proposal]) -> str:
    if not fitting:
        return "nothing in the catalog; `firesteel models` shows why"
    speed = fitting[0].plan.speed
    estimate = f", about {speed_band(speed.decode_tokens_per_s)} estimated" if speed else ""
    more = f"; {len(fitting) - 1} more" if len(fitting) > 1 else ""
    return f"{fitting[0].name}{estimate}{more}"


def _next(fitting: list[Proposal], running: list[Service], has_gpu: bool) -> str:
    ready = [service for service in running if service.phase == "ready"]
    if ready:
        return f"firesteel verify {ready[0].name}"
    if running:
        return "firesteel ps"
    if not fitting:
        return "firesteel models"
    return f"firesteel up {fitting[0].name}" if has_gpu else "firesteel up"
