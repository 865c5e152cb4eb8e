"""Checks once a second what really runs: our engines by their files and locks, outside servers by HTTP.

An engine's supervisor restarts it, `firesteel down` stops it and `firesteel up` starts it, all without the
gateway. `judge` compares each observation with what the scheduler believes. An observation that overlaps a
job of the gateway itself is discarded.
"""

from __future__ import annotations

import asyncio

from firesteel.edge.home import Home
from firesteel.edge.host.process import uptime
from firesteel.gateway.discovery import (
    OwnServices,
    find_apis,
    find_context,
    is_answering,
    is_identity_of,
    running_model,
)
from firesteel.gateway.endpoints import model_endpoints
from firesteel.gateway.executor import Executor
from firesteel.gateway.loader.process import Loader, LoaderFailed
from firesteel.gateway.periodic import BackgroundTasks, repeat
from firesteel.gateway.scheduler.events import LoadFailed, ModelCrashed, ModelLoaded, ModelUnloaded
from firesteel.gateway.service_config import ModelConfig
from firesteel.run.service import STOP_REQUESTED, Service, death, folder_of, hang_of, is_supervised, load
from firesteel.run.service import Phase as ServicePhase
from firesteel.values import Value

_SERVICES_S = 1.0
_OUTSIDE_S = 3.0
_ADOPT_S = 30.0
_MAX_MISSES = 2
"""An outside server that misses one check may be busy; after two it is down."""
_BY_HAND = "it was stopped by hand"


class ServiceObservation(Value):
    """What runs under a model's name."""

    phase: ServicePhase | None
    """None: nothing."""
    is_ours: bool = False
    """It matches the service file."""
    url: str = ""
    why: str = ""
    was_stop_requested: bool = False
    is_ending: bool = False
    """Its supervisor is ending it, or was killed: it does not come back by itself."""

    @property
    def answers(self) -> bool:
        return self.is_ours and self.phase in ("ready", "unkept")


def observe(service: Service | None, identity: str, *, was_supervised: bool) -> ServiceObservation:
    """`was_supervised`: a supervisor had it before it was read. If not, what was read is final."""
    if service is None:
        return ServiceObservation(None)
    state = service.state
    why = (state.why or hang_of(state) or "") if state and service.phase != "dead" else death(state)
    return ServiceObservation(
        service.phase,
        is_identity_of(identity, service.spec),
        service.spec.url,
        why,
        state is not None and state.why == STOP_REQUESTED,
        service.phase == "stopping" and (state is None or state.is_stopping or not was_supervised),
    )


class Verdict(Value):
    event: ModelLoaded | ModelUnloaded | ModelCrashed | LoadFailed | None = None
    note: str = ""


def judge(name: str, believed: str, seen: ServiceObservation, *, is_mine: bool = False) -> Verdict:
    """`believed` is the scheduler's phase; `loading` without a job of this gateway means that it restarts by
    itself. `is_mine`: a gateway of this home started it."""
    if believed == "off":
        return _when_off(name, seen, is_mine)
    if believed == "ready":
        return _when_ready(name, seen)
    return _when_restarting(name, seen) if believed == "loading" else Verdict()


def _when_off(name: str, seen: ServiceObservation, is_mine: bool) -> Verdict:
    if seen.answers:
        by = f"{name} was already running, started by an earlier gateway"
        return Verdict(ModelLoaded(name), by if is_mine else "it was started outside the gateway")
    if seen.phase in (None, "dead", "stopping"):
        return Verdict()
    return Verdict(note="another program is starting it" if seen.is_ours else _other_instance(name, seen))


def _when_ready(name: str, seen: ServiceObservation) -> Verdict:
    if seen.phase is None:
        return Verdict(ModelUnloaded(name), _BY_HAND)
    if not seen.is_ours:
        return Verdict(ModelUnloaded(name), _other_instance(name, seen))
    if seen.answers:
        return Verdict(note="its supervisor was killed and is replaced" if seen.phase == "unkept" else "")
    if seen.was_stop_requested:
        return Verdict(ModelCrashed(name, _BY_HAND), _BY_HAND)
    why = seen.why or "its engine ended"
    if seen.phase == "dead" or seen.is_ending:
        return Verdict(ModelCrashed(name, why), why)
    return Verdict(ModelCrashed(name, why, is_returning=True), f"restarting by itself: {why}")


def _when_restarting(name: str, seen: ServiceObservation) -> Verdict:
    if seen.phase is None:
        return Verdict(LoadFailed(name, _BY_HAND), _BY_HAND)
    if seen.phase == "dead" or seen.is_ending:
        why = _BY_HAND if seen.was_stop_requested else seen.why or "its engine is being stopped"
        return Verdict(ModelCrashed(name, why), why)
    if seen.answers:
        return Verdict(ModelLoaded(name), f"{name} answers again")
    if seen.phase == "ready":
        return Verdict(
            LoadFailed(name, "something else runs under its name now"), _other_instance(name, seen)
        )
    return Verdict(note=f"restarting by itself: {seen.why}" if seen.why else "restarting by itself")


def _other_instance(name: str, seen: ServiceObservation) -> str:
    return f"another {name}, which differs from the file, runs on {seen.url}; loading this one stops it"


class Health:
    """Runs the checks and reports to the executor."""

    def __init__(self, executor: Executor, loader: Loader, home: Home) -> None:
        self._executor, self._loader, self._home = executor, loader, home
        self._tasks = BackgroundTasks()
        self._misses: dict[tuple[str, str], int] = {}
        """Consecutive failed checks, by model and URL."""
        self._is_down: set[str] = set()
        self._asked: set[tuple[str, str]] = set()
        """Outside models and the addresses that were asked for their context."""
        self._adopted_s = -_ADOPT_S

    async def start(self) -> None:
        """Check once before returning: what runs already is known before the first request."""
        await asyncio.gather(self.check_services(), self.check_outside())
        self._tasks.start(repeat(self.check_services, _SERVICES_S), repeat(self.check_outside, _OUTSIDE_S))

    async def close(self) -> None:
        await self._tasks.close()

    def replica_health(self, name: str) -> tuple[bool, ...]:
        """Which replicas of an outside model answer, in their order."""
        model = self._executor.model_config(name)
        return tuple(self._misses.get((name, url), 0) < _MAX_MISSES for url in model.urls) if model else ()

    # --- our engines ---

    async def check_services(self) -> None:
        models = self._executor.config.models
        names = [model.name for model in models if not model.is_outside and not model.why_not]
        generations, began_s = {name: self._executor.generation(name) for name in names}, uptime()
        looks = await asyncio.to_thread(lambda: [self._look(name) for name in names])
        for _, service in looks:
            if service and service.spec.is_command and service.phase == "ready":
                await self._find_apis(service.name, service.spec.url)
                if not self._executor.knows_context(service.name):
                    context = await find_context(service.spec.url, service.name)
                    self._executor.learn_context(service.name, context)
        for name, (was_supervised, service) in zip(names, looks, strict=True):
            # Nothing may have begun or ended while the files were read.
            if generations[name] is not None and generations[name] == self._executor.generation(name):
                self._report(name, service, was_supervised=was_supervised)
            self._executor.checked(name, began_s)
        if any(service and service.phase == "unkept" for _, service in looks):
            await self._adopt()

    def _look(self, name: str) -> tuple[bool, Service | None]:
        was_supervised = is_supervised(folder_of(self._home, name))  # first: a supervisor that ends says why
        return was_supervised, load(self._home, name)

    def _report(self, name: str, service: Service | None, *, was_supervised: bool) -> None:
        believed, identity = self._executor.phase(name), self._executor.identity(name)
        seen = observe(service, identity, was_supervised=was_supervised)
        is_mine = believed == "off" and seen.answers and OwnServices(self._home).is_mine(name, identity)
        verdict = judge(name, believed, seen, is_mine=is_mine)
        self._executor.note(name, verdict.note)
        if isinstance(verdict.event, ModelLoaded):
            if service:
                self._executor.set_running(name, running_model(self._home, service))
        elif verdict.event:
            self._executor.set_lost(verdict.event)

    async def _adopt(self) -> None:
        """Have the loader read the file, which gives every container without a supervisor a new one."""
        if uptime() - self._adopted_s < _ADOPT_S:
            return
        self._adopted_s = uptime()
        try:
            await self._loader.read(self._executor.config.path)
        except LoaderFailed:  # the file watch reports a file with errors
            return

    # --- outside servers ---

    async def check_outside(self) -> None:
        outside = [model for model in self._executor.config.models if model.is_outside]
        pairs = [(model.name, url) for model in outside for url in model.urls]
        answers = await asyncio.gather(*(is_answering(url) for _, url in pairs))
        for pair, answer in zip(pairs, answers, strict=True):
            # The first check decides at once: the server has never answered yet.
            misses = self._misses[pair] + 1 if pair in self._misses else _MAX_MISSES
            self._misses[pair] = 0 if answer else misses
        for model in outside:
            answering = [url for url in model.urls if not self._misses.get((model.name, url))]
            if answering:
                await self._ask(model, answering[0])
            self._report_outside(model)

    async def _ask(self, model: ModelConfig, url: str) -> None:
        """What an outside server says of itself; once for each time that it comes up."""
        (endpoint, *_) = model_endpoints(model, None).endpoints
        if self._executor.phase(model.name) != "ready" or (model.name, url) not in self._asked:
            self._asked.add((model.name, url))
            name = model.model or model.name
            self._executor.learn_context(model.name, await find_context(url, name, endpoint.headers))
        if not model.speaks:
            await self._find_apis(model.name, url, endpoint.headers)

    async def _find_apis(self, name: str, url: str, headers: bytes = b"") -> None:
        """Once for each time that it comes up; a load asks before it ends."""
        if self._executor.phase(name) != "ready" or url not in self._executor.apis:
            self._executor.learn_apis(name, url, await find_apis(url, headers))

    def _report_outside(self, model: ModelConfig) -> None:
        name = model.name
        current = self._executor.model_config(name)
        if current is None or current.urls != model.urls:  # the file changed during the check
            return
        silent = [url for url in model.urls if self._misses.get((name, url), 0) >= _MAX_MISSES]
        if len(silent) < len(model.urls):
            self._executor.note(name, f"no answer from {', '.join(silent)}" if silent else "")
            if name in self._is_down:
                self._is_down.discard(name)
                self._executor.handle(ModelLoaded(name))
        elif name not in self._is_down:
            self._is_down.add(name)
            why = f"no answer from {', '.join(silent)}; {model.start}"
            self._executor.note(name, why)
            self._executor.handle(ModelCrashed(name, why))
