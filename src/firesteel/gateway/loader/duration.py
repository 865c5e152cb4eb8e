"""How long a load takes, from the plan until it is proved, and how long one that is under way will still be.

What earlier loads took is kept with the starts of the model (`run/start/start_times.py`). The engine's own
start is the part that tells how far it is; warm-up and proof follow it, and take what they took the last
time. Used by the loader alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from firesteel.edge.files.home import Home
from firesteel.rules import Proposal
from firesteel.run import PhaseDone, PhaseProgress
from firesteel.run.start.start_times import earlier_starts, last_verified, record_verified


@dataclass(frozen=True, slots=True)
class LoadTime:
    """Seconds that a load takes, as far as anybody knows."""

    launch_s: float | None
    """Until it answers: as the last start here took, or as planned."""
    proof_s: float | None = None
    """Then until it is warmed and proved, as the last one here took."""
    whole_s: float | None = None

    @property
    def all_s(self) -> float | None:
        return self.whole_s if self.whole_s is not None else self.launch_s


def load_time(proposal: Proposal, home: Home) -> LoadTime:
    launch, speed = proposal.plan.launch, proposal.plan.speed
    before = earlier_starts(home, proposal.name, launch.engine, launch.version)
    planned_s = speed.start_up.seconds.expected if speed and speed.start_up else None
    launch_s = sum(before[-1].values()) if before else planned_s
    last = last_verified(home, proposal.name, launch.engine, launch.version)
    return LoadTime(launch_s, last.proof_s, last.whole_s) if last else LoadTime(launch_s)


class LoadClock:
    """How long it will still be until it is proved, as far as anybody knows; of a download, nothing."""

    def __init__(self, took: LoadTime, now_s: float) -> None:
        self.took = took
        self._began_s = self._last_s = now_s
        self._launched_s: float | None = None
        self._answered_s: float | None = None
        self._last, self._fetched_s = "", 0.0

    def left_s(self, event: PhaseProgress | PhaseDone, now_s: float) -> float | None:
        self._hear(event, now_s)
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

    def _hear(self, event: PhaseProgress | PhaseDone, now_s: float) -> None:
        if self._last == "pull":
            self._fetched_s += now_s - self._last_s
        self._last, self._last_s = event.phase, now_s
        if event.phase == "launch" and self._launched_s is None:
            self._launched_s = now_s
        is_up = event.phase in ("warm", "verify") or (
            event.phase == "launch" and isinstance(event, PhaseDone)
        )
        if is_up and self._answered_s is None:
            self._answered_s = now_s

    def keep(self, name: str, home: Home, now_s: float) -> float:
        """What it took is what the next one is said to take."""
        whole_s = now_s - self._began_s - self._fetched_s
        if self._answered_s is not None:
            record_verified(home, name, now_s - self._answered_s, whole_s)
        return round(whole_s, 1)
