"""What watches the gateway while it runs: curves, alerts, and the engines' own metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping

from firesteel.edge.home import Home
from firesteel.edge.host.memory import meminfo
from firesteel.errors import HostNotReady
from firesteel.facts.host.hardware import Meminfo
from firesteel.gateway.admin.meter import Meter
from firesteel.gateway.admin.prometheus import MetricFamily
from firesteel.gateway.admin.status import gateway_state, gauge, state_families
from firesteel.gateway.executor import Executor
from firesteel.gateway.monitoring.alerts import AlertWatch
from firesteel.gateway.monitoring.sampler import CurveSampler
from firesteel.gateway.monitoring.store import CurveRange, CurveStore, curves_document, curves_path
from firesteel.gateway.state import GatewayState, WaitingRequest

_ENGINE_METRICS_S = 3.0


class Monitoring:
    def __init__(
        self,
        home: Home,
        executor: Executor,
        meter: Meter,
        queue: Callable[[], tuple[WaitingRequest, ...]],
        logged: Callable[[], int],
        notify: Callable[[str], None],
    ) -> None:
        """`queue`: who waits. `logged`: rows of the request log. `notify` gets alerts and problems."""
        self._executor, self._queue, self._logged = executor, queue, logged
        self.file_problem = ""
        """What is wrong with the service file as it is now."""
        store = CurveStore(curves_path(home))
        self.curves = CurveSampler(store, meter.totals, executor.views, self.engine_metrics, notify=notify)
        self.alerts = AlertWatch(self.state, lambda: executor.config, lambda text: notify(f"alert: {text}"))

    def start(self) -> None:
        self.curves.start()
        self.alerts.start()

    async def close(self) -> None:
        await self.alerts.close()
        await self.curves.close()

    def state(self, with_previews: bool = False) -> GatewayState:
        """`with_previews`: also what a load of each model would unload."""
        executor, curves = self._executor, self.curves
        views = executor.views(with_previews=with_previews)
        return gateway_state(
            views, executor.config, memory(), curves.gpu, curves.recent, self._queue(), self._logged(),
            self.file_problem,
        )  # fmt: skip

    async def curves_document(self, resolution: CurveRange, models: frozenset[str] | None) -> str:
        now = time.time()
        points = await asyncio.to_thread(self.curves.store.query, resolution, now, models)
        by_name = self._executor.config.by_name
        return await curves_document(resolution, resolution.start(now), points, by_name)

    def families(self) -> Iterator[MetricFamily]:
        """For Prometheus: what the state says beyond the meter's own gauges."""
        yield from state_families(self.state())
        yield gauge("disk_free_bytes", "Free space, by folder.", self.alerts.disks, "folder")
        help = "Engines that the memory guard stopped."
        yield gauge("guard_stops_total", help, self.alerts.guard_stops, "model", kind="counter")

    async def engine_metrics(self) -> Mapping[str, str]:
        """The metrics pages of the engines that are ready, by model."""
        from firesteel.edge.http import engine_client  # imports aiohttp, which only the admin API needs

        ready = [view for view in self._executor.views() if view.status and view.status.phase == "ready"]
        targets = {view.config.name: (view.running.url, view.running.key) for view in ready if view.running}
        targets |= {view.config.name: (view.config.urls[0], None) for view in ready if view.config.is_outside}
        pages = await asyncio.gather(
            *(
                engine_client.metrics(url, timeout_s=_ENGINE_METRICS_S, key=key)
                for url, key in targets.values()
            ),
            return_exceptions=True,
        )
        return {name: page for name, page in zip(targets, pages, strict=True) if isinstance(page, str)}


def memory() -> Meminfo | None:
    """Of the host; None where it cannot be read."""
    try:
        return meminfo()
    except HostNotReady:
        return None
