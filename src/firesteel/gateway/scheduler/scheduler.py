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

from firesteel.gateway.scheduler.admission import check_admission, failure_text
from firesteel.gateway.scheduler.capacity import Capacity
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
from firesteel.gateway.scheduler.memory_budget import MemoryBudget
from firesteel.gateway.scheduler.model_state import ModelState, new_model_state
from firesteel.gateway.scheduler.preview import LoadPreview, preview_load
from firesteel.gateway.scheduler.requests import Requests
from firesteel.gateway.scheduler.ticks import next_tick_s
from firesteel.gateway.service_config import ModelConfig


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
        return state is None or self._stays_settled(state, now_s)

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
                        self._load_requested(state, event.is_loaded, now_s)

    def _arrived(self, event: RequestArrived | RequestReturned, now_s: float, out: list[Effect]) -> None:
        state = self._states.get(event.model)
        rejection = check_admission(event, state, self._capacity, self._requests.waiting, now_s)
        if rejection:
            out.append(rejection)
        elif state is not None:
            self._requests.enqueue(state, event.request, event.priority, now_s)

    def _stays_settled(self, state: ModelState, now_s: float) -> bool:
        """Whether the end of a request there changes nothing: it stays open, and nobody needs its memory."""
        ttl_s = state.config.ttl_s
        return self._is_settled and state.is_open and (ttl_s is None or self._tick_s <= now_s + ttl_s)

    def _loaded(self, state: ModelState, measured_bytes: int | None, now_s: float, out: list[Effect]) -> None:
        if state.phase == "unloading":
            return
        if state.phase == "ready":
            state.measure(measured_bytes)
            return
        was_loading = state.phase == "loading" and not state.is_returning
        state.set_ready(measured_bytes, now_s)
        # The requests it was loaded for are served even if it must be unloaded at once. Otherwise two models
        # could be loaded in turns and serve nobody.
        if was_loading and not state.is_removed and not state.is_stale:
            self._grant_waiters(state, now_s, out)

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
        """Also when somebody else stopped it."""
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

    def _load_requested(self, state: ModelState, is_loaded: bool, now_s: float) -> None:
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
                self._reject_overdue(state, capacity.shortage_text(state, now_s), now_s, out)

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
        """Only the first. One that cannot get enough memory is rejected and blocks nobody."""
        for state in overdue:
            evictions = self._capacity.required_evictions(state, self._blocking, now_s)
            if evictions is not None:
                self._overdue, self._blocking = state, evictions
                self._evict_and_load(state, evictions, now_s, out)
                return True
            why = state.why = self._capacity.shortage_text(state, now_s)
            self._reject_overdue(state, why, now_s, out)
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
                self._grant_waiters(state, now_s, out)

    # -- helpers --

    def _grant_waiters(self, state: ModelState, now_s: float, out: list[Effect]) -> None:
        self._requests.grant_all(state, self.limits.max_wait_s, now_s, out)

    def _reject_overdue(self, state: ModelState, why: str, now_s: float, out: list[Effect]) -> None:
        self._requests.reject_overdue(state, why, self.limits.max_wait_s, now_s, out)

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
