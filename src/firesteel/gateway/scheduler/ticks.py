"""When time alone changes a decision: a request becomes overdue, an idle model expires, a dwell ends."""

from __future__ import annotations

from math import inf

from firesteel.gateway.scheduler.capacity import Capacity


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
