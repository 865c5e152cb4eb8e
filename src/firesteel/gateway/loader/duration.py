"""How long a load takes, from planning to verification, and how long one under way still needs.

Durations of earlier loads are stored with the model's starts (`run/start.py`). During the
engine's own start its progress is known; warm-up and verification are expected to take as long as the last
time. Used only by the loader process.
"""

from __future__ import annotations

from firesteel.edge.home import Home
from firesteel.planner.propose import Proposal
from firesteel.run.events import PhaseDone, PhaseProgress
from firesteel.run.service import read_proof
from firesteel.run.start import earlier_starts, last_verified, record_verified
from firesteel.values import Value


class LoadTime(Value):
    """Expected seconds of a load; None: unknown."""

    launch_s: float | None
    """Until it answers: from the last start here, or as planned."""
    proof_s: float | None = None
    """From there until it is warm and verified, from the last load here."""
    whole_s: float | None = None

    @property
    def all_s(self) -> float | None:
        return self.whole_s if self.whole_s is not None else self.launch_s


def load_time(proposal: Proposal, home: Home) -> LoadTime:
    launch, speed = proposal.plan.launch, proposal.plan.speed
    before = earlier_starts(home, proposal.name, launch.engine, launch.version)
    planned_s = speed.start_up.seconds.expected if speed and speed.start_up else None
    launch_s = sum(before[-1].values()) if before else planned_s
    is_brief = read_proof(home, proposal.name) is not None
    last = last_verified(home, proposal.name, launch.engine, launch.version, is_brief=is_brief)
    return LoadTime(launch_s, last.proof_s, last.whole_s) if last else LoadTime(launch_s)


class LoadClock:
    """Estimates the time until a load is verified. During a download there is no estimate."""

    def __init__(self, took: LoadTime, now_s: float) -> None:
        self.took = took
        self._began_s = self._last_s = now_s
        self._launched_s: float | None = None
        self._answered_s: float | None = None
        self._last_phase, self._download_s = "", 0.0

    def left_s(self, event: PhaseProgress | PhaseDone, now_s: float) -> float | None:
        self._record(event, now_s)
        left_s = self._left_s(event, now_s)
        return round(left_s, 1) if left_s is not None and left_s > 0 else None

    def _left_s(self, event: PhaseProgress | PhaseDone, now_s: float) -> float | None:
        proof_s = self.took.proof_s
        if event.phase in ("plan", "check"):
            return self.took.all_s
        if self._answered_s is not None:
            return None if proof_s is None else proof_s - (now_s - self._answered_s)
        if event.phase != "launch":
            return None
        left_s = event.eta_s if isinstance(event, PhaseProgress) else None
        if left_s is None and self.took.launch_s is not None and self._launched_s is not None:
            left_s = self.took.launch_s - (now_s - self._launched_s)
        return left_s + (proof_s or 0.0) if left_s is not None and left_s >= 0 else None

    def _record(self, event: PhaseProgress | PhaseDone, now_s: float) -> None:
        if self._last_phase == "pull":
            self._download_s += now_s - self._last_s
        self._last_phase, self._last_s = event.phase, now_s
        if event.phase == "launch" and self._launched_s is None:
            self._launched_s = now_s
        has_answered = event.phase in ("warm", "verify") or (
            event.phase == "launch" and isinstance(event, PhaseDone)
        )
        if has_answered and self._answered_s is None:
            self._answered_s = now_s

    def keep(self, name: str, home: Home, now_s: float, *, is_brief: bool = False) -> float:
        """Store the duration, as the estimate for the next load."""
        whole_s = now_s - self._began_s - self._download_s
        if self._answered_s is not None:
            record_verified(home, name, now_s - self._answered_s, whole_s, is_brief=is_brief)
        return round(whole_s, 1)
