"""Decides which requests run, which wait, and which models are loaded or evicted.

    scheduler = Scheduler(models, limits, now_s)
    effects = scheduler.handle(RequestArrived(1, "coder"), now_s)

Events in, effects out: nothing here waits, reads a clock or does I/O. One driver passes every event in order,
carries out the effects, and reports each result as another event. The first `TimePassed` loads the pinned
models. `DESIGN.md` explains the rules.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from math import inf
from typing import TypeVar

from firesteel.gateway.scheduler.capacity import Capacity, LoadPreview, MemoryBudget, preview_load
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
    ModelUnloaded,
    RejectionKind,
    RejectRequest,
    RequestAbandoned,
    RequestArrived,
    RequestFinished,
    RequestReturned,
    ScheduledModel,
    SchedulerEvent,
    SchedulerLimits,
    TimePassed,
    UnloadModel,
)
from firesteel.gateway.scheduler.model_state import ModelState, Waiter, new_model_state
from firesteel.gateway.service_config import ModelConfig
from firesteel.units import show_seconds
from firesteel.values import replace


class Scheduler:
    """Owns all state about waiting requests and loaded models."""

    def __init__(self, models: Iterable[ModelConfig], limits: SchedulerLimits, now_s: float = 0.0) -> None:
        self.limits = limits
        self._states = {model.name: new_model_state(model, now_s) for model in models}
        self._requests = Requests()
        self._memory = MemoryBudget()
        self._current_capacity: Capacity | None = None
        """None: a model has changed since it was made."""
        self._conflicting: list[ModelState] = []
        self._overdue: ModelState | None = None
        """The model that has waited longer than `max_wait_s` and is loaded next."""
        self._blocking: list[ModelState] = []
        """Models that must be evicted for it; they get no new grants."""
        self._reserved_for: ModelState | None = None
        """The model for which something was unloaded; it goes next, or that unload was useless."""
        self._is_settled = False
        """No model waits to be loaded, so a model that becomes idle changes nothing."""
        self._tick_s = now_s

    def handle(self, event: SchedulerEvent, now_s: float) -> list[Effect]:
        """Return what has to be done after this event."""
        if isinstance(event, RequestArrived):
            if self.try_grant(event.request, event.model, now_s):
                return [GrantRequest(event.request, event.model)]
        elif isinstance(event, (RequestFinished, RequestAbandoned)) and self.try_finish(event.request, now_s):
            return []
        out: list[Effect] = []
        self._apply(event, now_s, out)
        self._reschedule(now_s, out)
        return out

    def try_grant(self, request: Hashable, model: str, now_s: float) -> bool:
        """Serve at once if the model is open. False: nothing happened; send `RequestArrived`."""
        state = self._states.get(model)
        if state is None or not state.is_open:
            return False
        self._requests.start(state, request, now_s)
        return True

    def try_finish(self, request: Hashable, now_s: float) -> bool:
        """End a request that was served or waited. False: something may follow; send `TimePassed`."""
        state = self._requests.finish(request, now_s)
        if state is None:
            return True
        # It changes nothing if the model stays open and no other model needs its memory.
        ttl_s = state.config.ttl_s
        return self._is_settled and state.is_open and (ttl_s is None or self._tick_s <= now_s + ttl_s)

    def next_tick_s(self, now_s: float) -> float | None:
        """When `TimePassed` is due, not before `now_s`; None: not at all."""
        return None if self._tick_s == inf else max(now_s, self._tick_s)

    def phase(self, name: str) -> ModelPhase:
        return self._states[name].phase

    def loading(self) -> str | None:
        return self._capacity.loading[0].name if self._capacity.loading else None

    def status(self, name: str, now_s: float) -> ScheduledModel:
        return self._states[name].status(now_s)

    def preview(self, name: str, now_s: float) -> LoadPreview:
        return preview_load(self._capacity, self._states[name], now_s)

    def impossible(self) -> dict[str, str]:
        """Models that can never be loaded alongside those that always stay, and why."""
        found = ((state.name, self._capacity.why_impossible(state)) for state in self._capacity.impossible)
        return {name: why for name, why in found if why}

    def used_bytes(self) -> int:
        return self._capacity.used_bytes

    def snapshot(self, now_s: float) -> tuple[ScheduledModel, ...]:
        """Every model in the order of the file, then removed ones that still run."""
        return tuple(state.status(now_s) for state in self._states.values())

    # -- events --

    def _apply(self, event: SchedulerEvent, now_s: float, out: list[Effect]) -> None:
        match event:
            case RequestArrived():
                self._arrived(event, now_s, out)
            case RequestReturned():
                self._requests.finish(event.request, now_s)
                self._arrived(event, now_s, out)
            case ConfigChanged():
                self._changed(event, now_s, out)
                self._current_capacity = None
            case MemoryReading():
                free_bytes, capacity = event.available_bytes - event.keep_free_bytes, self._capacity
                self._memory.read(
                    free_bytes, capacity.used_bytes, capacity.unloading, is_loading=capacity.is_loading
                )
            case RequestAbandoned() | RequestFinished() | TimePassed():
                pass
            case _ if state := self._states.get(event.model):
                self._current_capacity = None
                match event:
                    case ModelLoaded():
                        self._loaded(state, event.bytes, now_s, out)
                    case LoadFailed():
                        self._failed(state, event.why, now_s, out)
                    case ModelUnloaded():
                        self._unloaded(state, now_s, out)
                    case ModelCrashed():
                        self._crashed(state, event, now_s, out)
                    case LoadRequested():
                        self._load_requested(state, event, now_s, out)

    def _arrived(self, event: RequestArrived | RequestReturned, now_s: float, out: list[Effect]) -> None:
        state = self._states.get(event.model)
        rejection = check_admission(event, state, self._capacity, self._requests.waiting, now_s)
        if state is not None and rejection is not None and rejection.kind == "full":
            last = self._requests.last_of_most(self._states.values(), state, event.key)
            if last is not None:
                self._requests.remove(last)
                out.append(replace(rejection, request=last))
                rejection = None
        if rejection:
            out.append(rejection)
        elif state is not None:
            self._requests.enqueue(state, event, now_s)

    def _loaded(self, state: ModelState, measured_bytes: int | None, now_s: float, out: list[Effect]) -> None:
        if state.phase == "unloading":
            return
        if state.phase == "ready":
            state.measure(measured_bytes)
            return
        was_loading = state.phase == "loading" and not state.is_returning
        state.set_ready(measured_bytes, now_s)
        # The requests it was loaded for are served even if it must be unloaded at once. Otherwise two models
        # could be loaded in turns and serve no requests.
        if was_loading and not state.is_removed and not state.is_stale:
            self._requests.grant_all(state, self.limits.max_wait_s, now_s, out)

    def _failed(self, state: ModelState, why: str, now_s: float, out: list[Effect]) -> None:
        if state.phase == "ready":
            self._crashed(state, ModelCrashed(state.name, why), now_s, out)
        if state.phase != "loading":
            return
        self._fail(state, why, now_s, out)
        self._set_off(state, now_s)

    def _fail(self, state: ModelState, why: str, now_s: float, out: list[Effect]) -> None:
        """A failed load. If the file has changed meanwhile, waiting requests get the new version."""
        if not state.is_stale:
            state.fail(why, now_s)
            self._requests.reject(state, "failed", failure_text(state, now_s), state.retry_s - now_s, out)

    def _unloaded(self, state: ModelState, now_s: float, out: list[Effect]) -> None:
        """Also when it was stopped outside the gateway."""
        if state.is_outside or state.phase == "off":
            return
        if state.phase == "loading":
            self._failed(state, "it was stopped while it was loading", now_s, out)
            return
        self._set_off(state, now_s)
        self._memory.subtract_unloaded(state)

    def _crashed(self, state: ModelState, event: ModelCrashed, now_s: float, out: list[Effect]) -> None:
        if state.is_outside:
            state.why = event.why
            if state.phase == "ready":
                state.enter("off", now_s)
            return
        if state.phase == "unloading" or (state.phase == "off" and not event.is_returning):
            return
        if event.is_returning:
            self._returning(state, event.why, now_s)
            return
        if state.phase == "loading":
            self._fail(state, event.why, now_s, out)
        else:
            state.crash(event.why, now_s)
        # Its processes are dead, but their memory may not be free yet: an unload waits for that.
        self._requests.release(state)
        self._start_unload(state, now_s, out)

    def _returning(self, state: ModelState, why: str, now_s: float) -> None:
        if state.phase == "loading":
            state.why = why
            return
        self._requests.release(state)
        if state.phase == "off":
            state.start(now_s)
        state.enter("loading", now_s)
        state.why, state.is_returning = why, True

    def _load_requested(
        self, state: ModelState, event: LoadRequested, now_s: float, out: list[Effect]
    ) -> None:
        is_loaded = event.is_loaded
        if state.phase == "loading" and event.cancels and not is_loaded:
            state.requested_s, state.is_cancelled = None, True
            why = f"the load of `{state.name}` was cancelled. The next request loads it again"
            self._requests.reject(state, "cancelled", why, None, out)
            self._start_unload(state, now_s, out)
            return
        if state.is_outside or state.is_removed or (state.is_pinned and not is_loaded):
            return
        if state.phase in ("off", "unloading"):
            state.requested_s = now_s if is_loaded else None
            state.retry_s = now_s if is_loaded else state.retry_s
            return
        state.is_unload_requested = not is_loaded
        state.idle_s = now_s

    def _changed(self, event: ConfigChanged, now_s: float, out: list[Effect]) -> None:
        self.limits = event.limits
        before, self._states = self._states, {}
        for model in event.models:
            state = before.pop(model.name) if model.name in before else new_model_state(model, now_s)
            self._states[model.name] = state
            if state.is_outside and not model.is_outside:
                self._requests.release(state)
            state.update_config(model, now_s)
        for name, state in before.items():
            self._requests.reject(state, "unknown", f"`{name}` is no longer in the service file", None, out)
            state.is_removed, state.requested_s = True, None
            if state.is_outside or state.phase == "off":
                self._requests.release(state)
            else:
                self._states[name] = state

    # -- decisions --

    def _reschedule(self, now_s: float, out: list[Effect]) -> None:
        """After every event, the same steps in this order."""
        self._unload_idle(now_s, out)
        self._reject_impossible(now_s, out)
        self._start_next_load(now_s, out)
        self._grant_waiting(now_s, out)
        self._tick_s = next_tick_s(
            self._capacity, now_s, is_settled=self._is_settled, has_waiting=self._requests.waiting > 0
        )

    def _unload_idle(self, now_s: float, out: list[Effect]) -> None:
        """Unload models whose `ttl` has passed, and leaving models once they are idle."""
        for state in self._capacity.expiring:
            expires_s = state.expires_s()
            if expires_s is not None and now_s >= expires_s:
                self._unload(state, now_s, out)
        self._mark_conflicts(now_s)
        for state in self._capacity.leaving:
            if state.is_idle and not state.is_outside:
                self._unload(state, now_s, out)

    def _mark_conflicts(self, now_s: float) -> None:
        before = {state for state in self._conflicting if state.is_conflicting}
        if not before and not self._capacity.contended:
            return
        self._conflicting = self._capacity.conflicting(now_s)
        if before != {*self._conflicting}:
            for state in before:
                state.is_conflicting = False
            for state in self._conflicting:
                state.is_conflicting = True
            self._current_capacity = None

    def _reject_impossible(self, now_s: float, out: list[Effect]) -> None:
        """Reject requests that can never be served, and overdue ones that wait for a stuck unload."""
        capacity = self._capacity
        for state in capacity.impossible:
            if state.requested_since_s(now_s) is not None and (why := capacity.why_impossible(state)):
                state.why = why
                self._requests.reject(state, "too large", why, None, out)
                state.requested_s = state.requested_s if state.is_pinned else None
        for state in capacity.unloading:
            if state.waiting and state.is_stuck(self.limits, now_s):
                why = capacity.shortage_text(state, now_s)
                self._requests.reject_overdue(state, why, self.limits.max_wait_s, now_s, out)

    def _start_next_load(self, now_s: float, out: list[Effect]) -> None:
        needed = self._capacity.needed(now_s)
        self._is_settled = not needed
        overdue = self._capacity.overdue(needed, now_s)
        if self._capacity.is_loading:
            # The overdue model keeps its turn: a model that restarts again and again must not reset it.
            if not overdue or overdue[0] is not self._overdue:
                self._overdue, self._blocking = None, []
            return
        if not self._load_overdue(overdue, now_s, out):
            self._overdue, self._blocking = None, []
            # Overdue ones that are still needed could not be loaded; some were rejected.
            self._load_next(self._capacity.needed(now_s) if overdue else needed, now_s, out)

    def _load_overdue(self, overdue: list[ModelState], now_s: float, out: list[Effect]) -> bool:
        """Only the first. One that cannot get enough memory is rejected and does not block others."""
        for state in overdue:
            evictions = self._capacity.required_evictions(state, self._blocking, now_s)
            if evictions is not None:
                self._overdue, self._blocking = state, evictions
                self._evict_and_load(state, evictions, now_s, out)
                return True
            why = state.why = self._capacity.shortage_text(state, now_s)
            self._requests.reject_overdue(state, why, self.limits.max_wait_s, now_s, out)
            if state.requested_s is not None and now_s >= state.requested_s + self.limits.max_wait_s:
                state.requested_s = now_s if state.is_pinned else None
        return False

    def _load_next(self, needed: list[ModelState], now_s: float, out: list[Effect]) -> None:
        """First the one for which something was unloaded, then overdue ones, then by priority and age."""
        if self._reserved_for not in needed:
            self._reserved_for = None

        loadable = self._capacity.loadable_now(needed, now_s)
        if self._reserved_for in loadable:
            loadable = [self._reserved_for]
        overdue = self._capacity.overdue(loadable, now_s)

        def rank(state: ModelState) -> tuple[int, float | None, int]:
            oldest, priority = state.oldest, max(state.priorities) if state.priorities else 0
            if oldest is not None and state.requested_s is None:  # most are: worth a short cut
                return -priority, oldest.arrived_s, oldest.sequence
            return -priority, state.requested_since_s(now_s), state.first_sequence

        state = overdue[0] if overdue else min(loadable, key=rank, default=None)
        if state and (evictions := self._capacity.possible_evictions(state, now_s)) is not None:
            self._evict_and_load(state, evictions, now_s, out)

    def _evict_and_load(
        self, state: ModelState, evictions: list[ModelState], now_s: float, out: list[Effect]
    ) -> None:
        for other in evictions:
            if other.is_idle:
                self._reserved_for = state
                self._unload(other, now_s, out)
        if self._capacity.fits_now(state):
            state.start(now_s)
            self._current_capacity = None
            out.append(LoadModel(state.name))

    def _grant_waiting(self, now_s: float, out: list[Effect]) -> None:
        """Open ready models, and serve what waits for them."""
        self._mark_conflicts(now_s)
        closed = {*self._capacity.leaving, *self._blocking}
        for state in self._capacity.ready:
            state.is_open = state not in closed
            if state.is_open and state.waiting:
                self._requests.grant_all(state, self.limits.max_wait_s, now_s, out)

    # -- helpers --

    def _unload(self, state: ModelState, now_s: float, out: list[Effect]) -> None:
        """Unload a healthy model; earlier failures no longer count."""
        state.reset_failures()
        self._start_unload(state, now_s, out)

    def _start_unload(self, state: ModelState, now_s: float, out: list[Effect]) -> None:
        state.enter("unloading", now_s)
        self._current_capacity = None
        out.append(UnloadModel(state.name))

    def _set_off(self, state: ModelState, now_s: float) -> None:
        self._requests.release(state)
        state.set_off(now_s)
        if state.is_removed:
            del self._states[state.name]

    @property
    def _capacity(self) -> Capacity:
        if self._current_capacity is None:
            self._current_capacity = Capacity(self._states.values(), self.limits, self._memory)
        return self._current_capacity


class Requests:
    """Requests that wait or are served, each with its model. Every request gets one grant or one rejection,
    unless its client left first.

    `waiting` counts the waiting requests of all models.
    """

    def __init__(self) -> None:
        self.waiting = 0
        self._by_key: dict[str, int] = {}
        self._states: dict[Hashable, ModelState] = {}
        self._sequence = 0

    def start(self, state: ModelState, request: Hashable, now_s: float) -> None:
        """Serve a request that does not have to wait."""
        if request in self._states:
            raise ValueError(f"request {request!r} is already active")
        state.busy.add(request)
        state.use(now_s)
        self._states[request] = state

    def enqueue(self, state: ModelState, event: RequestArrived | RequestReturned, now_s: float) -> None:
        request, priority, key = event.request, event.priority, event.key
        if request in self._states:
            raise ValueError(f"request {request!r} is already active")
        self._sequence += 1
        waiter = state.waiting[request] = Waiter(now_s, priority, self._sequence, key)
        state.oldest = state.oldest or waiter
        state.priorities[priority] = state.priorities.get(priority, 0) + 1
        state.keys[key] = state.keys.get(key, 0) + 1
        self._by_key[key] = self._by_key.get(key, 0) + 1
        self._states[request] = state
        self.waiting += 1

    def last_of_most(self, states: Iterable[ModelState], state: ModelState, key: str) -> Hashable | None:
        """The request that makes room in a full queue for one of this key and model: the last one of the key
        with most requests, for the model of which it has most. None: this key has as many, for this model."""
        most = max(self._by_key, key=self._by_key.__getitem__, default=key)
        if self._by_key.get(most, 0) < self._by_key.get(key, 0) + 2:
            most = key
        crowded = max(states, key=lambda each: each.keys.get(most, 0))
        if most == key and crowded.keys.get(key, 0) < state.keys.get(key, 0) + 2:
            return None
        waiting = reversed(crowded.waiting.items())
        return next((request for request, waiter in waiting if waiter.key == most), None)

    def remove(self, request: Hashable) -> None:
        """Of those that wait."""
        self._dequeue(self._states[request], request)

    def finish(self, request: Hashable, now_s: float) -> ModelState | None:
        """Return its model, or None if the scheduler has nothing to reconsider."""
        state = self._states.get(request)
        if state is None:
            return None
        if request in state.waiting:
            self._dequeue(state, request)
            return state
        del self._states[request]
        state.busy.remove(request)
        state.idle_s = now_s
        return None if state.busy else state

    def release(self, state: ModelState) -> None:
        """Forget the requests that this model serves; a later `RequestFinished` for one is ignored."""
        for request in state.busy:
            del self._states[request]
        state.busy.clear()

    def grant_all(self, state: ModelState, max_wait_s: float, now_s: float, out: list[Effect]) -> None:
        """By priority, then in turns of the keys, each by age. Requests that have waited longer than
        `max_wait_s` go first, by age alone."""
        turns: dict[str, int] = {}

        def rank(entry: tuple[Hashable, Waiter]) -> tuple[bool, int, int, float]:
            waiter = entry[1]
            if now_s >= waiter.arrived_s + max_wait_s:
                return False, 0, 0, waiter.arrived_s
            turn = turns[waiter.key] = turns.get(waiter.key, 0) + 1
            return True, -waiter.priority, turn, waiter.arrived_s

        granted = sorted(state.waiting.items(), key=rank)
        self._dequeue_all(state)
        for request, _ in granted:
            self.start(state, request, now_s)
            out.append(GrantRequest(request, state.name))

    def reject(
        self, state: ModelState, kind: RejectionKind, why: str, retry_after_s: float | None, out: list[Effect]
    ) -> None:
        """Reject every request that waits for this model."""
        rejected = list(state.waiting)
        self._dequeue_all(state)
        for request in rejected:
            out.append(RejectRequest(request, kind, why, retry_after_s))

    def reject_overdue(
        self, state: ModelState, why: str, max_wait_s: float, now_s: float, out: list[Effect]
    ) -> None:
        """In order of arrival, so that it ends at the first request that may still wait."""
        while state.oldest is not None and now_s >= state.oldest.arrived_s + max_wait_s:
            request = next(iter(state.waiting))
            self._dequeue(state, request)
            out.append(RejectRequest(request, "no memory", why, max(1.0, max_wait_s)))

    def _dequeue(self, state: ModelState, request: Hashable) -> None:
        waiter = state.waiting.pop(request)
        del self._states[request]
        self.waiting -= 1
        if waiter is state.oldest:
            state.oldest = next(iter(state.waiting.values()), None)
        _subtract(state.priorities, waiter.priority, 1)
        _subtract(state.keys, waiter.key, 1)
        _subtract(self._by_key, waiter.key, 1)

    def _dequeue_all(self, state: ModelState) -> None:
        for request in state.waiting:
            del self._states[request]
        for key, count in state.keys.items():
            _subtract(self._by_key, key, count)
        self.waiting -= len(state.waiting)
        state.waiting.clear()
        state.priorities.clear()
        state.keys.clear()
        state.oldest = None


T = TypeVar("T")


def _subtract(counts: dict[T, int], name: T, count: int) -> None:
    counts[name] -= count
    if not counts[name]:
        del counts[name]


_OUTSIDE_RETRY_S = 5.0
"""`Retry-After` while an outside model does not answer."""


def check_admission(
    event: RequestArrived | RequestReturned,
    state: ModelState | None,
    capacity: Capacity,
    waiting: int,
    now_s: float,
) -> RejectRequest | None:
    """Decide whether a request may wait. One that cannot be served is rejected at once, with what would help.

    `waiting` is the number of requests that wait already, for any model.
    """
    request = event.request
    if state is None or state.is_removed:
        # The dispatcher adds the names of the models: a key may not see all of them.
        return RejectRequest(request, "unknown", f"there is no model `{event.model[:200]}` here")
    if state.is_outside and state.phase == "off":
        why = f"`{state.name}` runs outside firesteel and does not answer: {state.why}"
        return RejectRequest(request, "failed", why, _OUTSIDE_RETRY_S)
    if isinstance(event, RequestReturned):
        return None  # it was admitted before
    if state.phase in ("off", "unloading"):
        if now_s < state.retry_s:
            return RejectRequest(request, "failed", failure_text(state, now_s), state.retry_s - now_s)
        if impossible := capacity.why_impossible(state):
            return RejectRequest(request, "too large", impossible)
    if waiting >= capacity.limits.queue:
        why = f"{waiting} requests are waiting, and `queue` is {capacity.limits.queue}. Try again later"
        # When the load under way should end, waiting requests are served.
        ends_s = [state.since_s + state.load_s for state in capacity.states if state.phase == "loading"]
        return RejectRequest(request, "full", why, max(1.0, min(ends_s, default=now_s) - now_s))
    return None


def failure_text(state: ModelState, now_s: float) -> str:
    pause = show_seconds(max(0.0, state.retry_s - now_s))
    return f"`{state.name}` does not run: {state.why}. The next request after {pause} tries again"


def next_tick_s(capacity: Capacity, now_s: float, *, is_settled: bool, has_waiting: bool) -> float:
    """The next such moment after `now_s`; `inf`: none. `is_settled`: no model waits to be loaded."""
    limits, first_s = capacity.limits, inf
    times: list[float | None] = []
    for state in capacity.states:  # all of them at every event: no list for what most of them have
        if state.oldest is not None:
            overdue_s = state.oldest.arrived_s + limits.max_wait_s
            if now_s < overdue_s < first_s:
                first_s = overdue_s
            if state.retry_s > now_s and state.phase == "off":
                times.append(state.retry_s)
        if state.requested_s is not None:
            times.append(state.requested_s + limits.max_wait_s)
            times.append(state.requested_s if state.phase == "off" else None)
    times += [state.expires_s() for state in capacity.expiring]
    if not is_settled:
        times += [state.dwell_ends_s(limits) for state in capacity.ready if not state.busy]
    if has_waiting or not is_settled:
        times += [state.since_s + limits.stop_s for state in capacity.unloading]
    return min((t for t in times if t is not None and now_s < t < first_s), default=first_s)
