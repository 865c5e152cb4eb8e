"""Estimate how long a start will still take: the planned phases, corrected by earlier starts and by progress.

For a stage that reports its own progress (shards, graphs) the rest is extrapolated from that. Any other stage
is assumed to take the planned time, or the time that it took before. A stage that takes longer than the
planned maximum has no estimate any more, and the text says that it is late.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from firesteel.engines.logs import Stage, StartProgress, stages
from firesteel.launch import EngineName
from firesteel.planner.speed.startup import StartPhase
from firesteel.units import Band, show_seconds
from firesteel.values import Value, replace

Seconds = Mapping[Stage, float]
"""Duration of every stage of a start."""
_STAGES: Mapping[str, Stage] = {
    "process": "process",
    "container and imports": "process",
    "cluster forming": "forming",
    "weights": "weights",
    "compile": "compile",
    "CUDA graphs": "graphs",
    "kernels built on the spot": "warm",
    "warm-up": "warm",
}
"""The planner's phases -> the stages that a log shows."""
_MIN_SHARE = 0.05
"""Below this progress, the pace of a stage predicts little."""
_MIN_SHOWN_S = 5


class StartTracker(Value):
    """Progress of a start. It never goes back: drafter weights loaded after the graphs count as `graphs`."""

    engine: EngineName
    stage: Stage = "process"
    since_s: float = 0
    """When the stage began, counted from the start."""
    progress: StartProgress | None = None
    took: tuple[tuple[Stage, float], ...] = ()
    """The finished stages."""

    def advance(self, progress: StartProgress, now_s: float) -> StartTracker:
        order = stages(self.engine)
        if order.index(progress.stage) < order.index(self.stage):
            return self
        if progress.stage == self.stage:
            return replace(self, progress=progress)
        finished = (self.stage, now_s - self.since_s)
        return StartTracker(self.engine, progress.stage, now_s, progress, (*self.took, finished))

    def seconds(self, now_s: float) -> Seconds:
        """By stage, the current one included."""
        return dict((*self.took, (self.stage, now_s - self.since_s)))


def time_left(
    tracker: StartTracker, planned: Iterable[StartPhase], earlier: Sequence[Seconds], now_s: float
) -> Band | None:
    """Seconds until it listens; None if nothing is known, or if it is late."""
    bands = _bands(planned, earlier)
    if tracker.stage == "listening":
        return Band.exactly(0)
    share = tracker.progress.share if tracker.progress else None
    current = _stage_left(bands.get(tracker.stage), share, now_s - tracker.since_s)
    if not bands or current is None:
        return None
    order = stages(tracker.engine)
    later = (bands[stage] for stage in order[order.index(tracker.stage) + 1 :] if stage in bands)
    return sum(later, current)


def describe(
    tracker: StartTracker, planned: Iterable[StartPhase], earlier: Sequence[Seconds], now_s: float
) -> str:
    """`loading weights, 9 of 20 shards, about 2 min left`"""
    planned = tuple(planned)
    head = str(tracker.progress) if tracker.progress else "starting"
    left = time_left(tracker, planned, earlier, now_s)
    if left is None and tracker.stage in _bands(planned, earlier):
        return f"{head}, longer than planned: {show_seconds(now_s - tracker.since_s)} so far"
    if left is None:
        return f"{head}, {show_seconds(now_s)} so far" if now_s >= _MIN_SHOWN_S else head
    return f"{head}, about {show_seconds(left.expected)} left" if left.expected >= _MIN_SHOWN_S else head


def _stage_left(band: Band | None, share: float | None, spent_s: float) -> Band | None:
    """Of the current stage; None if it is late. A stage that is not in the plan is assumed to be short."""
    if share is not None and share >= _MIN_SHARE:
        left_s = spent_s * (1 - share) / share
        return Band(left_s * 0.7, left_s, left_s * 1.5)
    if band is None:
        return Band.exactly(0)
    if spent_s > band.high:
        return None
    return Band(max(0, band.low - spent_s), max(0, band.expected - spent_s), band.high - spent_s)


def _bands(planned: Iterable[StartPhase], earlier: Sequence[Seconds]) -> dict[Stage, Band]:
    bands: dict[Stage, Band] = {}
    first_only: set[Stage] = set()
    for phase in planned:
        stage = _STAGES.get(phase.name)
        if stage:
            bands[stage] = bands.get(stage, Band.exactly(0)) + phase.seconds
            if phase.is_first_only:
                first_only.add(stage)
    return _bands_of_earlier(earlier, first_only) if earlier else bands


def _bands_of_earlier(earlier: Sequence[Seconds], first_only: set[Stage]) -> dict[Stage, Band]:
    """The last start is the expected value, all of them give the band; what it cached takes no time again."""
    bands = {}
    for stage in dict.fromkeys(stage for seconds in earlier for stage in seconds):
        took = [seconds.get(stage, 0) for seconds in earlier]
        if stage in first_only or stage == "download":
            bands[stage] = Band(0, min(took[1:], default=0), 1.25 * max(took))
        else:
            bands[stage] = Band(0.8 * min(took), took[-1], 1.25 * max(took))
    return bands
