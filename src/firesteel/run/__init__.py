"""Operations on services: start, supervise, verify and stop models.

They carry out proposals and report events; they never plan. What runs is read from files and locks under
FIRESTEEL_HOME, never from memory, so every command finds the truth after any crash (see DESIGN.md).

Exports are loaded lazily: a supervisor lives as long as its model, and must not load the planner.
"""

from typing import TYPE_CHECKING

from firesteel.lazy import lazy_exports

if TYPE_CHECKING:
    from firesteel.run.down import stop
    from firesteel.run.events import Event, PhaseDone, PhaseProgress, PlanReady, ServiceReady
    from firesteel.run.fetch.prune import UnusedFile, find_unused, remove_unused
    from firesteel.run.fetch.pull import pull_launch, pull_weights
    from firesteel.run.fetch.weights import WeightsNeed, parse_name, weights_needed
    from firesteel.run.report import Compared, Report, read_report
    from firesteel.run.service import Service, ServiceSpec, all_services, death, last_lines, load, pick
    from firesteel.run.service_plans import plan_all
    from firesteel.run.start.listen import LOOPBACK, listening
    from firesteel.run.start.options import RunOptions
    from firesteel.run.start.start import adopt_all
    from firesteel.run.start.steps import make_steps
    from firesteel.run.up import bring_up
    from firesteel.run.verify.checks import CheckResult
    from firesteel.run.verify.expected import Expected, expected, stored_expected, write_expected
    from firesteel.run.verify.verify import Verification, VerifyBudget

__all__ = [
    "LOOPBACK",
    "CheckResult",
    "Compared",
    "Event",
    "Expected",
    "PhaseDone",
    "PhaseProgress",
    "PlanReady",
    "Report",
    "RunOptions",
    "Service",
    "ServiceReady",
    "ServiceSpec",
    "UnusedFile",
    "Verification",
    "VerifyBudget",
    "WeightsNeed",
    "adopt_all",
    "all_services",
    "bring_up",
    "death",
    "expected",
    "find_unused",
    "last_lines",
    "listening",
    "load",
    "make_steps",
    "parse_name",
    "pick",
    "plan_all",
    "pull_launch",
    "pull_weights",
    "read_report",
    "remove_unused",
    "stop",
    "stored_expected",
    "weights_needed",
    "write_expected",
]  # fmt: skip

if not TYPE_CHECKING:  # a type checker would take any name for one of these
    __getattr__ = lazy_exports(
        __name__,
        {
            "down": ("stop",),
            "start.listen": ("LOOPBACK", "listening"),
            "start.options": ("RunOptions",),
            "start.start": ("adopt_all",),
            "service_plans": ("plan_all",),
            "events": ("PhaseProgress", "PhaseDone", "Event", "PlanReady", "ServiceReady"),
            "fetch.prune": ("UnusedFile", "find_unused", "remove_unused"),
            "fetch.pull": ("pull_weights", "pull_launch"),
            "fetch.weights": ("WeightsNeed", "parse_name", "weights_needed"),
            "report": ("Compared", "Report", "read_report"),
            "service": ("Service", "ServiceSpec", "all_services", "death", "last_lines", "load", "pick"),
            "start.steps": ("make_steps",),
            "up": ("bring_up",),
            "verify.checks": ("CheckResult",),
            "verify.expected": ("Expected", "expected", "write_expected", "stored_expected"),
            "verify.verify": ("VerifyBudget", "Verification"),
        },
    )
