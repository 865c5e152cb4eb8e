"""Doings: carry a proposal through the doors, and say what happens as events.

`bring_up` plans nothing and `stop` decides nothing: both are handed values. What runs is known from files
and locks under FIRESTEEL_HOME, never from memory, so any command finds the truth after any crash.

The door opens lazily: a keeper lives as long as its model, and must not carry planner and client.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from firesteel.run.down import stop
    from firesteel.run.events import Doing, Done, Event, Planned, Ready
    from firesteel.run.expect import Expect, keep_expect, kept_expect
    from firesteel.run.judge import Check
    from firesteel.run.listen import LOOPBACK, listening
    from firesteel.run.manner import Manner
    from firesteel.run.prune import Waste, find_waste, remove
    from firesteel.run.pull import fetched_gguf, pull_weights, stage
    from firesteel.run.report import Compared, Report, read_report
    from firesteel.run.service import Service, Spec, all_services, death, last_lines, pick
    from firesteel.run.start import adopt_all
    from firesteel.run.steps import make_steps
    from firesteel.run.together import plan_all
    from firesteel.run.up import bring_up
    from firesteel.run.verify import Budget, Proof
    from firesteel.run.weights import Want, read_name, wants

__all__ = [
    "LOOPBACK", "Budget", "Check", "Compared", "Doing", "Done", "Event", "Expect", "Manner", "Planned",
    "Proof", "Ready", "Report", "Service", "Spec", "Want", "Waste", "adopt_all", "all_services", "bring_up",
    "death", "fetched_gguf", "find_waste", "keep_expect", "kept_expect", "last_lines", "listening",
    "make_steps", "pick", "plan_all", "pull_weights", "read_name", "read_report", "remove", "stage",
    "stop", "wants",
]  # fmt: skip

_WHERE = {
    "down": ("stop",),
    "listen": ("LOOPBACK", "listening"),
    "manner": ("Manner",),
    "start": ("adopt_all",),
    "together": ("plan_all",),
    "events": ("Doing", "Done", "Event", "Planned", "Ready"),
    "prune": ("Waste", "find_waste", "remove"),
    "pull": ("fetched_gguf", "pull_weights", "stage"),
    "weights": ("Want", "read_name", "wants"),
    "report": ("Compared", "Report", "read_report"),
    "service": ("Service", "Spec", "all_services", "death", "last_lines", "listening", "pick"),
    "steps": ("make_steps",),
    "up": ("bring_up",),
    "judge": ("Check",),
    "expect": ("Expect", "keep_expect", "kept_expect"),
    "verify": ("Budget", "Proof"),
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    for module, names in _WHERE.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(name)
