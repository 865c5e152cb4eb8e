"""`down`: stop, and wait until the processes are gone and the memory is back."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

from firesteel.edge.docker.containers import container_exists, last_line, require_docker
from firesteel.edge.home import Home, Locked, lock, remove
from firesteel.edge.host import process
from firesteel.edge.host.memory import meminfo
from firesteel.errors import FiresteelError
from firesteel.facts.host.hardware import Meminfo
from firesteel.launch import container_name
from firesteel.run.events import Event, PhaseDone, PhaseProgress
from firesteel.run.service import (
    FILES,
    Service,
    current_state,
    end_leftovers,
    folder_of,
    is_supervised,
    load,
    read_spec,
    supervisor_of,
)
from firesteel.run.supervise import boot
from firesteel.run.supervise.guard import memory_is_back
from firesteel.units import show_bytes

_POLL_S = 0.05
_MEMORY_BACK_S = 15
_WORK_LOCK_S = 60


async def stop(service: Service) -> AsyncGenerator[Event]:
    """Stop a service and remove its files. An `up` in progress sees its engine go and gives up."""
    async with aclosing(stop_processes(service)) as events:
        async for event in events:
            yield event
    if service.spec.at_boot:
        await boot.disable(service.name)
        yield PhaseDone("stop", f"{service.name} no longer starts when the machine boots")
    await _remove_files_of(service)


async def stop_processes(service: Service) -> AsyncGenerator[Event]:
    """Stop the supervisor, which stops the engine, and wait for both and for the memory. Keeps the files."""
    before = meminfo()
    held_bytes = _held_bytes(service, before.available_bytes)
    stop_command = service.spec.stop
    if not service.spec.start and container_exists(service.name):  # its spec cannot be read
        stop_command = ("docker", "stop", container_name(service.name))
    is_freed_at_exit = not stop_command and frees_at_exit(service)
    yield PhaseProgress("stop", f"stopping {service.name}")
    await _stop_and_wait(service)
    if not stop_command:
        end_leftovers(service.folder)
    else:
        await _stop_container(service, stop_command)
    text = f"{service.name} has stopped"
    if held_bytes:
        is_back = is_freed_at_exit or await _wait_for_memory(before, held_bytes)
        text += f", {show_bytes(held_bytes)} {'are free again' if is_back else 'are not free yet'}"
    yield PhaseDone("stop", text)


def frees_at_exit(service: Service) -> bool:
    """Whether its memory is free as soon as its processes have ended: no container, no GPU driver holds any.

    Then the host's counter says nothing more: whatever else runs moves it, too."""
    engine = service.state.engine if service.state else None
    return not service.spec.stop and not (engine and process.has_gpu(engine))


def freed_bytes(service: Service) -> int:
    """What the host would get back if the service stopped."""
    if service.phase == "dead":
        return 0
    if service.spec.stop:  # a container: its processes do not show what CUDA took
        lost = max(0, service.spec.available_bytes - meminfo().available_bytes)
        return min(service.spec.expected_bytes, lost)
    engine = service.state.engine if service.state else None
    return process.memory(engine).own_bytes if engine else 0


def _held_bytes(service: Service, available_bytes: int) -> int:
    engine = service.state.engine if service.state else None
    held = process.memory(engine).own_bytes if engine else 0
    if service.phase == "dead":
        return held
    # No process shows what a container holds: it is what the host lost since the start, at most the plan.
    lost = max(0, service.spec.available_bytes - available_bytes)
    return held + min(service.spec.container_bytes, lost)


async def _stop_and_wait(service: Service) -> None:
    """Stop the supervisor, also one that has only just been started, and wait until both are gone."""
    kill_at = process.uptime() + 3 * service.spec.stop_grace_s
    deadline = process.uptime() + 5 * service.spec.stop_grace_s
    signalled: set[process.Pid] = set()
    while process.uptime() < deadline:
        state = current_state(service.folder)
        supervisor = state.supervisor if state else supervisor_of(service.folder)
        pids = [pid for pid in (supervisor, state.engine if state else None) if pid]
        if not is_supervised(service.folder) and not any(process.is_alive(pid) for pid in pids):
            return
        if supervisor and supervisor not in signalled:
            process.send(supervisor, signal.SIGTERM)
            process.send(supervisor, signal.SIGCONT)  # a process in SIGSTOP would not handle the SIGTERM
            signalled.add(supervisor)
        if process.uptime() > kill_at:
            for pid in pids:
                process.send(pid, signal.SIGKILL)
        await asyncio.sleep(_POLL_S)
    left = next((pid.number for pid in pids if process.is_alive(pid)), None)
    hint = f"kill -9 {left}, or with sudo" if left else f"firesteel down {service.name} again"
    raise FiresteelError(f"{service.name} does not stop", next=hint)


async def _stop_container(service: Service, stop_command: tuple[str, ...]) -> None:
    """A killed supervisor could not stop its container; stopping one that is already gone does no harm."""
    code, output = await process.run(*stop_command)
    # `docker stop` returns before the container is removed, and its name free for the next start.
    deadline = process.uptime() + service.spec.stop_grace_s
    while container_exists(service.spec.name):
        if process.uptime() > deadline:
            what = f"the container of {service.name} does not stop: {last_line(output)}"
            raise FiresteelError(what, next=f"docker rm --force {container_name(service.name)}")
        await asyncio.sleep(_POLL_S)
    if code:
        await require_docker()  # a docker that does not answer names no container, so one may still run


async def _wait_for_memory(before: Meminfo, held_bytes: int) -> bool:
    deadline = process.uptime() + _MEMORY_BACK_S
    while not memory_is_back(before, meminfo(), held_bytes):
        if process.uptime() > deadline:
            return False
        await asyncio.sleep(_POLL_S)
    return True


async def _remove_files_of(service: Service) -> None:
    """Remove its files, unless they belong to a newer start by now."""
    deadline = process.uptime() + _WORK_LOCK_S
    while True:
        try:
            with lock(service.folder / "work.lock"):
                if read_spec(service.folder) in (service.spec, None):
                    remove_files(service.folder)
                return
        except Locked:
            if process.uptime() > deadline:
                raise FiresteelError(
                    f"another firesteel command is working on {service.name}", next="firesteel ps"
                ) from None
        await asyncio.sleep(_POLL_S)


async def stop_and_remove(home: Home, name: str) -> Event | None:
    """What runs under the name, of a start that failed or was another. The event says what was stopped."""
    service = load(home, name)
    events = [event async for event in stop_processes(service)] if service else []
    remove_files(folder_of(home, name))
    return events[-1] if events else None


def remove_files(folder: Path) -> None:
    """All but the log. The caller holds the folder's work.lock, and nothing runs any more."""
    for name in FILES:
        remove(folder / name)
