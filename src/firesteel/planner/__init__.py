"""Fit and speed, before anything is downloaded: a launch, a model and a host in, a Plan out.

Counted parts are exact, estimated parts carry a band, and every figure says where it comes from.
Never looks at the world: the host is a value. Never judges flags: that is `rules`.
"""

from firesteel.planner.band import Band
from firesteel.planner.doubt import Doubt, doubt
from firesteel.planner.measured_here import Realised, launch_key
from firesteel.planner.memory import Memory, Part, Verdict
from firesteel.planner.own_runs import OwnRun
from firesteel.planner.plan import Cache, Plan, between, largest_context, longest_context, plan
from firesteel.planner.speculation import Drafted
from firesteel.planner.speed import Crowd, Prefill, Speed
from firesteel.planner.startup import Phase, StartUp

__all__ = [
    "Band",
    "Cache",
    "Crowd",
    "Doubt",
    "Drafted",
    "Memory",
    "OwnRun",
    "Part",
    "Phase",
    "Plan",
    "Prefill",
    "Realised",
    "Speed",
    "StartUp",
    "Verdict",
    "between",
    "doubt",
    "largest_context",
    "launch_key",
    "longest_context",
    "plan",
]
