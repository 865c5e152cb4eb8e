"""Random walks through everything that can happen to the scheduler, checked by an independent model of it.

A `World` plays the driver: it answers every `LoadModel` and `UnloadModel`, finishes requests, crashes models,
changes the service file and reads the memory. It keeps its own records of events and effects and never looks
into the scheduler; `scheduler_invariants.py` is checked against them. The file is long because `World` is
one class: each of its steps needs most of the records.

    walk(random.Random(7)).counts
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

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
    ModelUnloaded,
    RejectRequest,
    RequestAbandoned,
    RequestArrived,
    RequestFinished,
    RequestReturned,
    SchedulerEvent,
    SchedulerLimits,
    TimePassed,
    UnloadModel,
)
from firesteel.gateway.scheduler.scheduler import Scheduler
from firesteel.gateway.service_config import ModelConfig
from firesteel.values import replace
from tests.gateway.play import scheduled

from .scheduler_invariants import AFTER_EACH_STEP, EACH_EFFECT, HOST_BYTES, KEEP_BYTES, Broken

NAMES = ("a", "b", "c", "d", "e")


@dataclass
class Entry:
    """One model in our own books."""

    model: ModelConfig
    phase: str = "off"
    since_s: float = 0.0
    identity: str = ""
    held: int = 0
    truly: float = 1.0
    """Which part of it is in memory: less and less while it is unloading."""
    measured: dict[str, int] = field(default_factory=dict)
    is_ours: bool = True
    is_returning: bool = False
    is_crashed: bool = False
    is_unload_requested: bool = False
    is_cancelled: bool = False
    was_cancelled: bool = False
    """Its last load, and nobody has asked for it since."""
    is_removed: bool = False
    requested_s: float | None = None
    idle_s: float = 0.0
    failed_s: float | None = None
    """When its last load failed, if nobody did anything about it since."""

    @property
    def need(self) -> int:
        """For its next load."""
        return self.measured.get(self.model.identity, self.model.bytes)

    @property
    def bytes(self) -> int:
        return self.need if self.phase == "off" or not self.is_ours else self.held

    @property
    def holds_memory(self) -> bool:
        return self.phase != "off" or not self.is_ours

    @property
    def in_memory(self) -> int:
        return math.ceil(self.bytes * self.truly) if self.holds_memory else 0

    @property
    def is_stale(self) -> bool:
        return self.model.is_outside or self.identity != self.model.identity


class World:
    def __init__(self, rnd: random.Random, make: Callable[..., Scheduler] = Scheduler) -> None:
        self.rnd = rnd
        self.now_s = rnd.choice((0.0, 1000.0))
        self.limits = _limits(rnd)
        models = _models(rnd)
        self.scheduler = make(models, self.limits, self.now_s)
        self.entries: dict[str, Entry] = {}
        self.waiting: dict[int, tuple[str, float]] = {}
        """Who is owed an answer: which model, since when."""
        self.busy: dict[int, str] = {}
        self.keys: dict[int, str] = {}
        """Whose request each is."""
        self.strangers = 0
        self.read_strangers: int | None = None
        """What the strangers held at the last reading, if that reading tells the truth of now."""
        self.claim_s: float | None = None
        """Since when the model of the last load had been wanted."""
        self.asked = 0
        self.counts: Counter[str] = Counter()
        self.trail: list[tuple[float, SchedulerEvent, list[Effect]]] = []
        self._take_models(models)

    # -- the books --

    def handle(self, event: SchedulerEvent) -> list[Effect]:
        self.counts[type(event).__name__] += 1
        self._note(event)
        effects = self.scheduler.handle(event, self.now_s)
        self.trail.append((self.now_s, event, effects))
        for effect in effects:
            for check in EACH_EFFECT:
                check(self, effect)
            self._take(effect)
        for check_after in AFTER_EACH_STEP:
            check_after(self, effects)
        return effects

    def off(self, name: str) -> None:
        entry = self.entries[name]
        entry.phase, entry.since_s, entry.truly = "off", self.now_s, 1.0
        entry.is_returning = entry.is_crashed = entry.is_unload_requested = False
        entry.was_cancelled, entry.is_cancelled = entry.is_cancelled, False
        if entry.is_removed:
            del self.entries[name]
        elif entry.model.is_outside:
            entry.is_ours, entry.phase = False, "ready"

    def served_by(self, name: str) -> list[int]:
        return [request for request, model in self.busy.items() if model == name]

    def waiters(self, name: str) -> list[int]:
        return [request for request, (model, _) in self.waiting.items() if model == name]

    def requested_since_s(self, name: str) -> float | None:
        """Since when somebody waits for it, by name or by request."""
        entry = self.entries[name]
        times = [came for model, came in self.waiting.values() if model == name]
        if entry.requested_s is not None:
            times.append(entry.requested_s)
        if entry.model.pinned:
            times.append(entry.since_s)
        return min(times, default=None)

    def conflict(self, one: str, other: str) -> bool:
        return one != other and any({one, other} <= group for group in self.limits.never_together)

    def _take_models(self, models: tuple[ModelConfig, ...]) -> None:
        names = {model.name for model in models}
        for name, entry in list(self.entries.items()):
            if name not in names:
                entry.is_removed, entry.requested_s = True, None
                if not entry.is_ours or entry.phase == "off":
                    self._drop(name)
                    del self.entries[name]
        for model in models:
            self._take_model(model)

    def _take_model(self, model: ModelConfig) -> None:
        entry = self.entries.get(model.name)
        if entry is None:
            self.entries[model.name] = Entry(model, since_s=self.now_s)
            self.off(model.name)
            return
        was, entry.model, entry.is_removed = entry.model, model, False
        if model.identity != was.identity:
            entry.failed_s = None
        if model.pinned and not was.pinned:
            entry.was_cancelled = False
        if model.pinned:
            entry.is_unload_requested = False
        if not entry.is_ours and not model.is_outside:
            self._drop(model.name)
            entry.is_ours, entry.phase, entry.since_s = True, "off", self.now_s
        elif not entry.is_ours and was.identity != model.identity:
            entry.phase = "ready"
        elif entry.is_ours and entry.phase == "off" and model.is_outside:
            self.off(model.name)

    def _drop(self, name: str) -> None:
        for request in self.served_by(name):
            del self.busy[request]

    def _note(self, event: SchedulerEvent) -> None:
        """What the event itself says about the world."""
        match event:
            case RequestArrived():
                assert isinstance(event.request, int)
                self.waiting[event.request] = (event.model, self.now_s)
            case RequestAbandoned() | RequestFinished():
                assert isinstance(event.request, int)
                self.waiting.pop(event.request, None)
                model = self.busy.pop(event.request, None)
                if model is not None and not self.served_by(model):
                    self.entries[model].idle_s = self.now_s
            case RequestReturned():
                assert isinstance(event.request, int)
                self.waiting[event.request] = (event.model, self.now_s)
                if self.busy.pop(event.request, None) and not self.served_by(event.model):
                    self.entries[event.model].idle_s = self.now_s
            case ConfigChanged():
                self.limits = event.limits
                self._take_models(event.models)
            case MemoryReading():
                is_loading = any(entry.phase == "loading" for entry in self.entries.values())
                self.read_strangers = None if is_loading else self.strangers
            case ModelLoaded() | LoadFailed() | ModelUnloaded() | ModelCrashed() | LoadRequested() if (
                event.model in self.entries
            ):
                self._note_of(self.entries[event.model], event)
            case _:
                pass

    def _note_of(
        self, entry: Entry, event: ModelLoaded | LoadFailed | ModelUnloaded | ModelCrashed | LoadRequested
    ) -> None:
        name = event.model
        match event:
            case ModelLoaded() if entry.phase != "unloading":
                self._up(entry, event.bytes)
            case LoadFailed() | ModelUnloaded() if not entry.is_ours:
                pass
            case LoadFailed() | ModelUnloaded() if entry.phase == "loading":
                self._load_failed(entry)
                self.off(name)
            case ModelUnloaded() if entry.phase != "off":
                self._drop(name)
                self.off(name)
            case ModelCrashed() if not entry.is_ours:
                entry.phase = "off"
            case ModelCrashed() | LoadFailed() if entry.phase == "ready" or (
                isinstance(event, ModelCrashed) and event.is_returning and entry.phase == "off"
            ):
                self._drop(name)
                if isinstance(event, ModelCrashed) and event.is_returning:
                    if entry.phase == "off":
                        entry.identity, entry.held = entry.model.identity, entry.need
                    entry.phase, entry.is_returning = "loading", True
                else:
                    entry.is_crashed = True
            case ModelCrashed() if entry.phase == "loading" and not event.is_returning:
                self._load_failed(entry)
                entry.is_crashed = True
            case LoadRequested() if entry.is_ours:
                self._request(entry, event)
            case _:
                pass

    def _load_failed(self, entry: Entry) -> None:
        if not entry.is_stale:
            entry.requested_s, entry.failed_s = None, self.now_s

    def _up(self, entry: Entry, measured: int | None) -> None:
        if not entry.is_ours:
            if measured is not None:
                entry.measured[entry.model.identity] = measured
        else:
            if entry.phase == "off":
                entry.identity, entry.held = entry.model.identity, entry.need
            if measured is not None:
                entry.held = entry.measured[entry.identity] = measured
            if entry.phase != "ready" and not entry.is_stale:
                entry.requested_s = None
        entry.truly = 1.0
        if entry.phase != "ready":
            entry.since_s = entry.idle_s = self.now_s
        entry.phase, entry.is_returning = "ready", False
        entry.measured = (
            {entry.identity: entry.measured[entry.identity]}
            if (entry.is_ours and entry.identity in entry.measured)
            else entry.measured
        )

    def _request(self, entry: Entry, event: LoadRequested) -> None:
        is_loaded = event.is_loaded
        if entry.phase == "loading" and event.cancels and not is_loaded:
            entry.requested_s, entry.is_cancelled = None, True
            self.counts["cancelled"] += 1
            return
        if is_loaded and not entry.is_removed:
            entry.was_cancelled = False
        if entry.is_removed or (entry.model.pinned and not is_loaded):
            return
        if entry.phase in ("off", "unloading"):
            entry.requested_s = self.now_s if is_loaded else None
            entry.failed_s = None if is_loaded else entry.failed_s
        else:
            entry.is_unload_requested = not is_loaded
            entry.idle_s = self.now_s

    def _take(self, effect: Effect) -> None:
        self.counts[type(effect).__name__] += 1
        match effect:
            case GrantRequest():
                assert isinstance(effect.request, int)
                del self.waiting[effect.request]
                self.busy[effect.request] = effect.model
            case RejectRequest():
                assert isinstance(effect.request, int)
                self.counts[f"rejected: {effect.kind}"] += 1
                del self.waiting[effect.request]
            case LoadModel():
                entry = self.entries[effect.model]
                self.claim_s = self.requested_since_s(effect.model)
                entry.identity, entry.held = entry.model.identity, entry.need
                entry.phase, entry.since_s = "loading", self.now_s
            case UnloadModel():
                entry = self.entries[effect.model]
                if self.in_phase("unloading"):
                    self.read_strangers = None  # two on their way: no reading tells them apart
                self.counts[f"unloaded: {self._why_unloaded(entry)}"] += 1
                entry.phase, entry.since_s = "unloading", self.now_s

    def _why_unloaded(self, entry: Entry) -> str:
        if entry.is_crashed:
            return "after a crash"
        if entry.is_cancelled:
            return "cancelled"
        if entry.is_stale or entry.is_removed:
            return "the file changed"
        if entry.is_unload_requested:
            return "by name"
        ttl_s = entry.model.ttl_s
        is_expired = ttl_s is not None and self.now_s >= entry.idle_s + ttl_s
        return "idle too long" if is_expired else "for another"

    # -- what can happen --

    def step(self) -> None:
        self.now_s += self.rnd.choice(_PAUSES)
        move = self.rnd.choices(_MOVES, _WEIGHTS)[0]
        move(self)

    def ask(self, name: str | None = None) -> None:
        self.asked += 1
        names = [*self.entries, "nobody"] if self.rnd.random() < 0.05 else [*self.entries]
        self.handle(
            RequestArrived(
                self.asked, name or self.rnd.choice(names), self.rnd.choice((0, 0, 0, 1, 5)), self._key()
            )
        )

    def _key(self) -> str:
        """One key asks most."""
        key = self.keys[self.asked] = self.rnd.choice(("", "", "", "x", "y"))
        return key

    def leave(self) -> None:
        if self.waiting:
            self.handle(RequestAbandoned(self.rnd.choice([*self.waiting])))

    def finish(self) -> None:
        if self.busy:
            self.handle(RequestFinished(self.rnd.choice([*self.busy])))

    def give_back(self) -> None:
        """Its engine failed; the scheduler may know that already, or not."""
        if self.busy:
            request = self.rnd.choice([*self.busy])
            model, key = self.busy[request], self.keys.get(request, "")
            self.handle(RequestReturned(request, model, self.rnd.choice((0, 1)), key))

    def in_phase(self, phase: str) -> list[str]:
        return [name for name, entry in self.entries.items() if entry.phase == phase and entry.is_ours]

    def load_ends(self) -> None:
        loading = self.in_phase("loading")
        for name in [self.rnd.choice(loading)] if loading else []:
            if self.rnd.random() < 0.25:
                ways: tuple[SchedulerEvent, ...] = (
                    LoadFailed(name, "no memory"),
                    ModelCrashed(name, "died early"),
                    ModelUnloaded(name),
                )
                self.handle(self.rnd.choice(ways))
            else:
                held = self.entries[name].held
                self.handle(ModelLoaded(name, self.rnd.choice((None, None, held + 3, max(1, held - 4)))))

    def unload_ends(self) -> None:
        going = self.in_phase("unloading")
        if going:
            if self.rnd.random() < 0.6:
                self.read()
            self.handle(ModelUnloaded(self.rnd.choice(going)))

    def crash(self) -> None:
        ready = [name for name, entry in self.entries.items() if entry.phase == "ready"]
        if ready:
            self.handle(ModelCrashed(self.rnd.choice(ready), "it died", self.rnd.random() < 0.4))

    def stray(self) -> None:
        """Words that come late, twice, or about what is not there."""
        name = self.rnd.choice([*self.entries, "nobody"])
        entry = self.entries.get(name)
        strays: list[SchedulerEvent] = [
            RequestFinished(self.asked + 1000),
            RequestAbandoned(0),
            ModelUnloaded("nobody"),
            ModelCrashed("nobody", "x"),
        ]
        if entry is not None and entry.phase == "unloading":
            strays += [ModelLoaded(name, 7), LoadFailed(name, "late"), ModelCrashed(name, "late", True)]
        if entry is not None and entry.phase == "off" and entry.is_ours:
            strays += [ModelUnloaded(name), LoadFailed(name, "late"), ModelCrashed(name, "late")]
            strays += [ModelCrashed(name, "its supervisor restarts it", True)]
        if entry is not None and entry.phase == "ready":
            strays += [ModelUnloaded(name), ModelLoaded(name, None), LoadFailed(name, "late")]
        self.handle(self.rnd.choice(strays))

    def find(self) -> None:
        """Found running, or an outside one that answers again."""
        off = [name for name, entry in self.entries.items() if entry.phase == "off"]
        if off:
            self.handle(ModelLoaded(self.rnd.choice(off), self.rnd.choice((None, 20))))

    def tick(self) -> None:
        """Either when one is due, or a little before: then it must change nothing."""
        due_s = self.scheduler.next_tick_s(self.now_s)
        if due_s is None:
            self.now_s += 1000.0
        elif self.rnd.random() < 0.5 and due_s > self.now_s:
            self.now_s += (due_s - self.now_s) * 0.99
        else:
            self.now_s = due_s
            self.handle(TimePassed())
            return
        effects = self.handle(TimePassed())
        if effects:
            raise Broken("no_polling_needed", f"{effects} before {due_s}")

    def want(self) -> None:
        name = self.rnd.choice([*self.entries])
        self.handle(LoadRequested(name, self.rnd.random() < 0.6, cancels=self.rnd.random() < 0.5))

    def read(self) -> None:
        if self.rnd.random() < 0.5:
            self.strangers = self.rnd.choice((0, 0, 0, 20, 60, 110))
        held = 0
        for entry in self.entries.values():
            if entry.phase == "loading":
                entry.truly = self.rnd.random()
            elif entry.phase == "unloading":
                entry.truly *= self.rnd.random()
            held += entry.in_memory
        self.handle(MemoryReading(HOST_BYTES - self.strangers - held, KEEP_BYTES))

    def change(self) -> None:
        models = {name: entry.model for name, entry in self.entries.items() if not entry.is_removed}
        for _ in range(self.rnd.choice((1, 1, 2, 3))):
            self._edit(models)
        limits = self.limits if self.rnd.random() < 0.7 else _limits(self.rnd)
        order = [*models.values()]
        if self.rnd.random() < 0.2:
            self.rnd.shuffle(order)
        self.handle(ConfigChanged(tuple(order), limits))

    def _edit(self, models: dict[str, ModelConfig]) -> None:
        name = self.rnd.choice(NAMES)
        what = self.rnd.randrange(7)
        if name not in models or what == 0:
            models[name] = _model(self.rnd, name)
        elif what == 1 and len(models) > 1:
            del models[name]
        elif what == 2:
            models[name] = replace(models[name], pinned=not models[name].pinned)
        elif what == 3:
            models[name] = replace(models[name], identity=self.rnd.choice(("", "v2", "v3")))
        elif what == 4:
            models[name] = replace(models[name], bytes=self.rnd.choice(_SIZES))
        else:
            models[name] = replace(models[name], ttl_s=self.rnd.choice((None, 0.0, 50.0)))

    # -- the end --

    def wind_up(self, *, is_crowded: bool) -> None:
        """Everything ends: loads come up, unloads end, requests finish, time passes as `next_tick_s` says.

        A crowd keeps every model busy meanwhile; those who waited before it came must still be answered.
        """
        before = {*self.waiting}
        for _ in range(_ROUNDS):
            if not before & self.waiting.keys():
                return
            if is_crowded:
                self._crowd()
            elif not self._end_one() and not self._end_request():
                self._pass_time()
        raise Broken("no_hang", f"{sorted(before & self.waiting.keys())} wait after {_ROUNDS} rounds")

    def _end_one(self) -> bool:
        for name in self.in_phase("loading")[:1]:
            self.handle(ModelLoaded(name))
            return True
        for name in self.in_phase("unloading")[:1]:
            self.handle(ModelUnloaded(name))
            return True
        return False

    def _end_request(self) -> bool:
        for request in [*self.busy][:1]:
            self.handle(RequestFinished(request))
            return True
        return False

    def _crowd(self) -> None:
        """At every model that is up, the next request comes before the last one ends: it is never idle."""
        self.now_s += 5.0
        due_s = self.scheduler.next_tick_s(self.now_s)
        if due_s is not None and due_s <= self.now_s:
            self.handle(TimePassed())
        self._end_one()
        for name in self.in_phase("ready"):
            served = self.served_by(name)
            self.ask(name)
            for request in served:
                self.handle(RequestFinished(request))

    def _pass_time(self) -> None:
        due_s = self.scheduler.next_tick_s(self.now_s)
        if due_s is None:
            raise Broken("no_hang", f"{sorted(self.waiting)} wait, and no time is due")
        self.now_s = due_s
        self.handle(TimePassed())


_ROUNDS = 600
_SIZES = (10, 10, 25, 25, 25, 40, 40, 40, 60, 60, 85, 120)
_PAUSES = (0.0, 0.0, 0.5, 3.0, 20.0, 70.0)
_MOVES = (
    World.ask,
    World.leave,
    World.finish,
    World.give_back,
    World.load_ends,
    World.unload_ends,
    World.crash,
    World.stray,
    World.find,
    World.tick,
    World.want,
    World.read,
    World.change,
)
_WEIGHTS = (30, 5, 16, 2, 14, 14, 3, 2, 1, 8, 3, 4, 3)


def _limits(rnd: random.Random) -> SchedulerLimits:
    together = tuple(
        frozenset(rnd.sample(NAMES, rnd.choice((2, 2, 3)))) for _ in range(rnd.choice((0, 0, 1, 2)))
    )
    return SchedulerLimits(
        rnd.choice((100, 100, 100, 60)), together, rnd.choice((0.0, 30.0, 100.0)),
        rnd.choice((0.0, 40.0, 150.0)), rnd.choice((3, 50)), rnd.choice((60.0, 400.0)),
    )  # fmt: skip


def _model(rnd: random.Random, name: str) -> ModelConfig:
    return scheduled(
        name, rnd.choice(_SIZES), rnd.choice((5.0, 60.0)), rnd.random() < 0.08,
        rnd.choice((None, None, 40.0)), rnd.random() < 0.06, rnd.choice(("", "v2")),
    )  # fmt: skip


def _models(rnd: random.Random) -> tuple[ModelConfig, ...]:
    return tuple(_model(rnd, name) for name in NAMES[: rnd.choice((2, 3, 4, 5))])


def walk(rnd: random.Random, steps: int = 40, make: Callable[..., Scheduler] = Scheduler) -> World:
    """One walk, to its end. Raises `Broken` where an invariant does not hold."""
    world = World(rnd, make)
    wind(world, steps)
    return world


def wind(world: World, steps: int) -> None:
    for _ in range(steps):
        world.step()
    world.wind_up(is_crowded=world.rnd.random() < 0.5)
    world.counts["walks"] += 1
