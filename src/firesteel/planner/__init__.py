"""Fit and speed, before anything is downloaded: a launch, a model and a host in, a Plan out.

Counted parts are exact, estimated parts carry a band, and every figure says where it comes from.
Never looks at the world: the host is a value. Never judges flags: that is `rules`.
"""

from firesteel.planner.band import Band
from firesteel.planner.memory import Memory, Part, Verdict
from firesteel.planner.plan import Cache, Plan, largest_context, plan
from firesteel.planner.speed import Speed

__all__ = ["Band", "Cache", "Memory", "Part", "Plan", "Speed", "Verdict", "largest_context", "plan"]
