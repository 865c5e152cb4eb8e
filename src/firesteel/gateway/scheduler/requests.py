"""Who waits and who is served, each at one place. Every one gets one grant or one refusal, unless it left.

`waiting` counts those who wait at all places together; who left is not among them.
"""

from __future__ import annotations

from collections.abc import Hashable

from firesteel.gateway.scheduler.events import Effect, GrantRequest, RefusalKind, RefuseRequest
from firesteel.gateway.scheduler.model_state import ModelState, Waiter


class Requests:
    def __init__(self) -> None:
        self.waiting = 0
        self._where: dict[Hashable, ModelState] = {}
        self._turns = 0

    def serve(self, place: ModelState, request: Hashable, now_s: float) -> None:
        """One that does not wait."""
        if request in self._where:
            raise ValueError(f"request {request!r} was asked before and is not over")
        place.busy.add(request)
        place.use(now_s)
        self._where[request] = place

    def wait(self, place: ModelState, request: Hashable, priority: int, now_s: float) -> None:
        if request in self._where:
            raise ValueError(f"request {request!r} was asked before and is not over")
        self._turns += 1
        place.waiting[request] = Waiter(now_s, priority, self._turns)
        self._where[request] = place
        self.waiting += 1

    def over(self, request: Hashable, now_s: float) -> ModelState | None:
        """Where it was; None if nothing follows from it."""
        place = self._where.pop(request, None)
        if place is None:
            return None
        if request in place.waiting:
            del place.waiting[request]
            self.waiting -= 1
            return place
        place.busy.remove(request)
        place.idle_s = now_s
        return None if place.busy else place

    def release(self, place: ModelState) -> None:
        """Whom it served it serves no more; their end, when it is told, is no matter."""
        for request in place.busy:
            del self._where[request]
        place.busy.clear()

    def grant_all(self, place: ModelState, max_wait_s: float, now_s: float, out: list[Effect]) -> None:
        """By priority, then age; who has waited too long goes first, by age alone."""

        def turn(each: tuple[Hashable, Waiter]) -> tuple[bool, int, float]:
            is_overdue = now_s >= each[1].came_s + max_wait_s
            return not is_overdue, 0 if is_overdue else -each[1].priority, each[1].came_s

        for request, _ in sorted(place.waiting.items(), key=turn):
            self._forget(place, request)
            self.serve(place, request, now_s)
            out.append(GrantRequest(request, place.name))

    def refuse(
        self, place: ModelState, kind: RefusalKind, why: str, retry_after_s: float | None, out: list[Effect]
    ) -> None:
        """All who wait there."""
        for request in list(place.waiting):
            self._forget(place, request)
            out.append(RefuseRequest(request, kind, why, retry_after_s))

    def refuse_overdue(
        self, place: ModelState, why: str, max_wait_s: float, now_s: float, out: list[Effect]
    ) -> None:
        for request, waiter in list(place.waiting.items()):
            if now_s >= waiter.came_s + max_wait_s:
                self._forget(place, request)
                out.append(RefuseRequest(request, "no room", why, max(1.0, max_wait_s)))

    def _forget(self, place: ModelState, request: Hashable) -> None:
        del place.waiting[request], self._where[request]
        self.waiting -= 1
