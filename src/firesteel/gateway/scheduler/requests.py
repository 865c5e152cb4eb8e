"""Requests that wait or are served, each with its model. Every request gets one grant or one rejection,
unless its client left first.

`waiting` counts the waiting requests of all models.
"""

from __future__ import annotations

from collections.abc import Hashable

from firesteel.gateway.scheduler.events import Effect, GrantRequest, RejectionKind, RejectRequest
from firesteel.gateway.scheduler.model_state import ModelState, Waiter


class Requests:
    def __init__(self) -> None:
        self.waiting = 0
        self._states: dict[Hashable, ModelState] = {}
        self._sequence = 0

    def start(self, state: ModelState, request: Hashable, now_s: float) -> None:
        """Serve a request that does not have to wait."""
        if request in self._states:
            raise ValueError(f"request {request!r} is already active")
        state.busy.add(request)
        state.use(now_s)
        self._states[request] = state

    def enqueue(self, state: ModelState, request: Hashable, priority: int, now_s: float) -> None:
        if request in self._states:
            raise ValueError(f"request {request!r} is already active")
        self._sequence += 1
        waiter = state.waiting[request] = Waiter(now_s, priority, self._sequence)
        state.oldest = state.oldest or waiter
        state.priorities[priority] = state.priorities.get(priority, 0) + 1
        self._states[request] = state
        self.waiting += 1

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
        """By priority, then age. Requests that have waited longer than `max_wait_s` go first, by age
        alone."""

        def rank(entry: tuple[Hashable, Waiter]) -> tuple[bool, int, float]:
            waiter = entry[1]
            is_overdue = now_s >= waiter.arrived_s + max_wait_s
            return not is_overdue, 0 if is_overdue else -waiter.priority, waiter.arrived_s

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
        state.priorities[waiter.priority] -= 1
        if not state.priorities[waiter.priority]:
            del state.priorities[waiter.priority]

    def _dequeue_all(self, state: ModelState) -> None:
        for request in state.waiting:
            del self._states[request]
        self.waiting -= len(state.waiting)
        state.waiting.clear()
        state.priorities.clear()
        state.oldest = None
