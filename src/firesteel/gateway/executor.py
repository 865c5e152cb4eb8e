"""Carries out the scheduler's decisions, and reports the results back to it.

    executor = Executor(config, ProcessLoader(), listener, home)
    await executor.start()                                loads pinned and preloaded models
    executor.handle(RequestArrived(request, "coder"))     listener.granted(...) before it returns, if ready

The scheduler decides and does no I/O; the executor drives it, on one event loop and one clock. Loads and
unloads are tasks (`jobs.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from contextlib import suppress

from firesteel.edge.home import Home
from firesteel.edge.host.memory import meminfo
from firesteel.edge.host.process import uptime
from firesteel.errors import HostNotReady
from firesteel.gateway.interfaces import ServerApiName, WaitStatus
from firesteel.gateway.jobs import ExecutorListener, JobEvent, ModelJobs
from firesteel.gateway.loader.process import Loader
from firesteel.gateway.periodic import repeat
from firesteel.gateway.scheduler import events
from firesteel.gateway.scheduler.capacity import LoadPreview
from firesteel.gateway.scheduler.scheduler import Scheduler
from firesteel.gateway.service_config import ModelConfig, RunningModel, ServiceConfig
from firesteel.run.service import forget_proof
from firesteel.values import Value, replace

_MEMORY_READING_S = 2.0
_IDLE_GRACE_S = 10.0
"""About the pause between two turns of an agent; after it the model may be evicted for another."""


class ModelView(Value):
    """One model, for display."""

    config: ModelConfig
    status: events.ScheduledModel | None
    """None: it cannot be served, and `config.why_not` says why."""
    running: RunningModel | None
    progress: WaitStatus | None
    """Of the load or unload under way."""
    note: str = ""
    """Something else runs under its name; it does not answer; it is restarting."""
    preview: LoadPreview | None = None
    """What a load would do; only where `views` was asked for it."""


class Executor:
    """Drives one scheduler. Everything happens on the loop that it was started on."""

    def __init__(
        self,
        config: ServiceConfig,
        loader: Loader,
        listener: ExecutorListener,
        home: Home,
        *,
        pause_s: float = 2.0,
    ) -> None:
        self._listener, self._home = listener, home
        self._set_config(config)
        self._scheduler = Scheduler(_scheduled_models(config), _scheduler_limits(config), uptime())
        self._jobs = ModelJobs(loader, listener, home, self._job_finished, pause_s)
        self._events: deque[events.SchedulerEvent] = deque()
        self._held: dict[str, dict[Hashable, tuple[int, str, float]]] = {}
        """Requests whose engine failed, by model: their priority and key, and since when."""
        self._is_handling = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        """When the timer goes off."""
        self._memory_task: asyncio.Task[None] | None = None
        self._is_closed = False

    async def start(self) -> None:
        """Read the memory and load what should run from the start. Call after `Health.start`."""
        self._read_memory()
        self._preload(self.config.models)
        self.handle(events.TimePassed())
        self._memory_task = asyncio.ensure_future(repeat(self._read_memory_for_waiting, _MEMORY_READING_S))

    async def close(self, *, keep: bool) -> None:
        """Cancel loads under way. Stop what this gateway started, unless `keep`."""
        self._is_closed = True
        if self._timer:
            self._timer.cancel()
        if self._memory_task:
            self._memory_task.cancel()
        await self._jobs.close(keep=keep)

    # --- events ---

    def submit(self, request: Hashable, model: str, priority: int, key: str = "") -> None:
        """`RequestArrived` in a third of its time, if the model is open: every request passes here."""
        if not self._is_handling and self._scheduler.try_grant(request, model, uptime()):
            self._listener.granted(request, model)
        else:
            self.handle(events.RequestArrived(request, model, priority, key))

    def finish(self, request: Hashable) -> None:
        """`RequestFinished`, likewise; if something follows from it, the next event brings it up."""
        if self._is_handling:
            self.handle(events.RequestFinished(request))
        elif not self._scheduler.try_finish(request, uptime()):
            self.handle(events.TimePassed())

    def handle(self, event: events.SchedulerEvent) -> None:
        """In order, one at a time: an event caused by an effect is handled after the current one."""
        if isinstance(event, events.RequestArrived) and event.model in self._unservable:
            why = str(self._unservable[event.model])
            self._listener.rejected(events.RejectRequest(event.request, "failed", why))
            return
        if isinstance(event, events.RequestAbandoned):
            for held in self._held.values():
                held.pop(event.request, None)
        self._events.append(event)
        if self._is_handling:
            return
        self._is_handling = True
        try:
            while self._events:  # ends: effects are finite, and new events come from outside
                for effect in self._scheduler.handle(self._events.popleft(), uptime()):
                    self._execute(effect)
        finally:
            self._is_handling = False
        self._set_timer()

    def hold(self, request: Hashable, model: str, priority: int, key: str = "") -> None:
        """Its engine failed before it answered. It waits until a health check that begins from now on has
        seen what runs: it is granted again if the engine is there, and waits for its return if not."""
        self._held.setdefault(model, {})[request] = (priority, key, uptime())

    def checked(self, model: str, began_s: float) -> None:
        """A health check that began at `began_s` has reported what it saw of this model."""
        held = self._held.get(model, {})
        for request, (priority, key, held_s) in tuple(held.items()):
            if held_s <= began_s:
                del held[request]
                self.handle(events.RequestReturned(request, model, priority, key))

    def change(self, config: ServiceConfig) -> None:
        """Apply a changed service file. Models that did not change keep running."""
        before, listen = self._by_name, self.config.listen
        models = (_with_load_time(model, before.get(model.name)) for model in config.models)
        config = replace(config, models=tuple(models))
        self._set_config(config)
        if config.listen != listen:
            self._listener.noted("", f"`listen` is now {config.listen}; restart the gateway to apply it")
        self.handle(events.ConfigChanged(_scheduled_models(config), _scheduler_limits(config)))
        self._preload(
            model for model in config.models if model.name not in before or not before[model.name].preload
        )

    def pin(self, name: str, is_pinned: bool) -> None:
        models = (replace(m, pinned=is_pinned) if m.name == name else m for m in self.config.models)
        self.change(replace(self.config, models=tuple(models)))

    def set_ttl(self, name: str, ttl_s: float | None) -> None:
        if self._by_name[name].ttl_s != ttl_s:
            models = (replace(m, ttl_s=ttl_s) if m.name == name else m for m in self.config.models)
            self.change(replace(self.config, models=tuple(models)))

    def set_running(self, name: str, running: RunningModel) -> None:
        """It was found running, not started by a job."""
        identity = self._jobs.identities[name] = self.identity(name)
        if not self._jobs.started.is_mine(name, identity):
            self._jobs.started.discard(name)
        self._jobs.running[name] = running
        self.handle(events.ModelLoaded(name, running.bytes))

    def set_lost(self, event: events.ModelUnloaded | events.ModelCrashed | events.LoadFailed) -> None:
        """It ran, and no longer does."""
        self._jobs.running.pop(event.model, None)
        if not isinstance(event, events.ModelUnloaded):
            forget_proof(self._home, event.model)
        if not (isinstance(event, events.ModelCrashed) and event.is_returning):
            self._jobs.started.discard(event.model)
        self.handle(event)

    def note(self, name: str, text: str) -> None:
        self._jobs.note(name, text)

    # --- queries ---

    def model_config(self, name: str) -> ModelConfig | None:
        return self._by_name.get(name)

    @property
    def apis(self) -> Mapping[str, tuple[ServerApiName, ...]]:
        """What outside servers and commands were found to speak, by URL."""
        return self._jobs.apis

    def learn_context(self, name: str, context: int | None) -> None:
        self._jobs.contexts[name] = context

    def knows_context(self, name: str) -> bool:
        return name in self._jobs.contexts

    def learn_apis(self, name: str, url: str, apis: tuple[ServerApiName, ...]) -> None:
        self._jobs.learn_apis(name, url, apis)

    def running(self, name: str) -> RunningModel | None:
        """Where one of our models answers; the URLs of an outside one are in its configuration."""
        return self._jobs.running.get(name)

    def views(self, *, with_previews: bool = False) -> list[ModelView]:
        """In the order of the file, then removed models that still run."""
        now_s = uptime()
        statuses = {status.name: status for status in self._scheduler.snapshot(now_s)}
        removed = [ModelConfig(name, "", ()) for name in statuses if name not in self._by_name]
        views = [self._view(model, statuses.get(model.name)) for model in (*self._by_name.values(), *removed)]
        if not with_previews:
            return views
        return [
            replace(view, preview=self._scheduler.preview(view.config.name, now_s)) if view.status else view
            for view in views
        ]

    def view(self, name: str) -> ModelView | None:
        """Of a model in the file. Its cost does not grow with the number of models."""
        model = self._by_name.get(name)
        return self._view(model, self._status(name)) if model else None

    def loading(self) -> ModelView | None:
        """The model that is being loaded, if any."""
        name = self._scheduler.loading()
        if name is None:
            return None
        model = self._by_name.get(name) or ModelConfig(name, "", ())  # removed, and its load not yet ended
        return self._view(model, self._status(name))

    def preview(self, name: str) -> LoadPreview:
        """What a load of this model would do. It can be served."""
        return self._scheduler.preview(name, uptime())

    def impossible(self) -> dict[str, str]:
        """Models that this file never lets load, and why."""
        return self._scheduler.impossible()

    def _status(self, name: str) -> events.ScheduledModel | None:
        try:
            return self._scheduler.status(name, uptime())
        except KeyError:  # it can never be served, so the scheduler does not know it
            return None

    def _view(self, model: ModelConfig, status: events.ScheduledModel | None) -> ModelView:
        jobs, name = self._jobs, model.name
        running, progress, note = jobs.running.get(name), jobs.progress.get(name), jobs.notes.get(name, "")
        # What its server says, and no more than the file allows.
        known = [
            each for each in (model.context or jobs.contexts.get(name), model.parameters.context) if each
        ]
        if known and min(known) != model.context:
            model = replace(model, context=min(known))
        return ModelView(model, status, running, progress, note)

    def phase(self, name: str) -> str:
        status = self._status(name)
        return status.phase if status else "off"

    def identity(self, name: str) -> str:
        """Of what should run under this name: what was started, or else what the file says."""
        model = self.model_config(name)
        configured = model.identity if model else ""
        return configured if self.phase(name) == "off" else self._jobs.identities.get(name, configured)

    def generation(self, name: str) -> int | None:
        """Changes whenever a job of this model starts or ends; None while one is under way."""
        return self._jobs.generation(name)

    # --- effects ---

    def _execute(self, effect: events.Effect) -> None:
        """An error in the listener must not lose the other effects."""
        try:
            match effect:
                case events.GrantRequest():
                    self._listener.granted(effect.request, effect.model)
                case events.RejectRequest():
                    self._listener.rejected(effect)
                case events.LoadModel(name):
                    waiting = self._scheduler.status(name, uptime()).waiting
                    self._jobs.start_load(name, self._by_name.get(name), waiting)
                case events.UnloadModel(name):
                    statuses = self._scheduler.snapshot(uptime())
                    waiting_models = [
                        other.name for other in statuses if other.waiting and other.phase == "off"
                    ]
                    self._jobs.start_unload(name, waiting_models)
        except Exception as error:
            context = {"message": f"the gateway could not carry out {effect}", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)

    def _job_finished(self, event: JobEvent) -> None:
        if isinstance(event, events.ModelLoaded):
            self._learn_load_time(event.model)
        if not self._is_closed:
            self._read_memory()
            self.handle(event)

    def _learn_load_time(self, name: str) -> None:
        """The next load is expected to take as long as this one did."""
        load_s = self._jobs.running[name].load_s
        if load_s is not None and name in self._by_name:
            models = (replace(m, load_s=load_s) if m.name == name else m for m in self.config.models)
            self._set_config(replace(self.config, models=tuple(models)))

    def _read_memory(self) -> None:
        with suppress(HostNotReady):
            self.handle(events.MemoryReading(meminfo().available_bytes, self.config.keep_free_bytes))

    async def _read_memory_for_waiting(self) -> None:
        """Only while a model is needed: otherwise no decision depends on it."""
        if any(status.is_needed for status in self._scheduler.snapshot(uptime())):
            self._read_memory()

    def _preload(self, models: Iterable[ModelConfig]) -> None:
        for model in models:
            if model.preload and model.why_not is None:
                self.handle(events.LoadRequested(model.name, True))

    def _set_config(self, config: ServiceConfig) -> None:
        self.config, self._by_name = config, config.by_name
        self._unservable = {model.name: model.why_not for model in config.models if model.why_not}

    def _set_timer(self) -> None:
        """A timer that goes off too early costs one look; resetting it for each request costs more."""
        now_s = uptime()
        tick_s = self._scheduler.next_tick_s(now_s)
        if tick_s is None or self._is_closed or (self._timer and self._timer_s <= tick_s):
            return
        if self._timer:
            self._timer.cancel()
        self._timer_s = tick_s
        self._timer = asyncio.get_running_loop().call_later(max(0.0, tick_s - now_s), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.handle(events.TimePassed())


def _with_load_time(model: ModelConfig, before: ModelConfig | None) -> ModelConfig:
    """Of a command the reader of the file knows no load time; the last one here still applies."""
    is_same = before is not None and before.identity == model.identity and "cmd" in model.ask
    return replace(model, load_s=before.load_s) if before is not None and is_same else model


def _scheduled_models(config: ServiceConfig) -> tuple[ModelConfig, ...]:
    """Models that can be served; requests for the others are rejected with the reason."""
    return tuple(model for model in config.models if model.why_not is None)


def _scheduler_limits(config: ServiceConfig) -> events.SchedulerLimits:
    return events.SchedulerLimits(
        config.ceiling_bytes,
        tuple(frozenset(group) for group in config.never_together),
        config.min_dwell_s,
        config.max_wait_s,
        config.queue,
        idle_grace_s=_IDLE_GRACE_S,
    )
