"""Loads and unloads as tasks: at most one job per model, each with exactly one result.

A load ends with one `ModelLoaded` or `LoadFailed`, whatever happens to its child process. An unload ends with
one `ModelUnloaded`, after the processes have ended and their memory is free. So the scheduler never waits for
an event that does not come.

`generation(name)` changes when a job starts or ends. A health check that ran across such a change saw a state
in between, and must look again (`health.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Iterable
from contextlib import aclosing
from typing import Any, Literal, Protocol

from firesteel.edge.home import Home
from firesteel.edge.host.process import uptime
from firesteel.gateway.discovery import OwnServices, find_apis, find_context, is_identity_of
from firesteel.gateway.interfaces import ServerApiName, WaitStatus
from firesteel.gateway.loader.process import (
    ExpectedRelease,
    Loader,
    LoaderFailed,
    LoadProgress,
    describe_release,
    wait_until_released,
)
from firesteel.gateway.scheduler.events import LoadFailed, ModelLoaded, ModelUnloaded, RejectRequest
from firesteel.gateway.service_config import ModelConfig, Reason, RunningModel
from firesteel.run import service as services
from firesteel.run.service import Service
from firesteel.units import show_seconds

_STOP_ATTEMPTS = 3
_NO_RESULT = Reason("the loader ended without a result")
_PHASE_VERBS = {
    "plan": "loading",
    "check": "checking for",
    "pull": "fetching",
    "launch": "loading",
    "warm": "warming up",
    "verify": "verifying",
}

JobResult = Literal["loaded", "failed", "unloaded"]
JobEvent = ModelLoaded | LoadFailed | ModelUnloaded


class ExecutorListener(Protocol):
    """Receives what happens to requests and models. Plain calls on the loop; none may block."""

    def granted(self, request: Hashable, model: str) -> None: ...

    def rejected(self, rejection: RejectRequest) -> None: ...

    def load_progressed(self, model: str, wait_status: WaitStatus) -> None:
        """For requests that wait for this model."""

    def noted(self, model: str, text: str) -> None:
        """For the log and event subscribers; `model` is empty if it concerns no single model."""

    def job_finished(self, model: str, result: JobResult, seconds: float, reason: str) -> None:
        """A load or an unload ended. `reason` is one word, for a failed load."""


class ModelJobs:
    """The jobs under way, and what is known about running models."""

    def __init__(
        self,
        loader: Loader,
        listener: ExecutorListener,
        home: Home,
        finished: Callable[[JobEvent], None],
        pause_s: float,
    ) -> None:
        """`pause_s`: before a failed stop is tried again; it doubles."""
        self._loader, self._listener, self._home = loader, listener, home
        self._finished, self._pause_s = finished, pause_s
        self.running: dict[str, RunningModel] = {}
        self.identities: dict[str, str] = {}
        """Identity of what was started or found, by model."""
        self.progress: dict[str, WaitStatus] = {}
        self.notes: dict[str, str] = {}
        self.started = OwnServices(home)
        self.apis: dict[str, tuple[ServerApiName, ...]] = {}
        self.contexts: dict[str, int | None] = {}
        """Of models whose servers are not ours, as these say."""
        """What servers that are not our engines were found to speak, by URL; empty: everything."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._loading: set[str] = set()
        self._generations: dict[str, int] = {}

    def generation(self, name: str) -> int | None:
        """None while a job of this model is under way."""
        return None if name in self._tasks else self._generations.get(name, 0)

    def start_load(self, name: str, model: ModelConfig | None, waiting: int) -> None:
        self._loading.add(name)
        self._start(name, self._load(name, model, waiting))

    def start_unload(self, name: str, waiting_models: Iterable[str]) -> None:
        """`waiting_models`: the models that wait for its memory."""
        load = self._tasks.get(name)
        if load is not None:
            self._loading.discard(name)
            load.cancel()
        self._start(name, self._unload(name, " and ".join(waiting_models), load))

    async def close(self, *, keep: bool) -> None:
        """Cancel loads, and finish unloads. Stop what this gateway started, unless `keep`."""
        for name in self._loading:
            self._tasks[name].cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        if not keep:
            own = [name for name in self.running if name in self.started]
            await asyncio.gather(*(self._stop(name) for name in own), return_exceptions=True)

    def _start(self, name: str, job: Coroutine[Any, Any, None]) -> None:
        self._generations[name] = self._generations.get(name, 0) + 1
        self._tasks[name] = asyncio.ensure_future(job)

    def _end(self, event: JobEvent) -> None:
        """The job is removed before the scheduler hears of its end: the next one may start at once."""
        name = event.model
        self._tasks.pop(name, None)
        self._loading.discard(name)
        self._generations[name] = self._generations.get(name, 0) + 1
        self.progress.pop(name, None)
        self._finished(event)

    # --- loading ---

    async def _load(self, name: str, model: ModelConfig | None, waiting: int) -> None:
        event: ModelLoaded | LoadFailed = LoadFailed(name, "it was stopped while it loaded")
        reason, began_s = "stopped", uptime()
        self.notes.pop(name, None)  # a note from before this load no longer applies
        try:
            if model is None:
                event, reason = LoadFailed(name, f"`{name}` is no longer in the service file"), "removed"
                return
            self._listener.noted(name, f"{name} is loading" + (f"; {waiting} waiting" if waiting else ""))
            await self._stop_stale(model)
            running = await self._bring_up(model)
            self.running[name], self.identities[name] = running, model.identity
            self.notes.pop(name, None)
            if not running.is_found:
                self.started.add(name, model.identity)
            self._listener.noted(name, f"{name} answers on {running.url}")
            event = ModelLoaded(name, running.bytes)
        except LoaderFailed as error:
            event, reason = LoadFailed(name, str(error.why)), error.why.kind.replace(" ", "_")
            if error.is_sudden:
                await self._stop_remains(name)
        except Exception as error:
            event, reason = LoadFailed(name, f"it was not loaded ({type(error).__name__}: {error})"), "broke"
            await self._stop_remains(name)
        finally:
            took_s = uptime() - began_s
            if self._tasks.get(name) is not asyncio.current_task():  # an unload has taken its place
                self._listener.noted(name, f"the load of {name} was cancelled after {show_seconds(took_s)}")
            elif isinstance(event, LoadFailed):
                self._listener.noted(name, f"{name} did not load: {event.why}")
                self._listener.job_finished(name, "failed", took_s, reason)
                self._end(event)
            else:
                self._listener.job_finished(name, "loaded", took_s, "")
                self._end(event)

    async def _bring_up(self, model: ModelConfig) -> RunningModel:
        self._update_progress(model.name, LoadProgress("plan", "planning", None))
        async with aclosing(self._loader.load(model)) as messages:
            async for message in messages:
                if isinstance(message, RunningModel):
                    if "cmd" in model.ask:
                        self.contexts[model.name] = await find_context(message.url, model.model or model.name)
                        if not model.speaks:
                            self.learn_apis(model.name, message.url, await find_apis(message.url))
                    return message
                self._update_progress(model.name, message)
        raise LoaderFailed(_NO_RESULT, is_sudden=True)

    def _update_progress(self, name: str, progress: LoadProgress) -> None:
        verb = _PHASE_VERBS.get(progress.phase, progress.phase)
        status = self.progress[name] = WaitStatus(f"{verb} {name}: {progress.text}", progress.eta_s)
        self._listener.load_progressed(name, status)

    async def _stop_stale(self, model: ModelConfig) -> None:
        """Stop an instance of this name that no longer matches the service file."""
        service = await self._service(model.name)
        if service and not is_identity_of(model.identity, service.spec):
            self.note(model.name, f"stopping another {model.name} on {service.spec.url} first")
            await self._stop(model.name)

    async def _stop_remains(self, name: str) -> None:
        """A loader that ended suddenly may have left a supervisor and a half-started engine."""
        if await self._service(name):
            await self._stop(name)

    async def _service(self, name: str) -> Service | None:
        service = await asyncio.to_thread(services.load, self._home, name)
        return service if service and service.phase != "dead" else None

    def learn_apis(self, name: str, url: str, apis: tuple[ServerApiName, ...]) -> None:
        before, self.apis[url] = self.apis.get(url), apis
        if apis and apis != before:
            text = f"it speaks {' and '.join(apis)}; requests of other APIs are translated"
            self._listener.noted(name, text)

    def note(self, name: str, text: str) -> None:
        """Show what there is to know about a model beyond its phase, and log it once."""
        if text != self.notes.get(name, ""):
            self.notes[name] = text
            if text:
                self._listener.noted(name, text)

    # --- unloading ---

    async def _unload(self, name: str, waiting_models: str, load: asyncio.Task[None] | None) -> None:
        """`load`: one that is cancelled; its child takes back what it has begun."""
        began_s = uptime()
        if load is not None:
            self.progress[name] = WaitStatus(f"cancelling the load of {name}")
            await asyncio.gather(load, return_exceptions=True)
            self.identities.pop(name, None)
        self._listener.noted(
            name, f"{name} is unloading" + (f" to make room for {waiting_models}" if waiting_models else "")
        )
        try:
            service, identity = await self._service(name), self.identities.get(name)
            # Ours has ended, and another program was started under its name: not ours to stop.
            if service is None or identity is None or is_identity_of(identity, service.spec):
                await self._stop(name)
        finally:
            self.running.pop(name, None)
            self._listener.job_finished(name, "unloaded", uptime() - began_s, "")
            self._end(ModelUnloaded(name))

    async def _stop(self, name: str) -> None:
        """Stop the processes and wait for their memory. If that fails three times, give up: the scheduler is
        informed that the model is unloaded, and the next health check finds it running."""
        for attempt in range(_STOP_ATTEMPTS):
            try:
                release = await self._stop_processes(name)
            except LoaderFailed as error:
                self._listener.noted(name, f"{name} does not stop: {error.why}")
                await asyncio.sleep(self._pause_s * 2**attempt)
                continue
            self.running.pop(name, None)
            self.started.discard(name)
            available = await wait_until_released(release)
            self._listener.noted(name, f"{name} has stopped, {describe_release(release, available)}")
            return

    async def _stop_processes(self, name: str) -> ExpectedRelease:
        async with aclosing(self._loader.unload(name)) as messages:
            async for message in messages:
                if isinstance(message, ExpectedRelease):
                    return message
                self.progress[name] = WaitStatus(message.text)
        raise LoaderFailed(_NO_RESULT, is_sudden=True)
