"""A request between `submit` and `finish`, as the dispatcher keeps it."""

from __future__ import annotations

from firesteel.gateway.admin.meter import ModelCounters
from firesteel.gateway.endpoints import ModelEndpoints
from firesteel.gateway.interfaces import Endpoint, PendingRequest


class RequestRecord:
    """The scheduler uses it as the request's identity."""

    __slots__ = (
        "asked", "counters", "endpoint", "endpoints", "is_between", "loaded_s", "loads_since", "request",
        "retries", "stand_in", "tried", "waits_since", "was_held",
    )  # fmt: skip

    def __init__(self, request: PendingRequest) -> None:
        self.request = request
        self.asked = request.model
        """By its client: a model or an alias."""
        self.was_held = self.is_between = False
        """Between: it was granted, and waits for another replica."""
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
