"""What a doing says while it runs. Commands print events, a gateway can pass them on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from firesteel.rules import Proposal
from firesteel.run.report import Report

PhaseName = Literal["plan", "check", "pull", "launch", "warm", "verify", "stop", "boot"]


@dataclass(frozen=True, slots=True)
class PhaseProgress:
    """A phase, and what is happening in it; the next one replaces it on a screen."""

    phase: PhaseName
    text: str
    eta_s: float | None = None
    """How long the launch will still take, where that is known."""


@dataclass(frozen=True, slots=True)
class PhaseDone:
    """A phase that is over, and what it came to."""

    phase: PhaseName
    text: str


@dataclass(frozen=True, slots=True)
class PlanReady:
    proposal: Proposal


@dataclass(frozen=True, slots=True)
class ServiceReady:
    report: Report
    already: bool = False
    """It was running before; nothing was started."""


Event = PhaseProgress | PhaseDone | PlanReady | ServiceReady
