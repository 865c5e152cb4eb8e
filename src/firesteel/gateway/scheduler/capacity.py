"""Whether a model has room, and what would have to go. Pure questions about places; nothing is changed here.

Room is the ceiling less what is held, and never more than the host says. What is unloading holds its bytes
until it is gone, but a plan may count on them, unless the unload is stuck.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from firesteel.gateway.scheduler.events import SchedulerLimits
from firesteel.gateway.scheduler.model_state import ModelState
from firesteel.units import show_bytes, show_seconds


@dataclass(frozen=True, slots=True)
class Capacity:
    """The memory, and all who may hold some of it, at one moment."""

    places: Collection[ModelState]
    """In the order of the file."""
    limits: SchedulerLimits
    host_bytes: int | None
    """What our models may hold in all, by the last reading of the host; None: there was none."""
    now_s: float

    @property
    def limit_bytes(self) -> int:
        ceiling = self.limits.ceiling_bytes
        return ceiling if self.host_bytes is None else min(ceiling, self.host_bytes)

    def has_place_for(self, place: ModelState) -> bool:
        """Whether its load may start this moment."""
        if any(other.holds for other in self._enemies(place)):
            return False
        return used_bytes(self.places) + place.need_bytes <= self.limit_bytes

    def why_never(self, place: ModelState) -> str | None:
        """Why it cannot be loaded beside what always stays."""
        stays = self._stays()
        if place in stays:
            return None
        free = self.limits.ceiling_bytes - sum(other.bytes for other in stays)
        if place.need_bytes > free:
            return self._too_large(place, stays, free)
        for other in stays:
            if self._are_apart(place, other):
                return (
                    f"`{place.name}` must not run beside `{other.name}`, which stays loaded. "
                    f"Take one of them out of `never_together`, or `pinned` off `{other.name}`"
                )
        return None

    def what_must_go(self, place: ModelState, way: Collection[ModelState]) -> list[ModelState] | None:
        """For one whose turn it is by age: whatever may go at all; the idle first, then who drains."""
        may = [other for other in self.places if other is not place and self._may_ever_go(other)]
        may.sort(key=lambda other: (bool(other.busy), other not in way, other.value(self.now_s)))
        return self._enough(place, may)

    def what_can_go(self, place: ModelState) -> list[ModelState] | None:
        """For one that waits: what is idle and has dwelt, the least valuable first."""
        may = [other for other in self.places if other is not place and self._may_go_now(other)]
        may.sort(key=lambda other: other.value(self.now_s))
        return self._enough(place, may)

    def why_not(self, place: ModelState) -> str:
        """Why there is no room for it, even with all gone that may go."""
        stay = [other for other in self.places if other.holds and not self._may_ever_go(other)]
        held = sum(other.bytes for other in stay if other is not place)
        free = max(0, self.limit_bytes - held)
        says = f"`{place.name}` takes {show_bytes(place.need_bytes)}, and {show_bytes(free)} can be had"
        says += f" of the ceiling of {show_bytes(self.limits.ceiling_bytes)}"
        if self.limit_bytes < self.limits.ceiling_bytes:
            says += f": programs that are not ours leave {show_bytes(max(0, self.limit_bytes))} on this host"
        for other in stay:
            if other.is_stuck(self.limits, self.now_s):
                says += f"; `{other.name}` has been stopping for {show_seconds(self.now_s - other.since_s)}"
            elif self._are_apart(place, other):
                says += f"; `{other.name}`, which must not meet it, stays"
        return says + ". Free memory and ask again; `firesteel ps` shows who holds it"

    def unwelcome(self) -> list[ModelState]:
        """Of models that run and must not meet (the file changed, or they were found): all but the best.

        Who was to go before is so still: they would take turns otherwise, and none would be gone.
        """

        def worth(place: ModelState) -> tuple[bool, bool, float]:
            return _is_fixed(place), not place.is_unwelcome, place.value(self.now_s)

        out: list[ModelState] = []
        for group in self.limits.never_together:
            runs = [place for place in self.places if place.name in group and _runs(place)]
            runs.sort(key=worth, reverse=True)
            out += [place for place in runs[1:] if not _is_fixed(place)]
        return out

    def _stays(self) -> list[ModelState]:
        """What is outside, then the pinned as far as they go together: one that cannot be is no bar."""
        stays = [place for place in self.places if place.is_outside]
        for place in self.places:
            held = sum(other.bytes for other in stays)
            fits = held + place.bytes <= self.limits.ceiling_bytes
            if place.is_pinned and fits and not any(self._are_apart(place, other) for other in stays):
                stays.append(place)
        return stays

    def _too_large(self, place: ModelState, stays: list[ModelState], free: int) -> str:
        size = show_bytes(place.need_bytes)
        ceiling = show_bytes(self.limits.ceiling_bytes)
        if not stays:
            return (
                f"`{place.name}` takes {size}; the ceiling is {ceiling}. Give it less context, or raise that"
            )
        names = ", ".join(f"`{other.name}`" for other in stays)
        left = show_bytes(max(0, free))
        return (
            f"`{place.name}` takes {size}; beside what always stays ({names}) {left} of {ceiling} are left. "
            f"Give it less context, or take one of those out of the file or its `pinned` off"
        )

    def _enough(self, place: ModelState, may: list[ModelState]) -> list[ModelState] | None:
        """The first of these that make room, and not one too many; None: all of them do not."""
        staying = [other for other in self.places if other is not place and self._counts(other)]
        enemies = [other for other in staying if self._are_apart(place, other)]
        if any(enemy not in may for enemy in enemies):
            return None
        short = place.need_bytes + sum(other.bytes for other in staying) - self.limit_bytes
        short -= sum(enemy.bytes for enemy in enemies)
        picked: list[ModelState] = []
        for other in may:
            if short > 0 and other not in enemies:
                picked.append(other)
                short -= other.bytes
        if short > 0:
            return None
        for other in reversed(picked.copy()):
            if short + other.bytes <= 0:
                picked.remove(other)
                short += other.bytes
        return enemies + picked

    def _counts(self, place: ModelState) -> bool:
        """Whether a plan must reckon with its bytes: not with those that are coming free."""
        is_coming_free = place.phase == "unloading" and not place.is_stuck(self.limits, self.now_s)
        return place.holds and not is_coming_free

    def _may_ever_go(self, place: ModelState) -> bool:
        is_fixed = _is_fixed(place) and not place.is_leaving
        return place.phase == "ready" and not place.is_outside and not is_fixed

    def _may_go_now(self, place: ModelState) -> bool:
        is_free = self._may_ever_go(place) and place.is_idle and not place.waiting
        return is_free and self.now_s >= place.dwells_until_s(self.limits)

    def _enemies(self, place: ModelState) -> list[ModelState]:
        return [other for other in self.places if other is not place and self._are_apart(place, other)]

    def _are_apart(self, one: ModelState, other: ModelState) -> bool:
        return any(one.name in group and other.name in group for group in self.limits.never_together)


def used_bytes(places: Collection[ModelState]) -> int:
    """Of everything that is not off; what is unloading counts until it is gone."""
    return sum(place.bytes for place in places if place.holds)


def _is_fixed(place: ModelState) -> bool:
    return place.is_outside or place.is_pinned


def _runs(place: ModelState) -> bool:
    is_going = place.is_removed or place.is_unwanted or place.is_stale
    return place.is_outside or (place.phase in ("loading", "ready") and not is_going)
