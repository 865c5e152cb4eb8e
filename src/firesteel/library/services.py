"""Services as `ps` and bare `firesteel` show them: what runs, where, and what is wrong with it."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from firesteel.edge.home import find_home
from firesteel.gateway.address import Address, read_address
from firesteel.library import run
from firesteel.run.report import LiveFigures, read_figures
from firesteel.run.service import ClusterStatus, Service, after_death, death, hang_of, read_status
from firesteel.values import Value

if TYPE_CHECKING:
    from firesteel.facts.host.gpus import GpuReading
    from firesteel.rules.host.findings import HostFinding

Phase = Literal[
    "starting", "ready", "hung", "stopping", "unkept", "dead", "not running", "answers", "does not answer"
]
"""The last three: of a service file, what is not started, and what is at a `url`."""
_TIMEOUT_S = 3
_ANSWERS = {200, 401, 403}
"""A server that asks for a key answers, too."""


class ServiceStatus(Value):
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


class ServiceList(Value):
    """What runs on this host now."""

    services: tuple[ServiceStatus, ...]
    gateway: Address | None = None
    alarms: tuple[HostFinding, ...] = ()
    """What is wrong with the GPU and its host while something runs on it."""
    gpu: GpuReading | None = None


def service_statuses(path: Path | None = None) -> ServiceList:
    """What `ps` prints of the services that `run.services` finds; with a service file, also which of its
    models do not run, and whether a `url` answers."""
    found = run.services()
    live = read_figures(found)
    rows = tuple(service_status(service, live.get(service.name)) for service in found)
    if path:
        rows = _with_file(path, rows)
    gateway = read_address(find_home())
    if not any(row.pid for row in rows):
        return ServiceList(rows, gateway)
    from firesteel.edge.host.nvidia_smi import read_gpu  # runs nvidia-smi
    from firesteel.run.preflight import host_alarms  # loads the checks of `doctor`

    return ServiceList(rows, gateway, host_alarms(), read_gpu())


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


def _with_file(path: Path, rows: tuple[ServiceStatus, ...]) -> tuple[ServiceStatus, ...]:
    """The file's models in its order; services that are not in it come last."""
    from firesteel.edge import files
    from firesteel.service_file import asks, read_service_file  # loads PyYAML

    file = read_service_file(str(path), files.read_text(path, next="firesteel ps, to list what runs"))
    urls = {name: entry.addresses[0] for name, entry in file.models.items() if entry.addresses}
    by_url = asyncio.run(_ask(urls)) if urls else {}
    ours = {
        name: ServiceStatus(
            name,
            "not running",
            f"http://127.0.0.1:{ask.port}/v1" if ask.port else "",
            next=f"firesteel up -f {shlex.quote(str(path))} {name}",
        )
        for name, ask in asks(file).items()
    }
    running = {row.name: row for row in rows}
    ordered = {name: by_url.get(name) or ours[name] for name in file.models}
    return tuple({**ordered, **running}.values())


async def _ask(urls: Mapping[str, str]) -> dict[str, ServiceStatus]:
    """All at once, so that several servers that hang cost one timeout."""
    answers = await asyncio.gather(*(_answers(url) for url in urls.values()))
    return {
        name: ServiceStatus(name, "answers" if answered else "does not answer", url)
        for (name, url), answered in zip(urls.items(), answers, strict=True)
    }


async def _answers(url: str) -> bool:
    from firesteel.edge.http import engine_client  # slow to load; only a file with a `url` needs it

    root = url.rstrip("/").removesuffix("/v1")
    for path in ("/health", "/v1/models"):
        status = await engine_client.status(root + path, timeout_s=_TIMEOUT_S)
        if status in _ANSWERS or status is None:
            return status is not None
    return False


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
        return death(service.state), after_death(service)
    if service.phase == "hung":
        return hang_of(service.state), f"firesteel logs {name}; it is restarted if that lasts"
    if service.state and service.state.why:  # the engine died, and the supervisor is starting it again
        return service.state.why, f"firesteel logs {name}"
    return None, None
