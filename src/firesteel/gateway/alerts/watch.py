"""Looks at the gateway's state every five seconds, and hands alerts to the sender."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from firesteel.edge.home import disk_of, free_bytes
from firesteel.gateway.alerts.conditions import GUARD_TEXT, conditions
from firesteel.gateway.alerts.send import AlertSender
from firesteel.gateway.alerts.tracker import AlertTracker
from firesteel.gateway.jobs import JobResult
from firesteel.gateway.periodic import BackgroundTasks, repeat
from firesteel.gateway.service_config import ServiceConfig
from firesteel.gateway.state import GatewayState
from firesteel.values import replace

_CHECK_S = 5.0


class AlertWatch:
    def __init__(
        self,
        state: Callable[[], GatewayState],
        config: Callable[[], ServiceConfig],
        report: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`report` gets every alert, and what cannot be delivered, for the operator's log."""
        self._state, self._config, self._report, self._clock = state, config, report, clock
        self._sender = AlertSender(lambda: config().alerts, report)
        self._failed_loads: dict[str, str] = {}
        """Why each last load failed, until one succeeds."""
        self._guarded: dict[str, str] = {}
        self.guard_stops: dict[str, int] = {}
        """By model, since the gateway started."""
        self.disks: dict[str, int] = {}
        """Free bytes by folder, as last seen."""
        self.tracker = AlertTracker()
        self._tasks = BackgroundTasks()

    def start(self) -> None:
        self._tasks.start(self._sender.run(), repeat(self.check, _CHECK_S))

    async def close(self) -> None:
        await self._tasks.close()

    def noted(self, model: str, text: str) -> None:
        if GUARD_TEXT in text:
            if model not in self._guarded:
                self.guard_stops[model] = self.guard_stops.get(model, 0) + 1
            self._guarded[model] = text[text.index(GUARD_TEXT) :]

    def job_finished(self, model: str, result: JobResult) -> None:
        if result == "failed":
            self._failed_loads.setdefault(model, "")
        elif result == "loaded":
            self._failed_loads.pop(model, None)

    async def check(self) -> None:
        config, state = self._config(), self._state()
        for model in state.models:
            if model.name in self._failed_loads and model.why:
                self._failed_loads[model.name] = model.why
        disks = self.disks = await asyncio.to_thread(_free_bytes, config.disk_folders)
        found = conditions(state, self._failed_loads, self._guarded, disks, config.alerts.disk_bytes)
        ready = {model.name for model in state.models if model.phase == "ready"}
        for name in ready & self._guarded.keys():
            del self._guarded[name]
        tracker = replace(self.tracker, repeat_s=config.alerts.repeat_s)
        self.tracker, alerts = tracker.after(found, self._clock())
        for alert in alerts:
            self._report(f"{'over: ' if alert.is_over else ''}{alert.text}")
            if config.alerts.is_used:
                self._sender.put(alert)


def _free_bytes(folders: tuple[str, ...]) -> dict[str, int]:
    """Each disk once, by the first of its folders."""
    found, disks = {}, set()
    for folder in map(Path, folders):
        try:
            disk, free = disk_of(folder), free_bytes(folder)
        except OSError:
            continue  # a disk that is gone is nobody's to fill
        if disk not in disks:
            disks.add(disk)
            found[str(folder)] = free
    return found
