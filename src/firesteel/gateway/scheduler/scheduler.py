"""Who is served, who waits, what is loaded and what must go. Events in, effects out; DESIGN.md says why.

    schedule = Schedule(models, limits, now_s)
    effects = schedule.tell(Asked(1, "coder"), now_s)

Nothing here waits, reads a clock or touches the world. One caller tells it everything, in order; what it says
is to be carried out, and what came of it is the next event. A first `Ticked` gets the pinned ones loaded.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from math import inf

from firesteel.gateway.memory_budget import MemoryBudget
from firesteel.gateway.scheduler.admission import turned_away, why_failed
from firesteel.gateway.scheduler.capacity import Capacity, used_bytes
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
    ModelPhase,
    ModelStatus,
    ModelUnloaded,
    RequestAbandoned,
    RequestArrived,
    RequestFinished,
    ScheduledModel,
    SchedulerEvent,
    SchedulerLimits,
    TimePassed,
    UnloadModel,
)
from firesteel.gateway.scheduler.model_state import ModelState, new_model_state
from firesteel.gateway.scheduler.requests import Requests


class Scheduler:
    """The one owner of who waits and what is loaded."""

    def __init__(self, models: Iterable[ScheduledModel], limits: SchedulerLimits, now_s: float = 0.0) -> None:
        self.limits = limits
        self._places = {model.name: new_model_state(model, now_s) for model in models}
        self._requests = Requests()
        self._host = MemoryBudget()
        self._owed: ModelState | None = None
        """The one that has waited too long, and whose turn it is."""
        self._way: list[ModelState] = []
        """What is in its way: no new grants there."""
        self._promised: ModelState | None = None
        """For whom something was unloaded: it goes next, else that was for nothing."""
        self._is_calm = False
        """Nothing that is off is wanted, so nothing follows from a model becoming idle."""
        self._tick_s = now_s

    def tell(self, event: SchedulerEvent, now_s: float) -> list[Effect]:
        """What to do, now that this happened."""
        if isinstance(event, RequestArrived):
            if self.grants(event.request, event.model, now_s):
                return [GrantRequest(event.request, event.model)]
        elif isinstance(event, (RequestFinished, RequestAbandoned)) and self.ends(event.request, now_s):
            return []
        out: list[Effect] = []
        self._hear(event, now_s, out)
        self._settle(now_s, out)
        return out

    def grants(self, request: Hashable, model: str, now_s: float) -> bool:
        """Whether it is served at once, as nearly all are. Else nothing happened, and it is to be `Asked`."""
        place = self._places.get(model)
        if place is None or not place.is_open:
            return False
        self._requests.serve(place, request, now_s)
        return True

    def ends(self, request: Hashable, now_s: float) -> bool:
        """It is over, whether it was served or waited. False: something may follow, and is said to the next
        event, be it `Ticked`."""
        place = self._requests.over(request, now_s)
        return place is None or self._stays_calm(place, now_s)

    def next_tick_s(self, now_s: float) -> float | None:
        """The time, by the clock of `now_s` and not before it, at which `Ticked` is due; None: not at all."""
        return None if self._tick_s == inf else max(now_s, self._tick_s)

    def phase(self, name: str) -> ModelPhase:
        return self._places[name].phase

    def waiting(self, name: str) -> int:
        return len(self._places[name].waiting)

    def busy(self, name: str) -> int:
        return len(self._places[name].busy)

    def used_bytes(self) -> int:
        return used_bytes(self._places.values())

    def snapshot(self, now_s: float) -> tuple[ModelStatus, ...]:
        """Every model, in the file's order; last those that are out of the file and not gone yet."""
        return tuple(place.standing(now_s) for place in self._places.values())

    # -- what happened --

    def _hear(self, event: SchedulerEvent, now_s: float, out: list[Effect]) -> None:
        match event:
            case RequestArrived():
                self._asked(event, now_s, out)
            case ConfigChanged():
                self._changed(event, now_s, out)
            case MemoryReading():
                self._host.read(event.available_bytes - event.keep_free_bytes, self._places.values())
            case ModelLoaded() | LoadFailed() | ModelUnloaded() | ModelCrashed() | LoadRequested():
                place = self._places.get(event.model)
                if place is not None:
                    self._hear_of(place, event, now_s, out)
            case RequestAbandoned() | RequestFinished() | TimePassed():
                pass

    def _hear_of(
        self,
        place: ModelState,
        event: ModelLoaded | LoadFailed | ModelUnloaded | ModelCrashed | LoadRequested,
        now_s: float,
        out: list[Effect],
    ) -> None:
        match event:
            case ModelLoaded():
                self._loaded(place, event.bytes, now_s, out)
            case LoadFailed():
                self._failed(place, event.why, now_s, out)
            case ModelUnloaded():
                self._gone(place, now_s, out)
            case ModelCrashed():
                self._crashed(place, event, now_s, out)
            case LoadRequested():
                self._wanted(place, event.is_loaded, now_s)

    def _asked(self, event: RequestArrived, now_s: float, out: list[Effect]) -> None:
        place = self._places.get(event.model)
        refusal = turned_away(event, place, self._room(now_s), self._requests.waiting)
        if refusal:
            out.append(refusal)
        elif place is not None:
            self._requests.wait(place, event.request, event.priority, now_s)

    def _stays_calm(self, place: ModelState, now_s: float) -> bool:
        """Whether nothing follows from somebody's end there: it serves on, and nobody needs its room."""
        ttl_s = place.model.ttl_s
        return self._is_calm and place.is_open and (ttl_s is None or self._tick_s <= now_s + ttl_s)

    def _loaded(self, place: ModelState, measured_bytes: int | None, now_s: float, out: list[Effect]) -> None:
        if place.phase == "unloading":
            return
        if place.phase == "ready":
            place.measure(measured_bytes)
            return
        is_its_turn = place.phase == "loading" and not place.is_returning
        place.come_up(measured_bytes, now_s)
        # Those for whom it was loaded are served even if it must go at once: else two models could take turns
        # at coming up and serve nobody.
        if is_its_turn and not place.is_removed and not place.is_stale:
            self._grant_waiters(place, now_s, out)

    def _failed(self, place: ModelState, why: str, now_s: float, out: list[Effect]) -> None:
        if place.phase == "ready":
            self._crashed(place, ModelCrashed(place.name, why), now_s, out)
        if place.phase != "loading":
            return
        self._fail(place, why, now_s, out)
        self._off(place, now_s)

    def _fail(self, place: ModelState, why: str, now_s: float, out: list[Effect]) -> None:
        """A load. If the file says something else by now, those who wait get that: it may be the cure."""
        if not place.is_stale:
            place.fail(why, now_s)
            self._requests.refuse(place, "failed", why_failed(place, now_s), place.retry_s - now_s, out)

    def _gone(self, place: ModelState, now_s: float, out: list[Effect]) -> None:
        """Also when somebody else stopped it."""
        if place.is_outside or place.phase == "off":
            return
        if place.phase == "loading":
            self._failed(place, "it was stopped while it was loading", now_s, out)
            return
        self._off(place, now_s)
        self._host.hear_gone(place)

    def _crashed(self, place: ModelState, event: ModelCrashed, now_s: float, out: list[Effect]) -> None:
        if place.is_outside:
            place.why = event.why
            if place.phase == "ready":
                place.enter("off", now_s)
            return
        if place.phase == "unloading" or (place.phase == "off" and not event.is_returning):
            return
        if event.is_returning:
            self._returns(place, event.why, now_s)
            return
        if place.phase == "loading":
            self._fail(place, event.why, now_s, out)
        else:
            place.crash(event.why, now_s)
        # Its processes are dead, but their memory may still be coming back: an unload waits for that.
        self._requests.release(place)
        self._stop(place, now_s, out)

    def _returns(self, place: ModelState, why: str, now_s: float) -> None:
        if place.phase == "loading":
            place.why = why
            return
        self._requests.release(place)
        if place.phase == "off":
            place.start(now_s)
        place.enter("loading", now_s)
        place.why, place.is_returning = why, True

    def _wanted(self, place: ModelState, is_loaded: bool, now_s: float) -> None:
        if place.is_outside or place.is_removed or (place.is_pinned and not is_loaded):
            return
        if place.phase in ("off", "unloading"):
            place.wanted_s = now_s if is_loaded else None
            place.retry_s = now_s if is_loaded else place.retry_s
            return
        place.is_unwanted = not is_loaded
        place.idle_s = now_s

    def _changed(self, event: ConfigChanged, now_s: float, out: list[Effect]) -> None:
        self.limits = event.limits
        before, self._places = self._places, {}
        for model in event.models:
            place = before.pop(model.name, None)
            self._places[model.name] = (
                self._follow(place, model, now_s) if place else new_model_state(model, now_s)
            )
        for name, place in before.items():
            self._requests.refuse(place, "unknown", f"`{name}` is no longer in the service file", None, out)
            place.is_removed, place.wanted_s = True, None
            if place.is_outside or place.phase == "off":
                self._requests.release(place)
            else:
                self._places[name] = place

    def _follow(self, place: ModelState, model: ScheduledModel, now_s: float) -> ModelState:
        if place.is_outside and not model.is_outside:
            self._requests.release(place)
        place.follow(model, now_s)
        return place

    # -- what follows from it --

    def _settle(self, now_s: float, out: list[Effect]) -> None:
        """After every event the same questions, in this order."""
        self._let_go(now_s, out)
        self._refuse_hopeless(now_s, out)
        self._who_is_next(now_s, out)
        self._open(now_s, out)
        self._set_tick(now_s)

    def _let_go(self, now_s: float, out: list[Effect]) -> None:
        """Who is idle for too long; and whoever is leaving, once idle."""
        for place in self._places.values():
            expires_s = place.expires_s()
            if expires_s is not None and now_s >= expires_s:
                self._unload(place, now_s, out)
        self._part(now_s)
        for place in self._places.values():
            if place.is_idle and not place.is_outside and place.is_leaving:
                self._unload(place, now_s, out)

    def _part(self, now_s: float) -> None:
        unwelcome = self._room(now_s).unwelcome() if self.limits.never_together else []
        for place in self._places.values():
            place.is_unwelcome = place in unwelcome

    def _refuse_hopeless(self, now_s: float, out: list[Effect]) -> None:
        """Who cannot be served as the file is now, and who waits for one that does not stop."""
        for place in self._places.values():
            if place.phase == "off" and not place.is_outside and place.first_s(now_s) is not None:
                never = self._room(now_s).why_never(place)
                if never:
                    place.why = never
                    self._requests.refuse(place, "too large", never, None, out)
                    place.wanted_s = place.wanted_s if place.is_pinned else None
            elif place.waiting and place.is_stuck(self.limits, now_s):
                self._refuse_overdue(place, self._room(now_s).why_not(place), now_s, out)

    def _who_is_next(self, now_s: float, out: list[Effect]) -> None:
        next_up = self._next_up(now_s)
        self._is_calm = not next_up
        overdue = [place for place in next_up if self._is_overdue(place, now_s)]
        if any(place.phase == "loading" for place in self._places.values()):
            # Who was made to wait for it keeps waiting: a model that comes back again and again must not
            # give the rest a new start each time.
            if not overdue or overdue[0] is not self._owed:
                self._owed, self._way = None, []
            return
        if not self._serve_overdue(overdue, now_s, out):
            self._owed, self._way = None, []
            self._serve_next(now_s, out)

    def _serve_overdue(self, overdue: list[ModelState], now_s: float, out: list[Effect]) -> bool:
        """The first of them alone; who can have no room is told so, and is in nobody's way."""
        for place in overdue:
            room = self._room(now_s)
            must_go = room.what_must_go(place, self._way)
            if must_go is not None:
                self._owed, self._way = place, must_go
                self._make_room(place, must_go, now_s, out)
                return True
            why = place.why = room.why_not(place)
            self._refuse_overdue(place, why, now_s, out)
            if place.wanted_s is not None and now_s >= place.wanted_s + self.limits.max_wait_s:
                place.wanted_s = now_s if place.is_pinned else None
        return False

    def _serve_next(self, now_s: float, out: list[Effect]) -> None:
        next_up = self._next_up(now_s)
        if self._promised not in next_up:
            self._promised = None
        for place in sorted(next_up, key=lambda each: each is not self._promised):
            can_go = self._room(now_s).what_can_go(place)
            if can_go is not None:
                self._make_room(place, can_go, now_s, out)
                return

    def _make_room(self, place: ModelState, go: list[ModelState], now_s: float, out: list[Effect]) -> None:
        for other in go:
            if other.is_idle:
                self._promised = place
                self._unload(other, now_s, out)
        if self._room(now_s).has_place_for(place):
            place.start(now_s)
            out.append(LoadModel(place.name))

    def _open(self, now_s: float, out: list[Effect]) -> None:
        """Whom can we serve?"""
        self._part(now_s)
        for place in self._places.values():
            place.is_open = place.phase == "ready" and not place.is_leaving and place not in self._way
            if place.is_open and place.waiting:
                self._grant_waiters(place, now_s, out)

    def _set_tick(self, now_s: float) -> None:
        """The next moment at which time alone changes an answer."""
        times = [self._overdue_s(each.waits_since_s) for each in self._places.values()]
        times += [self._overdue_s(each.wanted_s) for each in self._places.values()]
        times += [each.expires_s() for each in self._places.values()]
        times += [each.wanted_s for each in self._places.values() if each.phase == "off"]
        if not self._is_calm:
            times += [each.dwells_until_s(self.limits) for each in self._places.values() if each.is_idle]
        if self._requests.waiting or not self._is_calm:
            stops = [each for each in self._places.values() if each.phase == "unloading"]
            times += [each.since_s + self.limits.stop_s for each in stops]
        self._tick_s = min((each for each in times if each is not None and each > now_s), default=inf)

    # -- small moves --

    def _next_up(self, now_s: float) -> list[ModelState]:
        """Models that are off and wanted, in their turn: who is overdue by age, then by priority and age."""
        room = self._room(now_s)
        ranked: list[tuple[bool, int, float, int, int, ModelState]] = []
        for index, place in enumerate(self._places.values()):
            first_s = place.first_s(now_s)
            if place.phase != "off" or place.is_outside or first_s is None or room.why_never(place):
                continue
            is_overdue = self._is_overdue(place, now_s)
            priority = 0 if is_overdue else max((each.priority for each in place.waiting.values()), default=0)
            ranked.append((not is_overdue, -priority, first_s, place.first_turn, index, place))
        return [place for *_, place in sorted(ranked)]

    def _is_overdue(self, place: ModelState, now_s: float) -> bool:
        overdue_s = self._overdue_s(place.first_s(now_s))
        return overdue_s is not None and now_s >= overdue_s

    def _overdue_s(self, since_s: float | None) -> float | None:
        return None if since_s is None else since_s + self.limits.max_wait_s

    def _grant_waiters(self, place: ModelState, now_s: float, out: list[Effect]) -> None:
        self._requests.grant_all(place, self.limits.max_wait_s, now_s, out)

    def _refuse_overdue(self, place: ModelState, why: str, now_s: float, out: list[Effect]) -> None:
        self._requests.refuse_overdue(place, why, self.limits.max_wait_s, now_s, out)

    def _unload(self, place: ModelState, now_s: float, out: list[Effect]) -> None:
        """One that is well: whatever failed before is forgotten."""
        place.forgive()
        self._stop(place, now_s, out)

    def _stop(self, place: ModelState, now_s: float, out: list[Effect]) -> None:
        place.enter("unloading", now_s)
        out.append(UnloadModel(place.name))

    def _off(self, place: ModelState, now_s: float) -> None:
        self._requests.release(place)
        place.go_off(now_s)
        if place.is_removed:
            del self._places[place.name]

    def _room(self, now_s: float) -> Capacity:
        return Capacity(self._places.values(), self.limits, self._host.bytes, now_s)
