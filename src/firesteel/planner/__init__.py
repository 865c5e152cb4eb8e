"""Predict memory and speed before anything is downloaded: a launch, a model and a host in, a Plan out.

Counted parts are exact, estimated parts have a band, and every figure says where it comes from.
Does no I/O: the host is a value. Never judges flags: that is the task of `rules`.
"""

from firesteel.planner.memory.account import MemoryAccount, MemoryPart
from firesteel.planner.memory.measured import MeasuredMemory, launch_key
from firesteel.planner.plan import Plan, between, largest_context, longest_context, plan
from firesteel.planner.speed.own_runs import OwnRun
from firesteel.planner.speed.speed import Speed
from firesteel.planner.speed.startup import StartPhase
from firesteel.planner.summary import PlanSummary, summarize
from firesteel.units import Band

__all__ = [
    "Band", "MeasuredMemory", "MemoryAccount", "MemoryPart", "OwnRun", "Plan", "PlanSummary", "Speed",
    "StartPhase", "between", "largest_context", "launch_key", "longest_context", "plan", "summarize",
]  # fmt: skip
