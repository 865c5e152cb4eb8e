"""What a load by name would do, before anybody asks for it. Changes nothing."""

from __future__ import annotations

from firesteel.gateway.scheduler.capacity import Capacity
from firesteel.gateway.scheduler.model_state import ModelState
from firesteel.values import Value


class LoadPreview(Value):
    evicts: tuple[str, ...] = ()
    """Models that have to be unloaded first; a busy one finishes its requests before."""
    why_not: str | None = None
    """Why it cannot be loaded, even if everything that may be evicted is."""
    is_requested: bool = False
    """It was asked for by name, or is pinned, and waits for its turn."""


def preview_load(capacity: Capacity, state: ModelState, now_s: float) -> LoadPreview:
    """For a model that is off: the most that the scheduler would do, once it has waited long enough."""
    if state.phase != "off" or state.is_outside:
        return LoadPreview()
    if why := capacity.why_impossible(state):
        return LoadPreview(why_not=why)
    evictions = capacity.possible_evictions(state, now_s)
    if evictions is None:
        evictions = capacity.required_evictions(state, (), now_s)
    if evictions is None:
        evictions = _after_loads(capacity, state)
    if evictions is None:
        return LoadPreview(why_not=capacity.shortage_text(state, now_s))
    names = tuple(other.name for other in evictions)
    return LoadPreview(names, is_requested=state.requested_s is not None)


def _after_loads(capacity: Capacity, state: ModelState) -> list[ModelState] | None:
    """If the load under way ends first: its model can be evicted then, together with the others."""
    going = [other for other in capacity.states if other.phase in ("loading", "ready")]
    going = [other for other in going if not other.is_pinned and not other.is_outside]
    staying_bytes = capacity.used_bytes - sum(other.bytes for other in (*going, *capacity.unloading))
    fits = capacity.is_loading and staying_bytes + state.need_bytes <= capacity.limit_bytes
    return going if fits else None
