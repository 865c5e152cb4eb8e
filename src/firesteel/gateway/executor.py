"""Carries out what the schedule says, and comes back with what happened.

    swap = Swap(reading, LoaderHands(), front, home)
    await swap.start()                  finds what runs already
    swap.tell(Asked(request, "coder"))  -> front.granted(...) before it returns, if the model is ready
    await swap.close(keep=False)

The schedule (`schedule.py`) decides and touches nothing; this drives it, on one loop and one clock. A `Load`
is a task over `Hands`, and ends with one `Loaded` or `Failed` whatever becomes of the child; an `Unload` ends
with one `Gone`, after the processes went and the memory settled. Nobody waits for an event that never comes.

`turn(name)` counts the jobs of a model: whoever looked at the world while one began or ended saw something
between two states, and must look again (`health.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Hashable
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from firesteel.edge.files.home import Home
from firesteel.edge.host.memory import meminfo
from firesteel.edge.host.process import uptime
from firesteel.errors import HostNotReady
from firesteel.gateway.discovery import OwnServices, identity_of
from firesteel.gateway.interfaces import WaitStatus
from firesteel.gateway.loader.memory_release import ExpectedRelease, wait_until_released
from firesteel.gateway.loader.process import Loader, LoaderFailed, LoadProgress
from firesteel.gateway.periodic import repeat
from firesteel.gateway.scheduler.events import (
    ConfigChanged,
    Effect,
    GrantRequest,
    LoadFailed,
    LoadModel,
    LoadRequested,
    MemoryReading,
    ModelCrashed,
    ModelLoaded,
    ModelStatus,
    ModelUnloaded,
    RefuseRequest,
    RequestArrived,
    RequestFinished,
    ScheduledModel,
    SchedulerEvent,
    SchedulerLimits,
    TimePassed,
    UnloadModel,
)
from firesteel.gateway.scheduler.scheduler import Scheduler
from firesteel.gateway.service_config import ModelConfig, Reason, RunningModel, ServiceConfig
from firesteel.run.service import load

_MEMORY_S = 2.0
_STOP_TRIES = 3
_LULL_S = 10.0
"""Between two turns of an agent; after it the model is there for whoever waits for another."""
_NO_RESULT = Reason("the loader ended without a result")
_DOING = {
    "plan": "loading",
    "check": "checking for",
    "pull": "fetching",
    "launch": "loading",
    "warm": "warming up",
    "verify": "proving",
}


Swapped = Literal["loaded", "failed", "gone"]


class ExecutorListener(Protocol):
    """Who is told. Plain calls on the loop; none may block."""

    def granted(self, request: Hashable, model: str) -> None: ...

    def refused(self, refusal: RefuseRequest) -> None: ...

    def told(self, model: str, news: WaitStatus) -> None:
        """For those who wait for this model."""

    def noted(self, model: str, words: str) -> None:
        """For the log and for whoever follows events; `model` is empty for what is of no one model."""

    def swapped(self, model: str, what: Swapped, seconds: float, why: str) -> None:
        """A load or an unload came to its end. `why` is a word, of a load that failed."""


@dataclass(frozen=True, slots=True)
class ModelView:
    """How one model stands, for those who show it."""

    served: ModelConfig
    standing: ModelStatus | None
    """None: it cannot be served, `served.why_not` says why."""
    up: RunningModel | None
    news: WaitStatus | None
    """Of a load that is under way."""
    note: str = ""
    """Something else runs under its name; it does not answer; it is coming back by itself."""


class Executor:
    """Drives one schedule. Everything happens on the loop that it was started on."""

    def __init__(
        self,
        reading: ServiceConfig,
        hands: Loader,
        front: ExecutorListener,
        home: Home,
        *,
        pause_s: float = 2.0,
    ) -> None:
        """`pause_s`: before a stop that failed is tried again; it doubles."""
        self._pause_s = pause_s
        self._hands, self._front, self._home = hands, front, home
        self._hold(reading)
        self._schedule = Scheduler(_models(reading), _limits(reading), uptime())
        self._events: deque[SchedulerEvent] = deque()
        self._is_telling = False
        self._timer: asyncio.TimerHandle | None = None
        self._tick_s = 0.0
        """When the timer goes off."""
        self._jobs: dict[str, asyncio.Task[None]] = {}
        self._turns: dict[str, int] = {}
        self._loading: set[str] = set()
        self._ups: dict[str, RunningModel] = {}
        self._ran: dict[str, str] = {}
        """By name, the identity of what was brought up or found."""
        self._news: dict[str, WaitStatus] = {}
        self._notes: dict[str, str] = {}
        self._started = OwnServices(home)
        self._beat: asyncio.Task[None] | None = None
        self._is_closed = False

    # --- the doors ---

    async def start(self) -> None:
        """Reads the memory, and loads what is to be there from the start. After `Health.start`."""
        self._read_memory()
        for served in self.reading.models:
            if served.preload and served.why_not is None:
                self.tell(LoadRequested(served.name, True))
        self.tell(TimePassed())
        self._beat = asyncio.ensure_future(repeat(self._read_if_wanted, _MEMORY_S))

    def ask(self, request: Hashable, model: str, priority: int) -> None:
        """`Asked`, in a third of its time where the model is open: every request comes by here."""
        if not self._is_telling and self._schedule.grants(request, model, uptime()):
            self._front.granted(request, model)
        else:
            self.tell(RequestArrived(request, model, priority))

    def finished(self, request: Hashable) -> None:
        """`Finished`, likewise; where something follows from it, the schedule says so at the next event."""
        if self._is_telling:
            self.tell(RequestFinished(request))
        elif not self._schedule.ends(request, uptime()):
            self.tell(TimePassed())

    def tell(self, event: SchedulerEvent) -> None:
        """In order, one after the other: what is told from within an answer comes after it."""
        if isinstance(event, RequestArrived) and event.model in self._barred:
            self._front.refused(RefuseRequest(event.request, "failed", str(self._barred[event.model])))
            return
        self._events.append(event)
        if self._is_telling:
            return
        self._is_telling = True
        try:
            while self._events:  # each event is a finite answer; new ones come from the world
                for effect in self._schedule.tell(self._events.popleft(), uptime()):
                    self._do(effect)
        finally:
            self._is_telling = False
        self._set_timer()

    def change(self, reading: ServiceConfig) -> None:
        """Another service file. What it does not touch goes on."""
        before, listen = self._named, self.reading.listen
        self._hold(reading)
        if reading.listen != listen:
            self._front.noted("", f"`listen` is {reading.listen} now; that takes a new start of the gateway")
        self.tell(ConfigChanged(_models(reading), _limits(reading)))
        for served in reading.models:
            is_new = served.name not in before or not before[served.name].preload
            if served.preload and is_new and served.why_not is None:
                self.tell(LoadRequested(served.name, True))

    def _hold(self, reading: ServiceConfig) -> None:
        self.reading, self._named = reading, reading.named
        self._barred = {each.name: each.why_not for each in reading.models if each.why_not}

    def served(self, name: str) -> ModelConfig | None:
        return self._named.get(name)

    def up(self, name: str) -> RunningModel | None:
        """Where one of ours answers; an outside one's places are in `served`."""
        return self._ups.get(name)

    def shown(self) -> list[ModelView]:
        """In the file's order; then those that are out of it and not yet gone."""
        standings = self._standings()
        known = self._named
        rows = [self._shown(served, standings.get(served.name)) for served in known.values()]
        gone = (each for name, each in standings.items() if name not in known)
        return rows + [self._shown(ModelConfig(each.name, "", ()), each) for each in gone]

    def phase(self, name: str) -> str:
        try:
            return self._schedule.phase(name)
        except KeyError:
            return "off"

    def identity(self, name: str) -> str:
        """Of what should run under the name: what was brought up, or what the file says."""
        served = self.served(name)
        said = served.identity if served else ""
        return said if self.phase(name) == "off" else self._ran.get(name, said)

    def turn(self, name: str) -> int | None:
        """Changes whenever a job of this model begins or ends; None while one is under way."""
        return None if name in self._jobs else self._turns.get(name, 0)

    def found(self, name: str, up: RunningModel) -> None:
        """It runs, and we did not start it now."""
        self._ran[name] = self.identity(name)
        if not self._started.is_mine(name, self._ran[name]):
            self._started.discard(name)
        self._ups[name] = up
        self.tell(ModelLoaded(name, up.bytes))

    def lost(self, event: ModelUnloaded | ModelCrashed | LoadFailed) -> None:
        """It ran, and does not any more."""
        self._ups.pop(event.model, None)
        if not (isinstance(event, ModelCrashed) and event.is_returning):
            self._started.discard(event.model)
        self.tell(event)

    def note(self, name: str, words: str) -> None:
        """What there is to know of it beyond its phase; said once, shown until it changes."""
        if words == self._notes.get(name, ""):
            return
        self._notes[name] = words
        if words:
            self._front.noted(name, words)

    async def close(self, *, keep: bool) -> None:
        """Loads under way are taken back. What this gateway started is stopped, or left running (`keep`)."""
        self._is_closed = True
        if self._timer:
            self._timer.cancel()
        if self._beat:
            self._beat.cancel()
        for name, job in list(self._jobs.items()):
            if name in self._loading:  # a stop goes on to its end
                job.cancel()
        await asyncio.gather(*self._jobs.values(), return_exceptions=True)
        if not keep:
            mine = [name for name in self._ups if name in self._started]
            await asyncio.gather(*(self._stop(name) for name in mine), return_exceptions=True)

    # --- what the schedule says ---

    def _do(self, effect: Effect) -> None:
        """What goes wrong at the front is no reason to lose the rest."""
        try:
            match effect:
                case GrantRequest():
                    self._front.granted(effect.request, effect.model)
                case RefuseRequest():
                    self._front.refused(effect)
                case LoadModel():
                    self._begin(effect.model, self._load(effect.model))
                case UnloadModel():
                    self._begin(effect.model, self._unload(effect.model))
        except Exception as error:
            what = {"message": f"the gateway could not carry out {effect}", "exception": error}
            asyncio.get_running_loop().call_exception_handler(what)

    def _begin(self, name: str, job: Coroutine[Any, Any, None]) -> None:
        self._turns[name] = self._turns.get(name, 0) + 1
        self._jobs[name] = asyncio.ensure_future(job)

    def _end(self, name: str, *events: SchedulerEvent) -> None:
        """The job is over before the schedule hears of it: its next one may follow at once."""
        self._jobs.pop(name, None)
        self._loading.discard(name)
        self._turns[name] = self._turns.get(name, 0) + 1
        self._news.pop(name, None)
        if not self._is_closed:
            for event in events:
                self.tell(event)

    async def _load(self, name: str) -> None:
        outcome: ModelLoaded | LoadFailed = LoadFailed(name, "it was told to stop while it loaded")
        kind, began_s = "stopped", uptime()
        self._loading.add(name)
        self._notes.pop(name, None)  # what was said of it before is over
        try:
            served = self._named.get(name)
            if served is None:
                outcome, kind = LoadFailed(name, f"`{name}` is no longer in the service file"), "removed"
                return
            self._front.noted(name, f"{name} is loading{self._for_whom(name)}")
            await self._clear(served)
            up = await self._bring_up(served)
            self._ups[name], self._ran[name] = up, served.identity
            self._notes.pop(name, None)
            if not up.is_found:
                self._started.add(name, served.identity)
            self._learn(served, up)
            self._front.noted(name, f"{name} answers on {up.url}")
            outcome = ModelLoaded(name, up.bytes)
        except LoaderFailed as error:
            outcome, kind = LoadFailed(name, str(error.why)), error.why.kind.replace(" ", "_")
            if error.is_sudden:
                await self._take_back(name)
        except Exception as error:
            outcome, kind = LoadFailed(name, f"it was not loaded ({type(error).__name__}: {error})"), "broke"
            await self._take_back(name)
        finally:
            is_up = isinstance(outcome, ModelLoaded)
            if isinstance(outcome, LoadFailed):
                self._front.noted(name, f"{name} did not load: {outcome.why}")
            took_s = uptime() - began_s
            self._front.swapped(name, "loaded" if is_up else "failed", took_s, "" if is_up else kind)
            self._read_memory()
            self._end(name, outcome)

    async def _bring_up(self, served: ModelConfig) -> RunningModel:
        self._tell_waiters(served.name, LoadProgress("plan", "planning", None))
        async with aclosing(self._hands.load(served)) as lines:
            async for said in lines:
                if isinstance(said, RunningModel):
                    return said
                self._tell_waiters(served.name, said)
        raise LoaderFailed(_NO_RESULT, is_sudden=True)

    def _learn(self, served: ModelConfig, up: RunningModel) -> None:
        """What this load took is what the next one is said to take."""
        if up.load_s is not None:
            now = replace(served, load_s=up.load_s)
            models = tuple(now if each is served else each for each in self.reading.models)
            self._hold(replace(self.reading, models=models))

    async def _clear(self, served: ModelConfig) -> None:
        """What runs under the name and is not what the file says goes first."""
        service = await asyncio.to_thread(load, self._home, served.name)
        if service and service.phase != "dead" and identity_of(service.spec) != served.identity:
            self.note(served.name, f"another {served.name}, on {service.spec.url}, is stopped for it")
            await self._stop(served.name)

    async def _take_back(self, name: str) -> None:
        """A child that ended suddenly may have left a keeper with half a start."""
        service = await asyncio.to_thread(load, self._home, name)
        if service and service.phase != "dead":
            await self._stop(name)

    def _for_whom(self, name: str) -> str:
        waiting = self._schedule.waiting(name)
        return f": {waiting} wait for it" if waiting > 1 else ": somebody waits for it" if waiting else ""

    async def _unload(self, name: str) -> None:
        began_s = uptime()
        wanted = [each.name for each in self._standings().values() if each.waiting and each.phase == "off"]
        self._front.noted(name, f"{name} goes" + (f", for {' and '.join(wanted)}" if wanted else ""))
        try:
            if not await self._is_anothers(name):
                await self._stop(name)
        finally:
            self._ups.pop(name, None)
            self._front.swapped(name, "gone", uptime() - began_s, "")
            self._read_memory()
            self._end(name, ModelUnloaded(name))

    async def _is_anothers(self, name: str) -> bool:
        """Ours went, and somebody started something else under its name: that is not ours to stop."""
        service = await asyncio.to_thread(load, self._home, name)
        if service is None or service.phase == "dead":
            return False
        return name in self._ran and identity_of(service.spec) != self._ran[name]

    async def _stop(self, name: str) -> None:
        """Processes gone, memory settled. What will not go is tried again, and then left to the readings of
        the memory: the schedule is told that it went, and the next look around finds it running."""
        for attempt in range(_STOP_TRIES):
            try:
                freed = await self._ask_to_go(name)
            except LoaderFailed as error:
                self._front.noted(name, f"{name} does not stop: {error.why}")
                await asyncio.sleep(self._pause_s * 2**attempt)
                continue
            self._ups.pop(name, None)
            self._started.discard(name)
            await wait_until_released(freed)
            self._front.noted(name, f"{name} is gone, and the memory has settled")
            return

    async def _ask_to_go(self, name: str) -> ExpectedRelease:
        async with aclosing(self._hands.unload(name)) as lines:
            async for said in lines:
                if isinstance(said, ExpectedRelease):
                    return said
                self._news[name] = WaitStatus(said.words)
        raise LoaderFailed(_NO_RESULT, is_sudden=True)

    # --- beside it ---

    def _tell_waiters(self, name: str, said: LoadProgress) -> None:
        doing = _DOING.get(said.phase, said.phase)
        news = WaitStatus(f"{doing} {name}: {said.words}", said.eta_s)
        self._news[name] = news
        self._front.told(name, news)

    def _read_memory(self) -> None:
        with suppress(HostNotReady):
            available = meminfo().available_bytes
            if not self._is_closed:
                self.tell(MemoryReading(available, self.reading.keep_free_bytes))

    async def _read_if_wanted(self) -> None:
        """Only while somebody waits: otherwise nothing hangs on it."""
        if any(each.waiting for each in self._standings().values()):
            self._read_memory()

    def _set_timer(self) -> None:
        """A timer that goes off too soon costs one look; one that is set anew for each request costs more."""
        now_s = uptime()
        at_s = self._schedule.next_tick_s(now_s)
        if at_s is None or self._is_closed or (self._timer and self._tick_s <= at_s):
            return
        if self._timer:
            self._timer.cancel()
        self._tick_s = at_s
        self._timer = asyncio.get_running_loop().call_later(max(0.0, at_s - now_s), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.tell(TimePassed())

    def _standings(self) -> dict[str, ModelStatus]:
        return {each.name: each for each in self._schedule.snapshot(uptime())}

    def _shown(self, served: ModelConfig, standing: ModelStatus | None) -> ModelView:
        name = served.name
        return ModelView(
            served, standing, self._ups.get(name), self._news.get(name), self._notes.get(name, "")
        )


def _models(reading: ServiceConfig) -> tuple[ScheduledModel, ...]:
    """Those that can be served; of the others everybody is told why not."""
    return tuple(
        ScheduledModel(
            each.name, each.bytes, each.load_s, each.pinned, each.ttl_s, each.is_outside, each.identity
        )
        for each in reading.models
        if each.why_not is None
    )


def _limits(reading: ServiceConfig) -> SchedulerLimits:
    return SchedulerLimits(
        reading.ceiling_bytes,
        tuple(frozenset(group) for group in reading.never_together),
        reading.min_dwell_s,
        reading.max_wait_s,
        reading.queue,
        lull_s=_LULL_S,
    )
