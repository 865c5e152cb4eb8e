"""What `/api/events` sends: changes of the state, and what happened to models.

    subscribers = Subscribers()
    queue = subscribers.subscribe()
    subscribers.publish({"event": "model", "name": "coder", "phase": "ready"})

Models change with every request, so their state is compared once a second while there are subscribers,
instead of being published by what changes it: nothing on the path of a request knows about this.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import to_builtins

from firesteel.gateway.state import GatewayState
from firesteel.values import replace

Event = Mapping[str, Any]
"""`event` names its type; the rest is JSON-serializable."""
MISSED: Event = {"event": "missed"}
MAX_EVENTS = 256
_HAPPENED = frozenset(("loaded", "unloaded", "failed", "note", "alert"))
_MAX_RECENT = 30


class Subscribers:
    """Each has its own queue, so a slow one loses only its own events.

    A full queue is emptied and holds only `{"event": "missed"}`: its reader must fetch the whole state again.
    What happened to models lately comes first in every queue, so that a page that is opened later shows it
    too.
    """

    def __init__(self, max_events: int = MAX_EVENTS) -> None:
        self._max_events = max_events
        self._queues: set[asyncio.Queue[Event]] = set()
        self._recent: deque[Event] = deque(maxlen=min(_MAX_RECENT, max_events // 2))

    def __len__(self) -> int:
        return len(self._queues)

    def subscribe(self) -> asyncio.Queue[Event]:
        queue: asyncio.Queue[Event] = asyncio.Queue(self._max_events)
        for event in self._recent:
            queue.put_nowait(event)
        self._queues.add(queue)
        return queue

    def unsubscribe(self, queue: asyncio.Queue[Event]) -> None:
        self._queues.discard(queue)

    def publish(self, event: Event) -> None:
        """Called on the loop; never waits."""
        if event["event"] in _HAPPENED:
            event = {"at": round(time.time(), 1), **event}
            self._recent.append(event)
        for queue in self._queues:
            if queue.full():
                while not queue.empty():
                    queue.get_nowait()
                queue.put_nowait(MISSED)
            else:
                queue.put_nowait(event)


_EVERY_S = 1.0
_MEMORY_STEP_BYTES = 64 * 2**20
"""Free memory changes by some pages all the time; smaller changes are not worth an event."""


async def publish_changes(
    state: Callable[[], GatewayState], subscribers: Subscribers, every_s: float = _EVERY_S
) -> None:
    """Changes of the state as events, while there are subscribers.

    {"event": "model", ...}      one model, as in `/api/state`
    {"event": "gateway", ...}    memory, queue and the number of logged requests
    {"event": "state", ...}      everything, after models were added or removed
    """
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
    """The events for a subscriber that knows `before`. None: it knows nothing, so the whole state."""
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
