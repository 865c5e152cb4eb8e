"""Who is turned away at once."""

from __future__ import annotations

from firesteel.gateway.schedule import Schedule
from firesteel.gateway.schedule_words import Asked, Limits, Model, Refuse


def test_an_unknown_model_is_only_said_to_be_unknown() -> None:
    """Which models there are is said by the desk, for a key may not see them all."""
    schedule = Schedule((Model("secret", 1, 1.0),), Limits(10), 0.0)
    refused = schedule.tell(Asked("a", "other"), 0.0)[0]
    assert isinstance(refused, Refuse)
    assert (refused.kind, refused.why) == ("unknown", "there is no model `other` here")
