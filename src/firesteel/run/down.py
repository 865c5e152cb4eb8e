"""`down`: stop, and wait until the processes are gone and the memory is back."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass

from firesteel.edge import process
from firesteel.edge.home import is_locked
from firesteel.edge.memory import meminfo
from firesteel.errors import FiresteelError
from firesteel.run.events import Doing, Done, Event
from firesteel.run.service import Service
from firesteel.units import show_bytes

_POLL_S = 0.05
_MEMORY_BACK_S = 15
_MEMORY_SHARE = 0.5
"""Of what the engine held, how much must be seen to come back: other processes move the same counter."""


@dataclass(frozen=True, slots=True)
class _Before:
    available_bytes: int
    held_bytes: int


async def stop(service: Service) -> AsyncIterator[Event]:
    """Ends the keeper, which ends the engine. Its log stays; everything else of it goes."""
    state = service.state
    pids = [pid for pid in (state.keeper, state.engine) if pid] if state else []
    available = meminfo().available_bytes
    held = sum(process.memory(pid).own_bytes for pid in pids[1:]) + _container_bytes(service, available)
    before = _Before(available, held)
    yield Doing("stop", f"stopping {service.name}")
    if state:
        process.send(state.keeper, signal.SIGTERM)
    await _until_gone(service, pids)
    if service.spec.stop:
        # A keeper that was killed could not stop its container; stopping one that is gone does no harm.
        await process.run(*service.spec.stop)
    came_back = not held or await _until_memory_is_back(before)
    for name in ("spec.json", "state.json", "report.json"):
        (service.folder / name).unlink(missing_ok=True)
    words = f"{service.name} is gone"
    if held:
        words += f", {show_bytes(held)} {'are back' if came_back else 'not seen to come back yet'}"
    yield Done("stop", words)


def _container_bytes(service: Service, available_bytes: int) -> int:
    """What a living container seems to hold: what the host lost since the start, the plan at most."""
    lost = max(0, service.spec.available_bytes - available_bytes)
    return 0 if service.phase == "dead" else min(service.spec.container_bytes, lost)


async def _until_gone(service: Service, pids: list[process.Pid]) -> None:
    deadline = process.now() + 5 * service.spec.stop_grace_s
    while process.now() < deadline:
        if not any(process.is_alive(pid) for pid in pids) and not is_locked(service.folder / "keeper.lock"):
            return
        await asyncio.sleep(_POLL_S)
    for pid in pids:
        process.send(pid, signal.SIGKILL)
    await asyncio.sleep(1)
    left = [pid.number for pid in pids if process.is_alive(pid)]
    if left:
        raise FiresteelError(
            f"{service.name} does not go: process {left[0]} is still there", next=f"sudo kill -9 {left[0]}"
        )


async def _until_memory_is_back(before: _Before) -> bool:
    wanted = before.available_bytes + before.held_bytes * _MEMORY_SHARE
    deadline = process.now() + _MEMORY_BACK_S
    while meminfo().available_bytes < wanted:
        if process.now() > deadline:
            return False
        await asyncio.sleep(_POLL_S)
    return True
