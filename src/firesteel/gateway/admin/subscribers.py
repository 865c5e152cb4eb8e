"""Who wants to hear what happens. Each has a queue of its own, and a slow one loses only its own news.

    listeners = Listeners()
    queue = listeners.subscribe()
    listeners.tell({"event": "model", "name": "coder", "phase": "ready"})

A queue that is full is emptied and holds `{"event": "missed"}` alone: whoever reads it asks for the whole
state again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

Event = Mapping[str, Any]
"""`event` says what it is; the rest is as JSON takes it."""
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

    def tell(self, event: Event) -> None:
        """On the loop; never waits."""
        for queue in self._queues:
            if queue.full():
                while not queue.empty():
                    queue.get_nowait()
                queue.put_nowait(MISSED)
            else:
                queue.put_nowait(event)
