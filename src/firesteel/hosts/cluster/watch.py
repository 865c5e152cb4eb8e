"""The policy of the runner: what each rank last reported -> notices, or the loss that ends the run. Pure.

    watch, happened = watch.after(now_s, {"spark2": RankReport(...)})

A rank whose process ended is lost at once. A silent rank, or one whose rail has no carrier, is reported after
3 s. If it is back within 10 s the run continues, since TCP resumes by itself; otherwise it is lost. After
10 s there are 2 more for a new session, whose first packets may have been lost.

A connection between ranks on which nothing is acknowledged is reported and lost in the same time, counted
from when the link was last away: after an outage TCP waits as long again before it tries the next time.

While the agent of this very host is also late, the time does not count, up to 48 s: no link is between us and
it, so this host is busy. With all hosts on two busy cores a healthy service was stopped otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from firesteel.values import Value, replace

TOLD_S = 3.0
LOST_S = 12.0
_REPORT_S, _MAX_BUSY_S = 2.0, 48.0
"""Reports of this host come every second."""


class RankReport(Value):
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


class RankWatch(Value):
    host: str
    good_s: float
    """When it last reported, with a carrier on every rail."""
    clear_s: float
    """When none of its connections was stuck, or its link was not there."""
    reported_s: float
    report: RankReport | None = None
    is_told: bool = False
    told_s: float = 0.0
    """When the reported trouble began."""


class Happened(Value):
    notices: tuple[str, ...] = ()
    loss: str | None = None


class ClusterWatch(Value):
    ranks: tuple[RankWatch, ...]

    @classmethod
    def begin(cls, hosts: tuple[str, ...], now_s: float) -> ClusterWatch:
        return cls(tuple(RankWatch(host, now_s, now_s, now_s) for host in hosts))

    def after(self, now_s: float, reports: Mapping[str, RankReport]) -> tuple[ClusterWatch, Happened]:
        """`reports`: those that came since the last call. The first rank is this host's."""
        ranks, notices, losses = [], [], []
        head = self.ranks[0]
        busy_s = min(_MAX_BUSY_S, max(0.0, now_s - head.reported_s - _REPORT_S))
        is_over = head.host in reports
        for rank in self.ranks:
            if is_over:
                rank = replace(rank, good_s=rank.good_s + busy_s, clear_s=rank.clear_s + busy_s)
            rank, notice, loss = _one(rank, now_s, reports.get(rank.host), 0.0 if is_over else busy_s)
            ranks.append(rank)
            notices += [notice] if notice else []
            losses += [loss] if loss else []
        # The last one: llama.cpp's head aborts when a worker goes, never the other way round.
        loss = losses[-1] + _silent(ranks, now_s) if losses else None
        return ClusterWatch(tuple(ranks)), Happened(tuple(notices), loss)


def _one(
    rank: RankWatch, now_s: float, report: RankReport | None, busy_s: float
) -> tuple[RankWatch, str | None, str | None]:
    rank = replace(rank, reported_s=now_s) if report else rank
    if report and not report.is_alive:
        return replace(rank, report=report), None, f"{rank.host}: {_end(report)}"
    if report:
        rank, changed = replace(rank, report=report), _changed_mtu(rank, report)
        if all((report.carrier or {}).values()):
            was_away = now_s - rank.good_s >= TOLD_S
            clear_s = now_s if was_away or report.stuck is None else rank.clear_s
            rank = replace(rank, good_s=now_s, clear_s=clear_s)
        if changed:
            return rank, changed, None
    bad_since_s = min(rank.good_s, rank.clear_s)
    return _judge(rank, now_s - bad_since_s - busy_s)


def _judge(rank: RankWatch, bad_s: float) -> tuple[RankWatch, str | None, str | None]:
    what = f"{rank.host}: {_trouble(rank.report)} for {bad_s:.0f} s"
    if bad_s >= LOST_S:
        return rank, None, what
    if bad_s >= TOLD_S and not rank.is_told:
        return replace(rank, is_told=True, told_s=rank.good_s), f"{what}; waiting until {LOST_S:.0f} s", None
    if bad_s < TOLD_S and rank.is_told:
        away_s = rank.good_s - rank.told_s
        return replace(rank, is_told=False), f"{rank.host}: the link is back after {away_s:.0f} s", None
    return rank, None, None


def _silent(ranks: Sequence[RankWatch], now_s: float) -> str:
    """A rank that ended while another host was away did so because of it."""
    silent = [rank for rank in ranks if now_s - rank.reported_s > _REPORT_S]
    is_ended = any(rank.report and not rank.report.is_alive for rank in ranks)
    if not silent or not is_ended:
        return ""
    return f"; no answer from {silent[0].host} for {now_s - silent[0].reported_s:.0f} s"


def _changed_mtu(rank: RankWatch, report: RankReport) -> str | None:
    before = (rank.report.mtu if rank.report else None) or {}
    for name, size in (report.mtu or {}).items():
        if before.get(name, size) != size:
            return f"{rank.host}: the MTU of {name} changed from {before[name]} to {size}"
    return None


def _trouble(report: RankReport | None) -> str:
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
