"""Whether a model fits, and which models would have to be evicted for it. Changes nothing.

The limit is the configured ceiling, or the measured memory budget if that is lower. A model that is unloading
counts until it is gone; a plan may still rely on its memory, unless the unload is stuck.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cached_property

from firesteel.gateway.scheduler.events import SchedulerLimits
from firesteel.gateway.scheduler.model_state import ModelState
from firesteel.units import show_bytes, show_seconds
from firesteel.values import Value


class Capacity:
    """The memory limit, and every model that may hold memory, between two changes of a model.

    It holds what follows from the models' phases, sizes and configuration alone: which of them run, what they
    hold, which could be evicted. It stays valid until one of these changes, so the events that are frequent
    (requests, readings, time) find it ready. What depends on requests or time is computed when asked for,
    with `now_s`.
    """

    def __init__(self, states: Iterable[ModelState], limits: SchedulerLimits, memory: MemoryBudget) -> None:
        self.states = tuple(states)
        """In the order of the service file."""
        self.limits = limits
        self._memory = memory
        self.is_loading = False
        self.loading: list[ModelState] = []
        self.ready: list[ModelState] = []
        self.unloading: list[ModelState] = []
        self.loadable: list[ModelState] = []
        """Off, and ours to load."""
        self.used_bytes = 0
        """Held by every model that is not off; an unloading one counts until it is gone."""
        for state in self.states:  # with a hundred models, most of an event's time
            phase, is_outside = state.phase, state.is_outside
            if phase == "off" and not is_outside:
                self.loadable.append(state)
                continue
            self.used_bytes += state.need_bytes if is_outside else state.held_bytes
            if phase == "ready":
                self.ready.append(state)
            elif phase == "unloading":
                self.unloading.append(state)
            elif phase == "loading":
                self.is_loading = True
                self.loading.append(state)
        self._conflicts: dict[ModelState, list[ModelState]] = {}

    @cached_property
    def expiring(self) -> list[ModelState]:
        """Running models that have a `ttl`."""
        return [state for state in self.ready if state.config.ttl_s is not None]

    @cached_property
    def leaving(self) -> list[ModelState]:
        """Running models that get no new requests. Not valid after a change of `is_conflicting`."""
        return [state for state in self.ready if state.is_leaving]

    @cached_property
    def contended(self) -> list[list[ModelState]]:
        """Running models that must not run together, by group: found so, or the file changed."""
        groups = ([s for s in self.states if s.name in g and _runs(s)] for g in self.limits.never_together)
        return [group for group in groups if len(group) > 1]

    @cached_property
    def impossible(self) -> list[ModelState]:
        """Models that are off and can never be loaded alongside the models that always stay."""
        most_bytes, has_groups = self._possible_bytes, bool(self.limits.never_together)
        doubtful = [state for state in self.loadable if has_groups or state.need_bytes > most_bytes]
        return [state for state in doubtful if not self.is_possible(state)]

    @property
    def limit_bytes(self) -> int:
        ceiling, budget_bytes = self.limits.ceiling_bytes, self._memory.bytes
        return ceiling if budget_bytes is None else min(ceiling, budget_bytes)

    def needed(self, now_s: float) -> list[ModelState]:
        """Models that are off and should be loaded: requests wait for them, they are pinned, or they were
        requested by name. One that crashed again and again pauses, but never beyond `max_wait_s`."""
        impossible, overdue_s = self.impossible, now_s - self.limits.max_wait_s
        return [
            state
            for state in self.loadable
            if (
                (state.oldest is not None and (now_s >= state.retry_s or state.oldest.arrived_s <= overdue_s))
                or (state.requested_s is not None and state.requested_s <= now_s)
            )
            and state not in impossible
        ]

    def overdue(self, states: Iterable[ModelState], now_s: float) -> list[ModelState]:
        """Those that have been needed for `max_wait_s`, by age."""
        max_wait_s = self.limits.max_wait_s
        overdue = [
            state
            for state in states
            if (state.oldest is not None and now_s >= state.oldest.arrived_s + max_wait_s)
            or (state.requested_s is not None and now_s >= state.requested_s + max_wait_s)
        ]
        return sorted(overdue, key=lambda state: (state.requested_since_s(now_s), state.first_sequence))

    def fits_now(self, state: ModelState) -> bool:
        """Whether its load may start now."""
        if any(other.holds_memory for other in self._conflicting_with(state)):
            return False
        return self.used_bytes + state.need_bytes <= self.limit_bytes

    def is_possible(self, state: ModelState) -> bool:
        """Whether it can ever be loaded alongside the models that always stay."""
        if state in self._permanent:
            return True
        if state.need_bytes > self._possible_bytes:
            return False
        return not any(other in self._permanent for other in self._conflicting_with(state))

    def why_impossible(self, state: ModelState) -> str | None:
        """None if it is possible."""
        if self.is_possible(state):
            return None
        if state.need_bytes > self._possible_bytes:
            return self._too_large(state)
        other = next(other for other in self._permanent if other in self._conflicting_with(state))
        return (
            f"`{state.name}` must not run alongside `{other.name}`, which stays loaded. "
            f"Remove one of them from `never_together`, or remove `pinned` from `{other.name}`"
        )

    def required_evictions(
        self, state: ModelState, blocking: Collection[ModelState], now_s: float
    ) -> list[ModelState] | None:
        """For an overdue model: evict anything that may be evicted; idle models first, then busy ones."""
        candidates = sorted(
            self._evictable, key=lambda other: (bool(other.busy), other not in blocking, other.value(now_s))
        )
        return self._select_evictions(state, candidates, now_s)

    def evictable_now(self, now_s: float) -> list[ModelState]:
        """Idle models after their minimum dwell."""
        limits = self.limits
        return [
            state
            for state in self._evictable
            if not state.busy and not state.waiting and now_s >= state.dwell_ends_s(limits)
        ]

    def loadable_now(self, needed: Iterable[ModelState], now_s: float) -> list[ModelState]:
        """Those of the needed models for which there is memory, after evictions if necessary."""
        candidates = self.evictable_now(now_s)
        free_bytes = self.limit_bytes - self._staying_bytes(now_s) + sum(other.bytes for other in candidates)
        fitting = [state for state in needed if state.need_bytes <= free_bytes]
        if self.limits.never_together:
            fitting = [s for s in fitting if {*self._conflicts_staying(s, now_s)} <= {*candidates}]
        return fitting

    def possible_evictions(self, state: ModelState, now_s: float) -> list[ModelState] | None:
        """For a waiting model: evict idle models after their minimum dwell, the least valuable first."""
        candidates = sorted(self.evictable_now(now_s), key=lambda other: other.value(now_s))
        return self._select_evictions(state, candidates, now_s)

    def shortage_text(self, state: ModelState, now_s: float) -> str:
        """Why it does not fit even if everything evictable is evicted."""
        fixed = [other for other in self.states if other.holds_memory and other not in self._evictable]
        held_bytes = sum(other.bytes for other in fixed if other is not state)
        free_bytes = max(0, self.limit_bytes - held_bytes)
        text = f"`{state.name}` needs {show_bytes(state.need_bytes)}, and {show_bytes(free_bytes)}"
        text += f" of the ceiling of {show_bytes(self.limits.ceiling_bytes)} can be freed"
        if self.limit_bytes < self.limits.ceiling_bytes:
            text += f": other programs leave {show_bytes(max(0, self.limit_bytes))} on this host"
        for other in fixed:
            if other.is_stuck(self.limits, now_s):
                text += f"; `{other.name}` has been stopping for {show_seconds(now_s - other.since_s)}"
            elif other in self._conflicting_with(state):
                text += f"; `{other.name}`, which must not run alongside it, stays"
        return text + ". Free memory and try again; `firesteel ps` shows what holds it"

    def conflicting(self, now_s: float) -> list[ModelState]:
        """Of running models that must not run together: all but the most valuable.

        A model that was conflicting stays so: otherwise two could alternate, and neither would be unloaded.
        """

        def rank(state: ModelState) -> tuple[bool, bool, float]:
            return _is_fixed(state), not state.is_conflicting, state.value(now_s)

        conflicting: list[ModelState] = []
        for group in self.contended:
            running = sorted(group, key=rank, reverse=True)
            conflicting += [state for state in running[1:] if not _is_fixed(state)]
        return conflicting

    @cached_property
    def _permanent(self) -> dict[ModelState, None]:
        """Outside models, then the pinned ones that fit together. A pinned model that cannot fit does not
        block others."""
        permanent = dict.fromkeys(state for state in self.states if state.is_outside)
        held_bytes = sum(state.bytes for state in permanent)
        for state in self.states:
            fits = state.is_pinned and held_bytes + state.bytes <= self.limits.ceiling_bytes
            if fits and not any(other in permanent for other in self._conflicting_with(state)):
                permanent[state] = None
                held_bytes += state.bytes
        return permanent

    @cached_property
    def _possible_bytes(self) -> int:
        """Left by the models that always stay."""
        return self.limits.ceiling_bytes - sum(state.bytes for state in self._permanent)

    def _too_large(self, state: ModelState) -> str:
        size, ceiling = show_bytes(state.need_bytes), show_bytes(self.limits.ceiling_bytes)
        if not self._permanent:
            return (
                f"`{state.name}` needs {size}; the ceiling is {ceiling}. "
                "Reduce its context, or raise the ceiling"
            )
        names = ", ".join(f"`{other.name}`" for other in self._permanent)
        return (
            f"`{state.name}` needs {size}; alongside the models that always stay ({names}) "
            f"{show_bytes(max(0, self._possible_bytes))} of {ceiling} are left. "
            "Reduce its context, remove one of those models, or remove its `pinned`"
        )

    def _select_evictions(
        self, state: ModelState, candidates: list[ModelState], now_s: float
    ) -> list[ModelState] | None:
        """The first candidates that free enough memory, without unnecessary ones; None if all are too few."""
        conflicts = self._conflicts_staying(state, now_s)
        if any(other not in candidates for other in conflicts):
            return None
        missing_bytes = state.need_bytes + self._staying_bytes(now_s) - self.limit_bytes
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

    @cached_property
    def _evictable(self) -> list[ModelState]:
        return [s for s in self.ready if not s.is_outside and (not s.is_pinned or s.is_leaving)]

    def _staying_bytes(self, now_s: float) -> int:
        """A plan may rely on memory that an unload is about to free."""
        freeing = (state.bytes for state in self.unloading if not state.is_stuck(self.limits, now_s))
        return self.used_bytes - sum(freeing)

    def _conflicts_staying(self, state: ModelState, now_s: float) -> list[ModelState]:
        """Models that must not run alongside it, hold memory, and are not about to free it."""
        return [
            other
            for other in self._conflicting_with(state)
            if other.holds_memory and (other.phase != "unloading" or other.is_stuck(self.limits, now_s))
        ]

    def _conflicting_with(self, state: ModelState) -> list[ModelState]:
        """Models of its `never_together` groups, whether they run or not."""
        if not self.limits.never_together:
            return []
        if state not in self._conflicts:
            groups = [group for group in self.limits.never_together if state.name in group]
            self._conflicts[state] = [
                other for other in self.states if other is not state and any(other.name in g for g in groups)
            ]
        return self._conflicts[state]


def _is_fixed(state: ModelState) -> bool:
    return state.is_outside or state.is_pinned


def _runs(state: ModelState) -> bool:
    is_leaving = state.is_removed or state.is_unload_requested or state.is_stale
    return state.is_outside or (state.phase in ("loading", "ready") and not is_leaving)


class MemoryBudget:
    """How much memory all our models together may hold, from readings of the host: what they hold plus what
    is free.

    A reading is exact while nothing loads or unloads. A loading model counts in full before it holds
    everything; an unloading one counts in full after it has freed a part. Such a reading is too high, and is
    used only where it is lower than the last exact one.
    """

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


class LoadPreview(Value):
    """What a load by name would do, before anybody asks for it."""

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
