"""How much memory all our models together may hold, from readings of the host: what they hold plus what is
free.

A reading is exact while nothing loads or unloads. A loading model counts in full before it holds everything;
an unloading one counts in full after it has freed a part. Such a reading is too high, and is used only where
it is lower than the last exact one.
"""

from __future__ import annotations

from collections.abc import Iterable

from firesteel.gateway.scheduler.model_state import ModelState


class MemoryBudget:
    def __init__(self) -> None:
        self._exact: int | None = None
        self._latest: int | None = None
        self._unloading: set[ModelState] = set()
        """Models that were unloading at the latest reading."""
        self._was_loading = False

    @property
    def bytes(self) -> int | None:
        """None before the first reading."""
        if self._exact is None or self._latest is None:
            return self._latest
        return min(self._exact, self._latest)

    def read(
        self, free_bytes: int, used_bytes: int, unloading: Iterable[ModelState], *, is_loading: bool
    ) -> None:
        self._latest = used_bytes + free_bytes
        self._unloading = set(unloading)
        self._was_loading = is_loading
        self._update_exact()

    def subtract_unloaded(self, state: ModelState) -> None:
        """The last reading was taken just before this event and counted its freed memory twice."""
        if state in self._unloading and self._latest is not None:
            self._unloading.remove(state)
            self._latest -= state.held_bytes
            self._update_exact()

    def _update_exact(self) -> None:
        if not self._unloading and not self._was_loading:
            self._exact = self._latest
