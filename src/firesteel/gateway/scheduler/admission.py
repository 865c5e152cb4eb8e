"""Decide whether a request may wait. One that cannot be served is rejected at once, with what would help."""

from __future__ import annotations

from firesteel.gateway.scheduler.capacity import Capacity
from firesteel.gateway.scheduler.events import RejectRequest, RequestArrived, RequestReturned
from firesteel.gateway.scheduler.model_state import ModelState
from firesteel.units import show_seconds

_OUTSIDE_RETRY_S = 5.0
"""`Retry-After` while an outside model does not answer."""


def check_admission(
    event: RequestArrived | RequestReturned,
    state: ModelState | None,
    capacity: Capacity,
    waiting: int,
    now_s: float,
) -> RejectRequest | None:
    """`waiting` is the number of requests that wait already, for any model."""
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
        return RejectRequest(request, "full", why, _next_load_done_s(capacity, now_s))
    return None


def failure_text(state: ModelState, now_s: float) -> str:
    pause = show_seconds(max(0.0, state.retry_s - now_s))
    return f"`{state.name}` does not run: {state.why}. The next request after {pause} tries again"


def _next_load_done_s(capacity: Capacity, now_s: float) -> float:
    """When the load under way should end, and waiting requests are served."""
    ends_s = [state.since_s + state.load_s for state in capacity.states if state.phase == "loading"]
    return max(1.0, min(ends_s, default=now_s) - now_s)
