"""Who is turned away at once."""

from __future__ import annotations

from firesteel.gateway.scheduler.events import RejectRequest, RequestArrived, SchedulerLimits
from firesteel.gateway.scheduler.scheduler import Scheduler
from tests.gateway.play import scheduled


def test_an_unknown_model_is_only_said_to_be_unknown() -> None:
    """Which models there are is said by the desk, for a key may not see them all."""
    scheduler = Scheduler((scheduled("secret", 1, 1.0),), SchedulerLimits(10), 0.0)
    rejected = scheduler.handle(RequestArrived("a", "other"), 0.0)[0]
    assert isinstance(rejected, RejectRequest)
    assert (rejected.kind, rejected.why) == ("unknown", "there is no model `other` here")
