"""Starting an engine under a supervisor, and waiting until it answers or says why it will not."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from firesteel import engines
from firesteel.edge.files.home import Home
from firesteel.edge.host import process
from firesteel.edge.http import engine_client
from firesteel.errors import FiresteelError, HostNotReady
from firesteel.planner import Plan
from firesteel.run.events import Event, PhaseProgress
from firesteel.run.service import ServiceSpec, all_services, death, folder_of, last_lines, load
from firesteel.run.start import eta, start_times

EMBEDDED_LIMIT_S = 600
CONTAINER_LIMIT_S = 6 * 3600
"""An engine in a container fetches its weights while it starts: 75 GB at 100 Mbit/s take 100 minutes."""
_POLL_S = 0.1
_ADOPT_S = 10
MAX_LINES = 20_000
_SAY_S = 5.0
"""A wait shows at least so often that it is one."""


def start_supervisor(folder: Path) -> int:
    """Its process number. Not from the current folder: what lies there is not ours to import."""
    words = [sys.executable, "-P", "-m", "firesteel.run.supervise.supervisor", str(folder)]
    return process.start_detached(words, folder / "supervisor.log")


def adopt_all(home: Home) -> None:
    """A supervisor for every container that has lost its own: nothing runs unguarded for long."""
    for service in all_services(home):
        if service.phase != "unkept":
            continue
        supervisor, deadline = start_supervisor(service.folder), process.uptime() + _ADOPT_S
        while process.uptime() < deadline and not process.has_ended(supervisor):
            found = load(home, service.name)
            if found is None or (found.state and process.is_alive(found.state.supervisor)):
                break
            time.sleep(_POLL_S)


async def wait_until_healthy(
    home: Home, spec: ServiceSpec, plan: Plan, has_ended: Callable[[], bool]
) -> AsyncIterator[Event]:
    """Follows the engine's log; `has_ended` tells when its supervisor is no more."""
    limit_s = CONTAINER_LIMIT_S if spec.stop else EMBEDDED_LIMIT_S
    began, told = process.uptime(), StartReporter(home, spec, plan)
    while process.uptime() - began < limit_s:
        supervisor_ended = has_ended()
        for words, left_s in told.news(process.uptime() - began):
            yield PhaseProgress("launch", words, left_s)
        if supervisor_ended:
            raise start_failure(home, spec)
        service = load(home, spec.name)
        if service and service.state and await engine_client.is_healthy(spec.url):
            told.remember(process.uptime() - began)
            return
        await asyncio.sleep(_POLL_S)
    raise FiresteelError(
        f"{spec.name} did not get ready within {limit_s} s", next=f"firesteel logs {spec.name}"
    )


class StartReporter:
    """What the engine's log says of how far it is, with how long it will still take."""

    def __init__(self, home: Home, spec: ServiceSpec, plan: Plan) -> None:
        self._home, self._spec, self._version = home, spec, plan.launch.version
        self._log, self._read_bytes = folder_of(home, spec.name) / "engine.log", 0
        start_up = plan.speed.start_up if plan.speed else None
        self._planned = start_up.phases if start_up else ()
        self._earlier = start_times.earlier_starts(home, spec.name, spec.engine, self._version)
        self._way = eta.StartTracker(spec.engine)
        self._said_s = 0.0

    def news(self, now_s: float) -> Iterator[tuple[str, float | None]]:
        """In words, and the seconds that are left."""
        text, self._read_bytes = _news(self._log, self._read_bytes)
        for line in text.replace("\r", "\n").splitlines():
            if found := engines.start_progress(self._spec.engine, line):
                self._way = self._way.met(found, now_s)
                yield self._words(now_s)
        if now_s - self._said_s > _SAY_S:
            yield self._words(now_s)

    def _words(self, now_s: float) -> tuple[str, float | None]:
        self._said_s = now_s
        left = eta.time_left(self._way, self._planned, self._earlier, now_s)
        words = eta.describe(self._way, self._planned, self._earlier, now_s)
        return words, left.expected if left else None

    def remember(self, now_s: float) -> None:
        seconds = self._way.seconds(now_s)
        start_times.record_start(
            self._home, self._spec.name, start_times.StartTimes(self._spec.engine, self._version, seconds)
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


def start_failure(home: Home, spec: ServiceSpec) -> FiresteelError:
    """Why it did not start: what its supervisor saw, and what its log means."""
    service = load(home, spec.name)
    lines = last_lines(service.log, MAX_LINES) if service and service.log.exists() else []
    found = engines.diagnose("\n".join(lines), spec.engine)
    what = f"{spec.name} did not start: {death(service.state if service else None)}"
    look = f"firesteel logs {spec.name}"
    if found.cause is None:
        suspect = f" ({found.suspect[1]})" if found.suspect else ""
        return FiresteelError(what + suspect, next=look)
    kind = HostNotReady if found.cause.is_host else FiresteelError
    hint = (found.cause.next or look).replace("MODEL", spec.name)
    return kind(f"{what}. {found.cause.says} ({found.cause.text})", next=hint)
