"""Whether a model fits, and which models would have to be evicted for it. Changes nothing.

The limit is the configured ceiling, or the measured memory budget if that is lower. A model that is unloading
counts until it is gone; a plan may still rely on its memory, unless the unload is stuck.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from firesteel.gateway.scheduler.events import SchedulerLimits
from firesteel.gateway.scheduler.model_state import ModelState
from firesteel.units import show_bytes, show_seconds


@dataclass(frozen=True, slots=True)
class Capacity:
    """The memory limit, and every model that may hold memory, at one moment."""

    states: Collection[ModelState]
    """In the order of the service file."""
    limits: SchedulerLimits
    budget_bytes: int | None
    """What all our models together may hold, by the last memory reading; None before the first."""
    now_s: float

    @property
    def limit_bytes(self) -> int:
        ceiling = self.limits.ceiling_bytes
        return ceiling if self.budget_bytes is None else min(ceiling, self.budget_bytes)

    def fits_now(self, state: ModelState) -> bool:
        """Whether its load may start now."""
        if any(other.holds_memory and self._conflict(state, other) for other in self.states):
            return False
        return used_bytes(self.states) + state.need_bytes <= self.limit_bytes

    def why_impossible(self, state: ModelState) -> str | None:
        """Why it can never be loaded beside the models that always stay; None if it can."""
        permanent = self._permanent()
        if state in permanent:
            return None
        free_bytes = self.limits.ceiling_bytes - sum(other.bytes for other in permanent)
        if state.need_bytes > free_bytes:
            return self._too_large(state, permanent, free_bytes)
        for other in permanent:
            if self._conflict(state, other):
                return (
                    f"`{state.name}` must not run beside `{other.name}`, which stays loaded. "
                    f"Remove one of them from `never_together`, or remove `pinned` from `{other.name}`"
                )
        return None

    def required_evictions(
        self, state: ModelState, blocking: Collection[ModelState]
    ) -> list[ModelState] | None:
        """For an overdue model: evict anything that may be evicted; idle models first, then busy ones."""
        candidates = [other for other in self.states if other is not state and self._is_evictable(other)]
        candidates.sort(key=lambda other: (bool(other.busy), other not in blocking, other.value(self.now_s)))
        return self._select_evictions(state, candidates)

    def possible_evictions(self, state: ModelState) -> list[ModelState] | None:
        """For a waiting model: evict idle models after their minimum dwell, the least valuable first."""
        candidates = [other for other in self.states if other is not state and self._is_evictable_now(other)]
        candidates.sort(key=lambda other: other.value(self.now_s))
        return self._select_evictions(state, candidates)

    def shortage_text(self, state: ModelState) -> str:
        """Why it does not fit even if everything evictable is evicted."""
        fixed = [other for other in self.states if other.holds_memory and not self._is_evictable(other)]
        held_bytes = sum(other.bytes for other in fixed if other is not state)
        free_bytes = max(0, self.limit_bytes - held_bytes)
        text = f"`{state.name}` needs {show_bytes(state.need_bytes)}, and {show_bytes(free_bytes)}"
        text += f" of the ceiling of {show_bytes(self.limits.ceiling_bytes)} can be freed"
        if self.limit_bytes < self.limits.ceiling_bytes:
            text += f": other programs leave {show_bytes(max(0, self.limit_bytes))} on this host"
        for other in fixed:
            if other.is_stuck(self.limits, self.now_s):
                text += f"; `{other.name}` has been stopping for {show_seconds(self.now_s - other.since_s)}"
            elif self._conflict(state, other):
                text += f"; `{other.name}`, which must not run beside it, stays"
        return text + ". Free memory and try again; `firesteel ps` shows what holds it"

    def conflicting(self) -> list[ModelState]:
        """Of running models that must not run together (the file changed, or they were found running): all
        but the most valuable.

        A model that was conflicting stays so: otherwise two could alternate, and neither would be unloaded.
        """

        def rank(state: ModelState) -> tuple[bool, bool, float]:
            return _is_fixed(state), not state.is_conflicting, state.value(self.now_s)

        conflicting: list[ModelState] = []
        for group in self.limits.never_together:
            running = [state for state in self.states if state.name in group and _runs(state)]
            running.sort(key=rank, reverse=True)
            conflicting += [state for state in running[1:] if not _is_fixed(state)]
        return conflicting

    def _permanent(self) -> list[ModelState]:
        """Outside models, then the pinned ones that fit together. A pinned model that cannot fit blocks
        nobody."""
        permanent = [state for state in self.states if state.is_outside]
        for state in self.states:
            held_bytes = sum(other.bytes for other in permanent)
            fits = held_bytes + state.bytes <= self.limits.ceiling_bytes
            if state.is_pinned and fits and not any(self._conflict(state, other) for other in permanent):
                permanent.append(state)
        return permanent

    def _too_large(self, state: ModelState, permanent: list[ModelState], free_bytes: int) -> str:
        size, ceiling = show_bytes(state.need_bytes), show_bytes(self.limits.ceiling_bytes)
        if not permanent:
            return (
                f"`{state.name}` needs {size}; the ceiling is {ceiling}. "
                "Reduce its context, or raise the ceiling"
            )
        names = ", ".join(f"`{other.name}`" for other in permanent)
        return (
            f"`{state.name}` needs {size}; beside the models that always stay ({names}) "
            f"{show_bytes(max(0, free_bytes))} of {ceiling} are left. "
            "Reduce its context, remove one of those models, or remove its `pinned`"
        )

    def _select_evictions(self, state: ModelState, candidates: list[ModelState]) -> list[ModelState] | None:
        """The first candidates that free enough memory, without unnecessary ones; None if all are too few."""
        staying = [other for other in self.states if other is not state and self._counts_against_limit(other)]
        conflicts = [other for other in staying if self._conflict(state, other)]
        if any(other not in candidates for other in conflicts):
            return None
        missing_bytes = state.need_bytes + sum(other.bytes for other in staying) - self.limit_bytes
        missing_bytes -= sum(other.bytes for other in conflicts)
        selected: list[ModelState] = []
        for other in candidates:
            if missing_bytes > 0 and other not in conflicts:
                selected.append(other)
                missing_bytes -= other.bytes
        if missing_bytes > 0:
            return None
        # A large model selected late may make smaller, earlier ones unnecessary.
        for other in reversed(selected.copy()):
            if missing_bytes + other.bytes <= 0:
                selected.remove(other)
                missing_bytes += other.bytes
        return conflicts + selected

    def _counts_against_limit(self, state: ModelState) -> bool:
        """A plan may rely on memory that an unload is about to free."""
        is_freeing = state.phase == "unloading" and not state.is_stuck(self.limits, self.now_s)
        return state.holds_memory and not is_freeing

    def _is_evictable(self, state: ModelState) -> bool:
        is_fixed = _is_fixed(state) and not state.is_leaving
        return state.phase == "ready" and not state.is_outside and not is_fixed

    def _is_evictable_now(self, state: ModelState) -> bool:
        is_unused = self._is_evictable(state) and state.is_idle and not state.waiting
        return is_unused and self.now_s >= state.dwell_ends_s(self.limits)

    def _conflict(self, one: ModelState, other: ModelState) -> bool:
        if one is other:
            return False
        return any(one.name in group and other.name in group for group in self.limits.never_together)


def used_bytes(states: Collection[ModelState]) -> int:
    """Held by every model that is not off; an unloading one counts until it is gone."""
    return sum(state.bytes for state in states if state.holds_memory)


def _is_fixed(state: ModelState) -> bool:
    return state.is_outside or state.is_pinned


def _runs(state: ModelState) -> bool:
    is_leaving = state.is_removed or state.is_unload_requested or state.is_stale
    return state.is_outside or (state.phase in ("loading", "ready") and not is_leaving)
