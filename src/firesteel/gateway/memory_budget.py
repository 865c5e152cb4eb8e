"""How much our models may hold in all, as readings of the host tell: what they hold, and what is free beside.

A reading is exact while nothing comes or goes. What is loading counts in full and has not taken it all yet;
what is unloading counts in full and has given some of it back. Such a reading promises too much, and is
believed only where it says less than the last exact one.
"""

from __future__ import annotations

from collections.abc import Collection

from firesteel.gateway.scheduler.capacity import used_bytes
from firesteel.gateway.scheduler.model_state import ModelState


class MemoryBudget:
    def __init__(self) -> None:
        self._exact: int | None = None
        self._latest: int | None = None
        self._going: set[ModelState] = set()
        """What was unloading at the latest reading."""
        self._was_loading = False

    @property
    def bytes(self) -> int | None:
        """None: nobody has looked."""
        if self._exact is None or self._latest is None:
            return self._latest
        return min(self._exact, self._latest)

    def read(self, free_bytes: int, places: Collection[ModelState]) -> None:
        self._latest = used_bytes(places) + free_bytes
        self._going = {place for place in places if place.phase == "unloading"}
        self._was_loading = any(place.phase == "loading" for place in places)
        self._take_as_exact()

    def hear_gone(self, place: ModelState) -> None:
        """The reading saw its memory come back (it is made just before), so that was counted twice."""
        if place in self._going and self._latest is not None:
            self._going.remove(place)
            self._latest -= place.held_bytes
            self._take_as_exact()

    def _take_as_exact(self) -> None:
        if not self._going and not self._was_loading:
            self._exact = self._latest
