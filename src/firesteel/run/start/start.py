"""Start a supervisor with its engine, and wait until the engine answers or has failed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from firesteel.edge.home import Home, make_way
from firesteel.edge.host import process
from firesteel.edge.http import engine_client
from firesteel.engines.diagnosis import diagnose
from firesteel.engines.logs import start_progress
from firesteel.errors import FiresteelError, HostNotReady, SuspectWeights
from firesteel.planner.plan import Plan
from firesteel.run.events import Event, PhaseProgress
from firesteel.run.service import (
    ServiceSpec,
    ServiceState,
    all_services,
    death,
    folder_of,
    last_lines,
    load,
    read_state,
)
from firesteel.run.start import environment, eta, start_times
from firesteel.units import show_seconds

EMBEDDED_LIMIT_S = 600
CONTAINER_LIMIT_S = 6 * 3600
"""An engine in a container may fetch its weights while it starts: 75 GB at 100 Mbit/s take 100 minutes."""
_POLL_S = 0.1
_NOT_CRASHED = (None, 0, -signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGKILL, 128 + signal.SIGTERM)
"""Exit codes of an engine that was stopped or killed; in a container a signal counts from 128."""
_ADOPT_S = 10
MAX_LINES = 20_000
_PROGRESS_S = 5.0
"""A long wait reports its progress at least this often."""


def start_supervisor(folder: Path) -> int:
    """Start it in the background and return its pid. Its engine inherits its environment."""
    # -P: modules in the current folder must not replace ours.
    argv = [sys.executable, "-P", "-m", "firesteel.run.supervise.supervisor", str(folder)]
    log = folder / "supervisor.log"
    make_way(log)
    return process.start_detached(argv, log, environment.allowed(os.environ))


def adopt_all(home: Home) -> None:
    """Start a supervisor for every container that has lost its own, so that nothing stays unguarded."""
    for service in all_services(home):
        if service.phase != "unkept":
            continue
        supervisor, deadline = start_supervisor(service.folder), process.uptime() + _ADOPT_S
        while process.uptime() < deadline and not process.has_ended(supervisor):
            state = read_state(service.folder)
            if state and process.is_alive(state.supervisor):
                break
            time.sleep(_POLL_S)


async def wait_until_healthy(
    home: Home, spec: ServiceSpec, plan: Plan, has_ended: Callable[[], bool]
) -> AsyncIterator[Event]:
    """Report progress from the engine's log; `has_ended` says whether its supervisor has ended."""
    limit_s = CONTAINER_LIMIT_S if spec.stop or spec.container_bytes else _embedded_limit_s(plan)
    began, reporter = process.uptime(), StartReporter(home, spec, plan)
    while process.uptime() - began < limit_s:
        supervisor_ended = has_ended()  # asked before the log is read, so that its last lines are not missed
        for text, left_s in reporter.updates(process.uptime() - began):
            yield PhaseProgress("launch", text, left_s)
        if supervisor_ended:
            raise start_failure(home, spec)
        service = load(home, spec.name)
        if service and service.state and await engine_client.is_healthy(spec.url):
            reporter.record(process.uptime() - began)
            return
        await asyncio.sleep(_POLL_S)
    raise FiresteelError(
        f"{spec.name} was not ready within {show_seconds(limit_s)}", next=f"firesteel logs {spec.name}"
    )


def _embedded_limit_s(plan: Plan) -> float:
    """Many times what the plan of this host says, where that is long."""
    start_up = plan.speed.start_up if plan.speed else None
    planned_s = sum(phase.seconds.high for phase in start_up.phases) if start_up else 0.0
    return max(EMBEDDED_LIMIT_S, 10 * planned_s)


class StartReporter:
    """Follows the engine's log: how far the start is, and how long it will still take."""

    def __init__(self, home: Home, spec: ServiceSpec, plan: Plan) -> None:
        self._home, self._spec, self._version = home, spec, plan.launch.version
        self._log, self._read_bytes = folder_of(home, spec.name) / "engine.log", 0
        start_up = plan.speed.start_up if plan.speed else None
        self._planned = start_up.phases if start_up else ()
        self._earlier = start_times.earlier_starts(home, spec.name, spec.engine, self._version)
        self._tracker = eta.StartTracker(spec.engine)
        self._reported_s = 0.0

    def updates(self, now_s: float) -> Iterator[tuple[str, float | None]]:
        """Pairs of text and remaining seconds."""
        text, self._read_bytes = _new_lines(self._log, self._read_bytes)
        for line in text.replace("\r", "\n").splitlines():
            if progress := start_progress(self._spec.engine, line):
                self._tracker = self._tracker.advance(progress, now_s)
                yield self._update(now_s)
        if now_s - self._reported_s > _PROGRESS_S:
            yield self._update(now_s)

    def _update(self, now_s: float) -> tuple[str, float | None]:
        self._reported_s = now_s
        left = eta.time_left(self._tracker, self._planned, self._earlier, now_s)
        text = eta.describe(self._tracker, self._planned, self._earlier, now_s)
        return text, left.expected if left else None

    def record(self, now_s: float) -> None:
        seconds = self._tracker.seconds(now_s)
        start_times.record_start(
            self._home, self._spec.name, start_times.StartTimes(self._spec.engine, self._version, seconds)
        )


def _new_lines(log: Path, start: int) -> tuple[str, int]:
    """The complete lines from byte `start` on, and where to continue."""
    try:
        with log.open("rb") as file:
            file.seek(start)
            data = file.read()
    except OSError:
        return "", start
    whole = data[: max(data.rfind(b"\n"), data.rfind(b"\r")) + 1]
    return whole.decode(errors="replace"), start + len(whole)


def has_crashed(state: ServiceState | None) -> bool:
    """The engine ended by itself; neither its supervisor nor the kernel ended it."""
    return state is not None and not state.why and state.exit_code not in _NOT_CRASHED


def start_failure(home: Home, spec: ServiceSpec) -> FiresteelError:
    """Why it did not start, from its exit and a diagnosis of its log."""
    service = load(home, spec.name)
    lines = last_lines(service.log, MAX_LINES) if service else []
    diagnosis = diagnose("\n".join(lines), spec.engine)
    what = f"{spec.name} did not start: {death(service.state if service else None)}"
    show_log = f"firesteel logs {spec.name}"
    if diagnosis.cause is None:
        suspect = f" ({diagnosis.suspect[1]})" if diagnosis.suspect else ""
        unknown = SuspectWeights if service and has_crashed(service.state) else FiresteelError
        return unknown(what + suspect, next=show_log)
    kind = HostNotReady if diagnosis.cause.is_host else FiresteelError
    hint = (diagnosis.cause.next or show_log).replace("MODEL", spec.name)
    if "--reread" in hint:
        says = f"{what}. {diagnosis.cause.says} ({diagnosis.cause.text})"
        return SuspectWeights(says, next=hint, otherwise=show_log)
    return kind(f"{what}. {diagnosis.cause.says} ({diagnosis.cause.text})", next=hint)
