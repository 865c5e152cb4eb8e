"""Bare `firesteel`: this machine in five lines, what fits it best, what to type next."""

from __future__ import annotations

from firesteel import library
from firesteel.cli.options import common
from firesteel.cli.output.documents import WelcomeJson
from firesteel.cli.output.fill import host_json, service_json
from firesteel.cli.output.invocation import typed
from firesteel.cli.output.show import Row, grid, host_rows, out, speed_band
from firesteel.launch import Ask
from firesteel.rules import Proposal
from firesteel.run import Service


def show(as_json: bool) -> None:
    host = library.host()
    proposals = library.propose(Ask(), host)
    running = library.services()
    fits = [each for each in proposals if each.can_run]
    type_next = _next(fits, running, has_gpu=bool(host.gpus))
    if as_json:
        common.print_json(
            WelcomeJson(
                host=host_json(host),
                fits=[each.name for each in fits],
                best=fits[0].name if fits else None,
                running=[service_json(service) for service in running],
                next=type_next,
            )
        )
        return
    more: list[Row] = [("fits", _best(fits)), ("running", _running(running)), ("next", typed(type_next))]
    out.print(grid([*host_rows(host), *more]))


def _best(fits: list[Proposal]) -> str:
    if not fits:
        return "nothing in the catalog; `firesteel models` says why"
    speed = fits[0].plan.speed
    words_ = f", about {speed_band(speed.decode_tokens_per_s)} estimated" if speed else ""
    more = f"; {len(fits) - 1} more" if len(fits) > 1 else ""
    return f"{fits[0].name}{words_}{more}"


def _running(running: list[Service]) -> str:
    return ", ".join(f"{each.name} ({each.phase}) {each.spec.url}/v1" for each in running) or "nothing"


def _next(fits: list[Proposal], running: list[Service], has_gpu: bool) -> str:
    ready = [service for service in running if service.phase == "ready"]
    if ready:
        return f"firesteel verify {ready[0].name}"
    if running:
        return "firesteel ps"
    if not fits:
        return "firesteel models"
    return f"firesteel up {fits[0].name}" if has_gpu else "firesteel up"
