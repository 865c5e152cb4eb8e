"""Whether a request may wait at all. Who cannot be served is told so at once, with what would help."""

from __future__ import annotations

from firesteel.gateway.scheduler.capacity import Capacity
from firesteel.gateway.scheduler.events import RefuseRequest, RequestArrived
from firesteel.gateway.scheduler.model_state import ModelState
from firesteel.units import show_seconds

_LOOKS_AGAIN_S = 5.0
"""For whom an outside model does not answer: when to ask again."""


def turned_away(
    event: RequestArrived, place: ModelState | None, room: Capacity, waiting: int
) -> RefuseRequest | None:
    """`waiting`: how many wait already, for whatever model."""
    request, now_s = event.request, room.now_s
    if place is None or place.is_removed:
        # Which there are is for the desk to say: a key may not see them all.
        return RefuseRequest(request, "unknown", f"there is no model `{event.model[:200]}` here")
    if place.is_outside and place.phase == "off":
        why = f"`{place.name}` runs outside firesteel and does not answer: {place.why}. Start it there"
        return RefuseRequest(request, "failed", why, _LOOKS_AGAIN_S)
    if place.phase in ("off", "unloading"):
        if now_s < place.retry_s:
            return RefuseRequest(request, "failed", why_failed(place, now_s), place.retry_s - now_s)
        never = room.why_never(place)
        if never:
            return RefuseRequest(request, "too large", never)
    if waiting >= room.limits.queue:
        why = f"{waiting} requests wait, and `queue` is {room.limits.queue}. Ask again later"
        return RefuseRequest(request, "full", why, _soonest_s(room))
    return None


def why_failed(place: ModelState, now_s: float) -> str:
    wait = show_seconds(max(0.0, place.retry_s - now_s))
    return f"`{place.name}` does not run: {place.why}. It is tried again, when asked for, in {wait}"


def _soonest_s(room: Capacity) -> float:
    """When some of those who wait will probably be served."""
    ends = [each.since_s + each.load_s for each in room.places if each.phase == "loading"]
    return max(1.0, min(ends, default=room.now_s) - room.now_s)
