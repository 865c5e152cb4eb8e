"""Subscribers to events. Each has its own queue, so a slow one loses only its own events.

    subscribers = Subscribers()
    queue = subscribers.subscribe()
    subscribers.publish({"event": "model", "name": "coder", "phase": "ready"})

A full queue is emptied and holds only `{"event": "missed"}`: its reader must fetch the whole state again.
What happened to models lately comes first in every queue, so that a page that is opened later shows it too.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

Event = Mapping[str, Any]
"""`event` names its type; the rest is JSON-serializable."""
MISSED: Event = {"event": "missed"}
MAX_EVENTS = 256
_HAPPENED = frozenset(("loaded", "unloaded", "failed", "note", "alert"))
_MAX_RECENT = 30


class Subscribers:
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
