"""Doings: carry a proposal through the doors, and say what happens as events.

`bring_up` plans nothing and `stop` decides nothing: both are handed values. What runs is known from files
and locks under FIRESTEEL_HOME, never from memory, so any command finds the truth after any crash.

The door opens lazily: a keeper lives as long as its model, and must not carry planner and client.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from firesteel.run.down import stop
    from firesteel.run.events import Doing, Done, Event, Planned, Ready
    from firesteel.run.judge import Check, judge_answers
    from firesteel.run.pull import pull
    from firesteel.run.report import Compared, Report, read_report
    from firesteel.run.service import Service, all_services, death, last_lines, pick
    from firesteel.run.steps import make_steps
    from firesteel.run.up import bring_up
    from firesteel.run.verify import ask

__all__ = [
    "Check", "Compared", "Doing", "Done", "Event", "Planned", "Ready", "Report", "Service",
    "all_services", "ask", "bring_up", "death", "judge_answers", "last_lines", "make_steps", "pick", "pull",
    "read_report", "stop",
]  # fmt: skip

_WHERE = {
    "down": ("stop",),
    "events": ("Doing", "Done", "Event", "Planned", "Ready"),
    "pull": ("pull",),
    "report": ("Compared", "Report", "read_report"),
    "service": ("Service", "all_services", "death", "last_lines", "pick"),
    "steps": ("make_steps",),
    "up": ("bring_up",),
    "judge": ("Check", "judge_answers"),
    "verify": ("ask",),
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    for module, names in _WHERE.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(name)
