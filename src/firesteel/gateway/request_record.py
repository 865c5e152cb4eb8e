"""A request between `submit` and `finish`, as the dispatcher keeps it."""

from __future__ import annotations

from time import monotonic

from firesteel.gateway.admin.meter import ModelCounters
from firesteel.gateway.endpoints import ModelEndpoints
from firesteel.gateway.interfaces import Endpoint, PendingRequest

_UNREACHABLE_S = 30.0
"""An engine that has ended is no longer called ready by then: its reaper takes up to 10 s to end what it left
behind. Our choice."""


class RequestRecord:
    """The scheduler uses it as the request's identity."""

    __slots__ = (
        "asked", "counters", "endpoint", "endpoints", "is_between", "loaded_s", "loads_since", "request",
        "retries", "stand_in", "tried", "unreachable_since", "waits_since", "was_in_flight",
    )  # fmt: skip

    def __init__(self, request: PendingRequest) -> None:
        self.request = request
        self.asked = request.model
        """By its client: a model or an alias."""
        self.was_in_flight = self.is_between = False
        """In flight: when its engine failed. Between: it was granted, and waits for another replica."""
        self.unreachable_since = 0.0
        """By `monotonic`; 0: its engine could always be reached."""
        self.retries = 0
        self.tried: tuple[str, ...] = ()
        """Models that could not serve it."""
        self.stand_in = ""
        """The model or alias that serves it in their place."""
        self.loads_since = self.loaded_s = 0.0
        """Since when its model is loaded, while it waits; and how long that took."""
        self.endpoint: Endpoint | None = None
        self.endpoints: ModelEndpoints
        self.counters: ModelCounters
        """These two are set together with the endpoint."""
        self.waits_since: float
        """Seconds since 1970. Set when it begins to wait."""

    def may_be_held(self, *, was_sent: bool) -> bool:
        """Whether it waits for the return of an engine that has failed.

        Once if the engine may have received it: a request that was in flight at two crashes may be their
        cause. One that found nobody there is not.
        """
        if was_sent:
            was_in_flight, self.was_in_flight = self.was_in_flight, True
            return not was_in_flight
        self.unreachable_since = self.unreachable_since or monotonic()
        return monotonic() - self.unreachable_since < _UNREACHABLE_S
