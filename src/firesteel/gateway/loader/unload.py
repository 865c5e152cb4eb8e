"""The job that stops a model. Always runs to its end, and loads no planner: the next model waits for it."""

from __future__ import annotations

import asyncio
import signal

from firesteel.edge.home import Home, find_home
from firesteel.edge.host.memory import meminfo
from firesteel.gateway.loader.child import say
from firesteel.run.down import freed_bytes, frees_at_exit, stop
from firesteel.run.events import PhaseDone, PhaseProgress
from firesteel.run.service import load


async def unload(name: str, home: Home) -> None:
    """The result says what was available before, and how much should come back."""
    service = load(home, name)
    before, held = meminfo().available_bytes, freed_bytes(service) if service else 0
    is_process = service is not None and frees_at_exit(service)
    if service:
        async for event in stop(service):
            if isinstance(event, (PhaseProgress, PhaseDone)):
                say({"doing": {"phase": event.phase, "words": event.text, "eta_s": None}})
    say({"gone": {"available_bytes": before, "held_bytes": held, "is_process": is_process}})


def unload_job(name: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    asyncio.run(unload(name, find_home()))
