"""Changes of the state as events, while anybody listens.

Models change with every request, so their state is compared once a second instead of being published by
those who change it: nothing on the path of a request knows about this.

    {"event": "model", ...}      one model, as in `/api/state`
    {"event": "gateway", ...}    memory, queue and the number of logged requests
    {"event": "state", ...}      everything, after models were added or removed
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from msgspec import to_builtins

from firesteel.gateway.admin.subscribers import Subscribers
from firesteel.gateway.state import GatewayState
from firesteel.values import replace

_EVERY_S = 1.0
_MEMORY_STEP_BYTES = 64 * 2**20
"""Free memory changes by some pages all the time; smaller changes are not worth an event."""


async def publish_changes(
    state: Callable[[], GatewayState], subscribers: Subscribers, every_s: float = _EVERY_S
) -> None:
    before: GatewayState | None = None
    while True:
        await asyncio.sleep(every_s)
        if not len(subscribers):
            before = None
            continue
        try:
            after = state()
        except Exception:  # one bad reading must not end the events of all pages
            logging.getLogger(__name__).exception("the state could not be read")
            continue
        for event in changes(before, after):
            subscribers.publish(event)
        before = after


def changes(before: GatewayState | None, after: GatewayState) -> list[dict[str, Any]]:
    """What to tell somebody who knows `before`. None: everything that may have changed meanwhile."""
    if before is None or [m.name for m in before.models] != [m.name for m in after.models]:
        return [{"event": "state", **to_builtins(after)}]
    pairs = zip(before.models, after.models, strict=True)
    events: list[dict[str, Any]] = [
        {"event": "model", **to_builtins(new)} for old, new in pairs if old != new
    ]
    rest = replace(after, models=())
    if _in_steps(replace(before, models=())) != _in_steps(rest):
        shown = {name: value for name, value in to_builtins(rest).items() if name != "models"}
        events.append({"event": "gateway", **shown})
    return events


def _in_steps(state: GatewayState) -> GatewayState:
    available = state.memory.available_bytes
    steps = None if available is None else available // _MEMORY_STEP_BYTES
    return replace(state, memory=replace(state.memory, available_bytes=steps))
