"""Subscribers to events. Each has its own queue, so a slow one loses only its own events.

    subscribers = Subscribers()
    queue = subscribers.subscribe()
    subscribers.publish({"event": "model", "name": "coder", "phase": "ready"})

A full queue is emptied and holds only `{"event": "missed"}`: its reader must fetch the whole state again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

Event = Mapping[str, Any]
"""`event` names its type; the rest is JSON-serializable."""
MISSED: Event = {"event": "missed"}
MAX_EVENTS = 256


class Subscribers:
    def __init__(self, max_events: int = MAX_EVENTS) -> None:
        self._max_events = max_events
        self._queues: set[asyncio.Queue[Event]] = set()

    def __len__(self) -> int:
        return len(self._queues)

    def subscribe(self) -> asyncio.Queue[Event]:
        queue: asyncio.Queue[Event] = asyncio.Queue(self._max_events)
        self._queues.add(queue)
        return queue

    def unsubscribe(self, queue: asyncio.Queue[Event]) -> None:
        self._queues.discard(queue)

    def publish(self, event: Event) -> None:
        """Called on the loop; never waits."""
        for queue in self._queues:
            if queue.full():
                while not queue.empty():
                    queue.get_nowait()
                queue.put_nowait(MISSED)
            else:
                queue.put_nowait(event)
