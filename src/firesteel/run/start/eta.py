"""How long a start still takes: the plan's phases, corrected by earlier starts and by how far it is.

A stage that counts its own progress (shards, graphs) is worth more than any plan: its rest follows from its
share. A stage that does not is given the time that it was planned to take, or took before. One that takes
longer than the most that was planned makes no promise any more; it says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from firesteel.engines import Stage, StartProgress, stages
from firesteel.launch import EngineName
from firesteel.planner import Band
from firesteel.planner.speed.startup import StartPhase
from firesteel.units import show_seconds

Seconds = Mapping[Stage, float]
"""What each stage of a start took."""
_STAGES: Mapping[str, Stage] = {
    "process": "process",
    "container and imports": "process",
    "weights": "weights",
    "compile": "compile",
    "CUDA graphs": "graphs",
    "kernels built on the spot": "warm",
    "warm-up": "warm",
}
"""The planner's phases among the stages that a log shows."""
_TELLING_SHARE = 0.05
"""Before this much is done, a stage's own pace says little."""
_WORTH_SAYING_S = 5


@dataclass(frozen=True, slots=True)
class StartTracker:
    """How far a start has come. Only forward: a drafter's weights after the graphs are still graphs."""

    engine: EngineName
    stage: Stage = "process"
    since_s: float = 0
    """When the stage began, counted from the start."""
    mark: StartProgress | None = None
    took: tuple[tuple[Stage, float], ...] = ()
    """The stages that are over."""

    def met(self, mark: StartProgress, at_s: float) -> StartTracker:
        order = stages(self.engine)
        if order.index(mark.stage) < order.index(self.stage):
            return self
        if mark.stage == self.stage:
            return replace(self, mark=mark)
        over = (self.stage, at_s - self.since_s)
        return StartTracker(self.engine, mark.stage, at_s, mark, (*self.took, over))

    def seconds(self, now_s: float) -> Seconds:
        """By stage, the one under way included."""
        return dict((*self.took, (self.stage, now_s - self.since_s)))


def time_left(
    way: StartTracker, planned: Iterable[StartPhase], earlier: Sequence[Seconds], now_s: float
) -> Band | None:
    """Seconds until it listens; None when nothing tells, or when it is late."""
    bands = _bands(planned, earlier)
    if way.stage == "listening":
        return Band.exactly(0)
    here = _rest(bands.get(way.stage), _share(way), now_s - way.since_s)
    if not bands or here is None:
        return None
    order = stages(way.engine)
    after = (bands[stage] for stage in order[order.index(way.stage) + 1 :] if stage in bands)
    return sum(after, here)


def describe(
    way: StartTracker, planned: Iterable[StartPhase], earlier: Sequence[Seconds], now_s: float
) -> str:
    """`loading weights, 9 of 20 shards, about 2 min left`"""
    planned = tuple(planned)
    head = str(way.mark) if way.mark else "starting"
    rest = time_left(way, planned, earlier, now_s)
    here_s = now_s - way.since_s
    if rest is None and way.stage in _bands(planned, earlier):
        return f"{head}, longer than planned: {show_seconds(here_s)} so far"
    if rest is None:
        return f"{head}, {show_seconds(now_s)} so far" if now_s >= _WORTH_SAYING_S else head
    return f"{head}, about {show_seconds(rest.expected)} left" if rest.expected >= _WORTH_SAYING_S else head


def _share(way: StartTracker) -> float | None:
    return way.mark.share if way.mark and way.mark.stage == way.stage else None


def _rest(band: Band | None, share: float | None, here_s: float) -> Band | None:
    """Of the stage under way; None when it is late. A stage that nobody planned takes no time to speak of."""
    if share is not None and share >= _TELLING_SHARE:
        rest = here_s * (1 - share) / share
        return Band(rest * 0.7, rest, rest * 1.5)
    if band is None:
        return Band.exactly(0)
    if here_s > band.high:
        return None
    return Band(max(0, band.low - here_s), max(0, band.expected - here_s), band.high - here_s)


def _bands(planned: Iterable[StartPhase], earlier: Sequence[Seconds]) -> dict[Stage, Band]:
    bands: dict[Stage, Band] = {}
    first_only: set[Stage] = set()
    for phase in planned:
        stage = _STAGES.get(phase.name)
        if stage:
            bands[stage] = bands.get(stage, Band.exactly(0)) + phase.seconds
            if phase.is_first_only:
                first_only.add(stage)
    return _as_before(earlier, first_only) if earlier else bands


def _as_before(earlier: Sequence[Seconds], first_only: set[Stage]) -> dict[Stage, Band]:
    """The last start is the best guess, all of them the band; what was kept from it takes nothing again."""
    bands = {}
    for stage in dict.fromkeys(stage for seconds in earlier for stage in seconds):
        took = [seconds.get(stage, 0) for seconds in earlier]
        if stage in first_only or stage == "download":
            bands[stage] = Band(0, min(took[1:], default=0), 1.25 * max(took))
        else:
            bands[stage] = Band(0.8 * min(took), took[-1], 1.25 * max(took))
    return bands
