"""One job in a process of its own: read a service file, bring a model up, or stop one.

    python -m firesteel.gateway.loader.job read FILE
    python -m firesteel.gateway.loader.job load '{"name": "coder", "recipe": ..., "port": 8000, "path": FILE}'
    python -m firesteel.gateway.loader.job unload NAME

Planning, warming and verifying take a core for seconds and 200 MB; the process that carries the streams has
neither to spare. Out come lines of JSON, one object each:

    {"doing": {"phase": "launch", "words": "loading weights, 9 of 20 shards", "eta_s": 120}}
    {"done":  {"phase": "verify", "words": "..."}}
    {"read": {...}} | {"up": {...}} | {"gone": {...}} | {"failed": {"what": ..., "next": ..., "kind": ...}}

and the last is the result; the exit code is the one that `firesteel` itself would give. A load lives no
longer than whoever asked for it: when its stdin ends, or at SIGTERM, it takes back what it started and goes.
A stop is carried to its end. `load` is told what to start in the words that `read` gave out, not the file's
name: a file that changes in between must not start something that nobody has counted.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from firesteel import catalog as catalog_room
from firesteel.edge.files import text_files
from firesteel.edge.files.home import Home, catalog_files, find_home, is_locked
from firesteel.edge.files.measured_memory import read_measured_memory
from firesteel.edge.host import process
from firesteel.edge.host.machine import local_host
from firesteel.edge.host.memory import meminfo
from firesteel.errors import FiresteelError, UsageError
from firesteel.facts import Host
from firesteel.gateway.discovery import identity, outside_identity, running_model
from firesteel.gateway.loader.duration import LoadClock, load_time
from firesteel.gateway.service_config import ModelConfig, Reason, ServiceConfig
from firesteel.launch import Ask
from firesteel.planner import launch_key
from firesteel.rules import Proposal, insist, propose
from firesteel.run import (
    LOOPBACK,
    PhaseDone,
    PhaseProgress,
    PlanReady,
    RunOptions,
    Service,
    ServiceReady,
    adopt_all,
    all_services,
    bring_up,
    stop,
)
from firesteel.run.start.listen import reached_at
from firesteel.service_file import ModelEntry, ServiceFile, asks, read_service_file
from firesteel.units import show_bytes

_UNKNOWN_LOAD_S = 60.0
"""For the schedule's arithmetic; nobody is told of it."""
_POLL_S = 0.2
_OTHERS_S = 6 * 3600
"""As long as `up` itself may take."""


_said_to = 1


def say(line: Mapping[str, Any]) -> None:
    """Nobody listens any more: no reason to stop in the middle."""
    with suppress(BrokenPipeError):
        left = json.dumps(line).encode() + b"\n"
        while left:
            left = left[os.write(_said_to, left) :]


def _alone_on_stdout() -> None:
    """What libraries and their children print is no line of ours: it goes to stderr."""
    global _said_to
    _said_to = os.dup(1)
    os.dup2(2, 1)


# --- read ---


def read(path: str, home: Home) -> ServiceConfig:
    path = str(Path(path).absolute())
    file = read_service_file(path, text_files.open_text(Path(path)))
    adopt_all(home)
    host, running = local_host(home), {each.name: each for each in all_services(home)}
    outside = sum(entry.memory or 0 for entry in file.models.values() if entry.addresses)
    ceiling = _ceiling(file, host, [running[name] for name in file.models if name in running], outside)
    rest = replace(host, memory_available_bytes=host.keep_free_bytes + max(0, ceiling - outside))
    planner = _Planner(home, rest)
    wanted = asks(file)
    return ServiceConfig(
        path=path,
        listen=file.listen,
        ceiling_bytes=ceiling,
        keep_free_bytes=host.keep_free_bytes,
        models=tuple(
            planner.served(path, entry, wanted[name]) if entry.recipe else _outside(name, entry)
            for name, entry in file.models.items()
        ),
        never_together=file.never_together,
        queue=file.queue.size,
        max_wait_s=file.queue.max_wait,
        min_dwell_s=file.queue.min_dwell,
    )


def _ceiling(file: ServiceFile, host: Host, ours: list[Service], outside_bytes: int) -> int:
    """The file's, or what the host could give if none of the file's models ran; never what it must keep."""
    most = max(0, host.memory_total_bytes - host.keep_free_bytes)
    if file.memory.ceiling is not None:
        return min(file.memory.ceiling, most)
    return min(most, host.room_bytes + sum(_held_bytes(each) for each in ours) + outside_bytes)


def _held_bytes(service: Service) -> int:
    """What the host would have more without it."""
    if service.phase == "dead":
        return 0
    if service.spec.stop:  # a container, whose processes do not show what CUDA took
        lost = max(0, service.spec.available_bytes - meminfo().available_bytes)
        return min(service.spec.expected_bytes, lost)
    engine = service.state.engine if service.state else None
    return process.memory(engine).own_bytes if engine else 0


def _outside(name: str, entry: ModelEntry) -> ModelConfig:
    urls = tuple(url.rstrip("/").removesuffix("/v1").rstrip("/") for url in entry.addresses)
    return ModelConfig(
        name,
        outside_identity(urls, entry.model, entry.key),
        urls,
        entry.memory or 0,
        is_outside=True,
        cancel=entry.cancel,
        route=entry.route or "least-busy",
        model=entry.model,
        key=entry.key,
        aliases=entry.aliases,
    )


class _Planner:
    """The catalog, this host with room for one model alone, and what earlier starts took."""

    def __init__(self, home: Home, host: Host) -> None:
        self._home, self._host = home, host
        self._catalog = catalog_room.overlay(catalog_room.shipped(), catalog_files(home))
        self._took = read_measured_memory(home)

    def ways(self, ask: Ask) -> tuple[Proposal, ...]:
        return propose(self._catalog, self._host, ask, self._took)

    def served(self, path: str, entry: ModelEntry, ask: Ask) -> ModelConfig:
        assert ask.name is not None and ask.port is not None
        url = reached_at(LOOPBACK, ask.port)
        bare = ModelConfig(
            ask.name,
            "",
            (url,),
            pinned=entry.pinned,
            preload=entry.preload,
            ttl_s=entry.ttl,
            cancel=entry.cancel,
            aliases=entry.aliases,
        )
        try:
            best = self.ways(ask)[0]
        except FiresteelError as error:
            return replace(bare, why_not=in_the_file(_why(error), ask.name, path))
        launch, objection = best.plan.launch, _objection(best)
        return replace(
            bare,
            identity=_identity(best),
            bytes=round(best.plan.memory.needed.expected),
            load_s=load_time(best, self._home).all_s or _UNKNOWN_LOAD_S,
            engine=launch.engine,
            context=best.plan.cache.context,
            users=best.plan.cache.users,
            ask={
                "name": ask.name, "recipe": ask.model, "context": ask.context, "users": ask.users,
                "port": ask.port, "path": path, "identity": _identity(best),
            },
            why_not=in_the_file(objection, ask.name, path) if objection else None,
        )  # fmt: skip


def _identity(proposal: Proposal) -> str:
    launch = proposal.plan.launch
    return identity(launch_key(launch), reached_at(LOOPBACK, launch.port), False)


def _objection(proposal: Proposal) -> Reason | None:
    try:
        insist(proposal)
    except FiresteelError as error:
        return _why(error)
    return None


def _why(error: FiresteelError) -> Reason:
    return Reason(error.what, error.next, error.kind)


def in_the_file(why: Reason, name: str, path: str) -> Reason:
    """What to type, where that is a file's line: `serve` has none of the options that `up` has."""
    option = re.fullmatch(r"--(context|users|port) ([0-9]+)", why.next)
    if not option or not path:
        return why
    return replace(why, next=f"`{option[1]}: {option[2]}` for `{name}` in {path}")


# --- load ---


@dataclass(frozen=True, slots=True)
class Job:
    """What to start; the fields of `Served.ask`."""

    name: str
    recipe: str
    port: int
    context: int | None = None
    users: int | None = None
    path: str = ""
    identity: str = ""


def read_job(text: str) -> Job:
    try:
        return Job(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise UsageError(f"no job to load: {error}", next="firesteel serve") from None


async def load(job: Job, home: Home) -> None:
    await _after_others(job, home)
    host = await asyncio.to_thread(local_host, home)
    ways = _Planner(home, host).ways(Ask(job.recipe, job.context, job.users, job.port, name=job.name))
    chosen = next((way for way in ways if _identity(way) == job.identity), ways[0])
    words = ("-f", job.path, job.name) if job.path else ()
    clock = LoadClock(load_time(chosen, home), process.uptime())
    async for event in bring_up(chosen, home, RunOptions(words=words)):
        now_s = process.uptime()
        if isinstance(event, (PhaseProgress, PhaseDone)):
            what = "doing" if isinstance(event, PhaseProgress) else "done"
            say({what: {"phase": event.phase, "words": event.text, "eta_s": clock.left_s(event, now_s)}})
        elif isinstance(event, PlanReady):
            needed = show_bytes(round(event.proposal.plan.memory.needed.expected))
            left_s = clock.took.all_s
            say({"done": {"phase": "plan", "words": f"{job.name} needs {needed}", "eta_s": left_s}})
        elif isinstance(event, ServiceReady):
            load_s = None if event.already else clock.keep(job.name, home, now_s)
            say({"up": asdict(replace(_up(job.name, home), is_found=event.already, load_s=load_s))})


def _up(name: str, home: Home) -> Any:
    service = _service(name, home)
    if service is None:
        raise FiresteelError(f"{name} came up and is gone again", next=f"firesteel logs {name}")
    return running_model(home, service)


async def _after_others(job: Job, home: Home) -> None:
    """Somebody's `up` of the same name is under way: it ends first, and what it leaves may be the answer."""
    turn, began = home.services / job.name / "work.lock", process.uptime()
    while is_locked(turn) and process.uptime() - began < _OTHERS_S:
        say({"doing": {"phase": "launch", "words": "another firesteel is starting it", "eta_s": None}})
        await asyncio.sleep(_POLL_S)


def _service(name: str, home: Home) -> Service | None:
    return next((each for each in all_services(home) if each.name == name), None)


# --- unload ---


async def unload(name: str, home: Home) -> None:
    """The result has what the host had before, and what it should get back."""
    service = _service(name, home)
    before, held = meminfo().available_bytes, _held_bytes(service) if service else 0
    if service:
        async for event in stop(service):
            if isinstance(event, (PhaseProgress, PhaseDone)):
                say({"doing": {"phase": event.phase, "words": event.text, "eta_s": None}})
    say({"gone": {"available_bytes": before, "held_bytes": held}})


# --- the process ---


def _end_with_parent() -> None:
    """Its end of the pipe closes whatever ended it; then this is told like by anybody else."""

    def watch() -> None:
        try:
            while os.read(0, 4096):  # as long as somebody holds the other end
                pass
        except OSError:
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


async def _cancellable(job: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(job)
    is_told: list[bool] = []

    def cancel_once() -> None:  # a second signal must not cut the taking back short
        if not is_told:
            is_told.append(True)
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, cancel_once)
    await task


def _read_job(path: str) -> None:
    _end_with_parent()
    say({"read": asdict(read(path, find_home()))})


def _load_job(text: str) -> None:
    job = read_job(text)
    _end_with_parent()
    try:
        asyncio.run(_cancellable(load(job, find_home())))
    except FiresteelError as error:
        why = in_the_file(_why(error), job.name, job.path)
        raise type(error)(why.what, next=why.next) from None


def _unload_job(name: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    asyncio.run(unload(name, find_home()))


_JOBS: Mapping[str, Callable[[str], None]] = {"read": _read_job, "load": _load_job, "unload": _unload_job}


def main(words: list[str]) -> int:
    try:
        if len(words) != 2 or words[0] not in _JOBS:
            raise UsageError("the loader takes a job and what it is for", next="firesteel serve")
        _JOBS[words[0]](words[1])
    except FiresteelError as error:
        say({"failed": asdict(_why(error))})
        return error.exit_code
    except (asyncio.CancelledError, KeyboardInterrupt):
        say(
            {
                "failed": asdict(
                    Reason("it was told to stop, and took back what it had started", kind="cancelled")
                )
            }
        )
        return 130
    except Exception as error:  # the gateway has clients that wait for a reason
        traceback.print_exc()
        last = f"{type(error).__name__}: {error}"[:500]
        say({"failed": asdict(Reason(f"the loader broke ({last})", "firesteel serve --debug", "broke"))})
        return 1
    return 0


if __name__ == "__main__":
    _alone_on_stdout()
    sys.exit(main(sys.argv[1:]))
