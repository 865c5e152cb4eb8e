"""Doings: carry a proposal through the doors, and say what happens as events.

`bring_up` plans nothing and `stop` decides nothing: both are handed values. What runs is known from files
and locks under FIRESTEEL_HOME, never from memory, so any command finds the truth after any crash.

The door opens lazily: a supervisor lives as long as its model, and must not carry planner and client.
"""

from typing import TYPE_CHECKING

from firesteel.lazy import lazy_exports

if TYPE_CHECKING:
    from firesteel.run.down import stop
    from firesteel.run.events import Event, PhaseDone, PhaseProgress, PlanReady, ServiceReady
    from firesteel.run.fetch.prune import UnusedFile, find_unused, remove
    from firesteel.run.fetch.pull import fetched_gguf, pull_weights, stage
    from firesteel.run.fetch.weights import WeightsNeed, read_name, weights_needed
    from firesteel.run.report import Compared, Report, read_report
    from firesteel.run.service import Service, ServiceSpec, all_services, death, last_lines, pick
    from firesteel.run.service_plans import plan_all
    from firesteel.run.start.listen import LOOPBACK, listening
    from firesteel.run.start.options import RunOptions
    from firesteel.run.start.start import adopt_all
    from firesteel.run.start.steps import make_steps
    from firesteel.run.up import bring_up
    from firesteel.run.verify.checks import CheckResult
    from firesteel.run.verify.expected import Expected, stored_expected, write_expected
    from firesteel.run.verify.verify import Proof, VerifyBudget

__all__ = [
    "LOOPBACK",
    "CheckResult",
    "Compared",
    "Event",
    "Expected",
    "PhaseDone",
    "PhaseProgress",
    "PlanReady",
    "Proof",
    "Report",
    "RunOptions",
    "Service",
    "ServiceReady",
    "ServiceSpec",
    "UnusedFile",
    "VerifyBudget",
    "WeightsNeed",
    "adopt_all",
    "all_services",
    "bring_up",
    "death",
    "fetched_gguf",
    "find_unused",
    "last_lines",
    "listening",
    "make_steps",
    "pick",
    "plan_all",
    "pull_weights",
    "read_name",
    "read_report",
    "remove",
    "stage",
    "stop",
    "stored_expected",
    "weights_needed",
    "write_expected",
]  # fmt: skip

__getattr__ = lazy_exports(
    __name__,
    {
        "down": ("stop",),
        "start.listen": (
            "LOOPBACK",
            "listening",
        ),
        "start.options": ("RunOptions",),
        "start.start": ("adopt_all",),
        "service_plans": ("plan_all",),
        "events": (
            "PhaseProgress",
            "PhaseDone",
            "Event",
            "PlanReady",
            "ServiceReady",
        ),
        "fetch.prune": (
            "UnusedFile",
            "find_unused",
            "remove",
        ),
        "fetch.pull": (
            "fetched_gguf",
            "pull_weights",
            "stage",
        ),
        "fetch.weights": (
            "WeightsNeed",
            "read_name",
            "weights_needed",
        ),
        "report": (
            "Compared",
            "Report",
            "read_report",
        ),
        "service": (
            "Service",
            "ServiceSpec",
            "all_services",
            "death",
            "last_lines",
            "pick",
        ),
        "start.steps": ("make_steps",),
        "up": ("bring_up",),
        "verify.checks": ("CheckResult",),
        "verify.expected": (
            "Expected",
            "write_expected",
            "stored_expected",
        ),
        "verify.verify": (
            "VerifyBudget",
            "Proof",
        ),
    },
)
