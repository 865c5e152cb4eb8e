"""Conditions over time -> alerts: each problem once, its end once, and never a flood. Pure.

    tracker, alerts = tracker.after(conditions, now_s)

A failed load and the guard are told at once; health and disks when they have been bad for a minute. A problem
is over when it has not been seen for a minute. While it lasts it is told again every `repeat_s`. One that
comes back within ten minutes is told when these are over; in one hour at most `MAX_PER_HOUR` are told, the
others later.
"""

from __future__ import annotations

from collections.abc import Mapping

from firesteel.gateway.alerts.conditions import AlertKey, AlertKind
from firesteel.values import Value, replace

AT_ONCE: frozenset[AlertKind] = frozenset(("load_failed", "guard"))
SETTLE_S = 60.0
QUIET_S = 600.0
MAX_PER_HOUR = 30
_HOUR_S = 3600.0
_FORGET_S = 86400.0


class Alert(Value):
    kind: AlertKind
    subject: str
    text: str
    is_over: bool = False
    """The problem is gone."""


class Problem(Value):
    """One condition, from when it was first seen until it is forgotten."""

    text: str
    since_s: float
    seen_s: float
    told_s: float | None = None
    """When it was last told."""
    is_told: bool = False
    """And its end was not."""


class AlertTracker(Value):
    repeat_s: float = 6 * 3600.0
    problems: Mapping[AlertKey, Problem] = {}
    told_at: tuple[float, ...] = ()
    """Of the last hour."""

    def after(self, now: Mapping[AlertKey, str], now_s: float) -> tuple[AlertTracker, list[Alert]]:
        told_at = [at for at in self.told_at if now_s - at < _HOUR_S]
        problems: dict[AlertKey, Problem] = {}
        alerts: list[Alert] = []
        held_back = 0
        for key in [*self.problems, *(key for key in now if key not in self.problems)]:
            before, problem, alert = self._next(key, self.problems.get(key), now.get(key), now_s)
            if alert is not None and len(told_at) >= MAX_PER_HOUR:
                held_back += 1
                problem = before  # so that it is told later
            elif alert is not None:
                told_at.append(now_s)
                alerts.append(alert)
            if problem is not None:
                problems[key] = problem
        if alerts and held_back:
            more = f"{alerts[-1].text} (and {held_back} more, which are told later)"
            alerts[-1] = replace(alerts[-1], text=more)
        return replace(self, problems=problems, told_at=tuple(told_at)), alerts

    def _next(
        self, key: AlertKey, problem: Problem | None, text: str | None, now_s: float
    ) -> tuple[Problem | None, Problem | None, Alert | None]:
        """The problem if nobody is told, the problem if the alert is told, and the alert."""
        if text is None:
            return self._gone(key, problem, now_s) if problem else (None, None, None)
        if problem is None or now_s - problem.seen_s > SETTLE_S:  # new, or it was away
            problem = Problem(text, now_s, now_s, problem.told_s if problem else None)
        problem = replace(problem, text=text, seen_s=now_s)
        if not self._is_due(key, problem, now_s):
            return problem, problem, None
        told = replace(problem, told_s=now_s, is_told=True)
        return problem, told, Alert(key.kind, key.subject, text)

    def _is_due(self, key: AlertKey, problem: Problem, now_s: float) -> bool:
        if problem.is_told:
            return problem.told_s is not None and now_s - problem.told_s >= self.repeat_s
        if problem.told_s is not None and now_s - problem.told_s < QUIET_S:
            return False
        return key.kind in AT_ONCE or now_s - problem.since_s >= SETTLE_S

    def _gone(
        self, key: AlertKey, problem: Problem, now_s: float
    ) -> tuple[Problem | None, Problem | None, Alert | None]:
        away_s = now_s - problem.seen_s
        if problem.is_told and away_s >= SETTLE_S:
            over = Alert(key.kind, key.subject, _over(key), is_over=True)
            return problem, replace(problem, is_told=False), over
        kept = None if away_s >= _FORGET_S else problem
        return kept, kept, None

    @property
    def active(self) -> dict[AlertKey, Problem]:
        """Told, and not over."""
        return {key: problem for key, problem in self.problems.items() if problem.is_told}


def _over(key: AlertKey) -> str:
    texts: dict[AlertKind, str] = {
        "unhealthy": f"{key.subject} is healthy again",
        "load_failed": f"{key.subject} no longer fails to load",
        "guard": f"{key.subject} runs again after the guard had stopped it",
        "disk": f"the disk under {key.subject} has space again",
    }
    return texts[key.kind]
