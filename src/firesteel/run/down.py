"""`down`: stop, and wait until the processes are gone and the memory is back."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from firesteel.edge.docker.containers import container_is_there
from firesteel.edge.files.home import Locked, lock
from firesteel.edge.host import process
from firesteel.edge.host.memory import meminfo
from firesteel.errors import FiresteelError
from firesteel.run.events import Event, PhaseDone, PhaseProgress
from firesteel.run.service import Service, is_supervised, read_spec, read_state
from firesteel.run.supervise import boot
from firesteel.units import show_bytes

_POLL_S = 0.05
_MEMORY_BACK_S = 15
_MEMORY_SHARE = 0.5
"""Of what the engine held, how much must be seen to come back: other processes move the same counter."""
_WORK_LOCK_S = 60


@dataclass(frozen=True, slots=True)
class _Before:
    available_bytes: int
    held_bytes: int


async def stop(service: Service) -> AsyncIterator[Event]:
    """Ends a service. An `up` that is under way sees its engine go and gives up; then its files go too."""
    async for event in stop_processes(service):
        yield event
    if service.spec.at_boot:
        await boot.disable(service.name)
        yield PhaseDone("stop", f"{service.name} no longer starts with the machine")
    await _forget(service)


async def stop_processes(service: Service) -> AsyncIterator[Event]:
    """Ends the supervisor, which ends the engine, and waits for both and for the memory. Leaves the files."""
    before = _before(service)
    yield PhaseProgress("stop", f"stopping {service.name}")
    await _until_gone(service)
    if service.spec.stop:
        # A supervisor that was killed could not stop its container; stopping one that is gone does no harm.
        await process.run(*service.spec.stop)
        await _until_removed(service)
    came_back = not before.held_bytes or await _until_memory_is_back(before)
    words = f"{service.name} is gone"
    if before.held_bytes:
        held = show_bytes(before.held_bytes)
        words += f", {held} {'are back' if came_back else 'not seen to come back yet'}"
    yield PhaseDone("stop", words)


def _before(service: Service) -> _Before:
    engine = service.state.engine if service.state else None
    available = meminfo().available_bytes
    held = process.memory(engine).own_bytes if engine else 0
    return _Before(available, held + _container_bytes(service, available))


def _container_bytes(service: Service, available_bytes: int) -> int:
    """What a living container seems to hold: what the host lost since the start, the plan at most."""
    lost = max(0, service.spec.available_bytes - available_bytes)
    return 0 if service.phase == "dead" else min(service.spec.container_bytes, lost)


async def _until_gone(service: Service) -> None:
    """Stop the supervisor as soon as its pid is known, and wait until it and the engine are gone."""
    certain = process.uptime() + 3 * service.spec.stop_grace_s
    deadline = process.uptime() + 5 * service.spec.stop_grace_s
    told: set[process.Pid] = set()
    while process.uptime() < deadline:
        state = read_state(service.folder)
        pids = [pid for pid in (state.supervisor, state.engine) if pid] if state else []
        if not is_supervised(service.folder) and not any(process.is_alive(pid) for pid in pids):
            return
        if state and state.supervisor not in told:
            process.send(state.supervisor, signal.SIGTERM)
            process.send(state.supervisor, signal.SIGCONT)  # a stopped process hears nothing
            told.add(state.supervisor)
        if process.uptime() > certain:
            for pid in pids:
                process.send(pid, signal.SIGKILL)
        await asyncio.sleep(_POLL_S)
    left = next((pid.number for pid in pids if process.is_alive(pid)), None)
    hint = f"kill -9 {left}, or with sudo" if left else f"firesteel down {service.name}, once more"
    raise FiresteelError(f"{service.name} does not go", next=hint)


async def _until_removed(service: Service) -> None:
    """Until the name is free for the next start; docker removes a container after it has stopped it."""
    deadline = process.uptime() + service.spec.stop_grace_s
    while process.uptime() < deadline and container_is_there(service.spec.name):
        await asyncio.sleep(_POLL_S)


async def _until_memory_is_back(before: _Before) -> bool:
    wanted = before.available_bytes + before.held_bytes * _MEMORY_SHARE
    deadline = process.uptime() + _MEMORY_BACK_S
    while meminfo().available_bytes < wanted:
        if process.uptime() > deadline:
            return False
        await asyncio.sleep(_POLL_S)
    return True


async def _forget(service: Service) -> None:
    """Removes its files, unless they are another's by now."""
    deadline = process.uptime() + _WORK_LOCK_S
    while True:
        try:
            with lock(service.folder / "work.lock"):
                if read_spec(service.folder) == service.spec:
                    remove_files(service.folder)
                return
        except Locked:
            if process.uptime() > deadline:
                raise FiresteelError(
                    f"another firesteel is at work on {service.name}", next="firesteel ps"
                ) from None
        await asyncio.sleep(_POLL_S)


def remove_files(folder: Path) -> None:
    """All but the log. Only for whoever holds the folder's work.lock, and when nothing runs any more."""
    for name in ("spec.json", "state.json", "report.json", "expect.json"):
        (folder / name).unlink(missing_ok=True)
