"""Events of an operation in progress. Commands print them, a gateway can pass them on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from firesteel.values import Value

if TYPE_CHECKING:  # stopping a service needs no planner
    from firesteel.planner.propose import Proposal
    from firesteel.run.report import Report

PhaseName = Literal["plan", "check", "pull", "launch", "warm", "verify", "stop", "boot"]


class PhaseProgress(Value):
    """Progress within a phase; on a screen it replaces the progress before it."""

    phase: PhaseName
    text: str
    eta_s: float | None = None
    """How long the launch will still take, if that is known."""


class PhaseDone(Value):
    """The result of a phase, or of a part of it."""

    phase: PhaseName
    text: str


class PlanReady(Value):
    proposal: Proposal


class ServiceReady(Value):
    report: Report
    already: bool = False
    """It was already running; nothing was started."""


Event = PhaseProgress | PhaseDone | PlanReady | ServiceReady
