"""Starting an engine under a keeper, and waiting until it answers or says why it will not."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from firesteel import engines
from firesteel.edge import http, process
from firesteel.edge.home import Home
from firesteel.errors import FiresteelError, HostNotReady
from firesteel.launch import EngineName
from firesteel.run.events import Doing, Event
from firesteel.run.service import Spec, death, folder_of, last_lines, load

EMBEDDED_LIMIT_S = 600
CONTAINER_LIMIT_S = 6 * 3600
"""An engine in a container fetches its weights while it starts: 75 GB at 100 Mbit/s take 100 minutes."""
_POLL_S = 0.1
_REMEDIES = {
    "could not select device driver": "sudo nvidia-ctk runtime configure --runtime=docker; restart docker",
}
"""What the engine's last words mean for the host, and what to type."""


def start_keeper(folder: Path) -> int:
    """Its process number. Not from the current folder: what lies there is not ours to import."""
    words = [sys.executable, "-P", "-m", "firesteel.run.keeper", str(folder)]
    return process.start_detached(words, folder / "keeper.log")


async def until_healthy(
    home: Home, spec: Spec, engine: EngineName, has_ended: Callable[[], bool]
) -> AsyncIterator[Event]:
    """Follows the engine's log; `has_ended` tells when its keeper is no more."""
    limit_s = CONTAINER_LIMIT_S if spec.stop else EMBEDDED_LIMIT_S
    deadline, read_bytes = process.uptime() + limit_s, 0
    while process.uptime() < deadline:
        keeper_ended = has_ended()
        text, read_bytes = _news(folder_of(home, spec.name) / "engine.log", read_bytes)
        for line in text.replace("\r", "\n").splitlines():
            if words := engines.phase(engine, line):
                yield Doing("launch", words)
        if keeper_ended:
            raise failed_start(home, spec)
        service = load(home, spec.name)
        if service and service.state and await http.is_healthy(spec.url):
            return
        await asyncio.sleep(_POLL_S)
    raise FiresteelError(
        f"{spec.name} did not get ready within {limit_s} s", next=f"firesteel logs {spec.name}"
    )


def _news(log: Path, start: int) -> tuple[str, int]:
    """Whole lines that came since, and where to go on."""
    try:
        with log.open("rb") as file:
            file.seek(start)
            data = file.read()
    except FileNotFoundError:
        return "", start
    whole = data[: max(data.rfind(b"\n"), data.rfind(b"\r")) + 1]
    return whole.decode(errors="replace"), start + len(whole)


def failed_start(home: Home, spec: Spec) -> FiresteelError:
    service = load(home, spec.name)
    lines = last_lines(service.log, 1000) if service and service.log.exists() else []
    why = engines.complaint(lines)
    what = f"{spec.name} did not start: {death(service.state if service else None)}"
    if why is None:
        return FiresteelError(what, next=f"firesteel logs {spec.name}")
    for sign, remedy in _REMEDIES.items():
        if sign in why:
            return HostNotReady(f"{what} ({why})", next=remedy)
    return FiresteelError(f"{what} ({why})", next=f"firesteel logs {spec.name}")
