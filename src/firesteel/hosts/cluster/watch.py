"""The policy of the runner: what each rank last reported -> notices, or the loss that ends the run. Pure.

    watch, happened = watch.after(now_s, {"spark2": RankReport(...)})

A rank whose process ended is lost at once. A rank that says nothing, or whose rail has no carrier, is told
after 3 s; if it is back within 10 s the run goes on, since TCP resumes by itself; otherwise it is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from firesteel.dataclass import dataclass

TOLD_S = 3.0
LOST_S = 10.0


@dataclass(frozen=True, slots=True)
class RankReport:
    """What an agent says of its rank."""

    is_alive: bool
    exit: int | None = None
    why: str | None = None
    pid: int | None = None
    resident_bytes: int = 0
    available_bytes: int = 0
    carrier: Mapping[str, bool] | None = None
    mtu: Mapping[str, int] | None = None
    stuck: str | None = None
    """A connection to another rank on which nothing is acknowledged any more."""

    @property
    def has_link(self) -> bool:
        return all((self.carrier or {}).values()) and self.stuck is None


@dataclass(frozen=True, slots=True)
class RankWatch:
    host: str
    good_s: float
    """When it last said that all is well."""
    report: RankReport | None = None
    is_told: bool = False


@dataclass(frozen=True, slots=True)
class Happened:
    notices: tuple[str, ...] = ()
    loss: str | None = None
    lost_host: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterWatch:
    ranks: tuple[RankWatch, ...]

    @classmethod
    def begin(cls, hosts: tuple[str, ...], now_s: float) -> ClusterWatch:
        return cls(tuple(RankWatch(host, now_s) for host in hosts))

    def after(self, now_s: float, reports: Mapping[str, RankReport]) -> tuple[ClusterWatch, Happened]:
        """`reports`: those that came since the last call."""
        ranks, notices, losses = [], [], []
        for rank in self.ranks:
            rank, notice, loss = _one(rank, now_s, reports.get(rank.host))
            ranks.append(rank)
            notices += [notice] if notice else []
            losses += [(rank.host, loss)] if loss else []
        host, loss = losses[0] if losses else (None, None)
        return ClusterWatch(tuple(ranks)), Happened(tuple(notices), loss, host)


def _one(
    rank: RankWatch, now_s: float, report: RankReport | None
) -> tuple[RankWatch, str | None, str | None]:
    if report:
        changed = _changed_mtu(rank, report)
        rank = replace(rank, report=report)
        if changed and report.is_alive and report.has_link:
            return replace(rank, good_s=now_s), changed, None
        if not report.is_alive:
            return rank, None, f"{rank.host}: {_end(report)}"
        if report.has_link:
            silent_s = now_s - rank.good_s
            notice = f"{rank.host}: the link is back after {silent_s:.0f} s" if rank.is_told else None
            return replace(rank, good_s=now_s, is_told=False), notice, None
    silent_s = now_s - rank.good_s
    what = f"{rank.host}: {_silence(rank.report)} for {silent_s:.0f} s"
    if silent_s >= LOST_S:
        return rank, None, what
    if silent_s >= TOLD_S and not rank.is_told:
        return replace(rank, is_told=True), f"{what}; waiting until {LOST_S:.0f} s", None
    return rank, None, None


def _changed_mtu(rank: RankWatch, report: RankReport) -> str | None:
    before = (rank.report.mtu if rank.report else None) or {}
    for name, size in (report.mtu or {}).items():
        if before.get(name, size) != size:
            return f"{rank.host}: the MTU of {name} changed from {before[name]} to {size}"
    return None


def _silence(report: RankReport | None) -> str:
    if report and report.stuck:
        return f"its connection to {report.stuck} is stuck"
    dead = [name for name, is_up in (report.carrier or {}).items() if not is_up] if report else []
    return f"{', '.join(dead)} has no carrier" if dead else "no answer over the link"


def _end(report: RankReport) -> str:
    if report.why:
        return f"its rank ended: {report.why}"
    if report.exit is None:
        return "its rank ended"
    if report.exit > 128:
        return f"its rank was killed by signal {report.exit - 128}"
    return f"its rank exited with code {report.exit}"
