"""What every chart of a run is made of, and what it comes to: a drawing with the table of what it shows.

A chart for which there is nothing to draw says why, and what would give it: no empty frame, no zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from firesteel.bench.compare.against import (
    PlanComparison,
    PublishedComparison,
    against_plan,
    against_published,
)
from firesteel.bench.results.serialize import StoredRun
from firesteel.bench.values import BenchRun, MeasuredFigure, RequestSample
from firesteel.planner import Band
from firesteel.planner.speed.constants import constants
from firesteel.planner.speed.published import PublishedRun as Published
from firesteel.planner.speed.published import run_sources

_MOST_PUBLISHED = 24
_TINY, _HUGE = 1e-9, 1e15


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    svg: str = ""
    """Empty: there is none, and `why` says so."""
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    why: str = ""
    reads: str = ""
    """How to read it."""


@dataclass(frozen=True, slots=True)
class ReportData:
    """What all charts are made of."""

    run: BenchRun
    samples: tuple[RequestSample, ...] = ()
    published: tuple[Published, ...] = ()

    @classmethod
    def of(cls, kept: StoredRun, published: Sequence[Published] = ()) -> ReportData:
        rows = (row for row in published if row.decode_tps and _TINY < row.decode_tps < _HUGE)
        return cls(kept.run, kept.samples, tuple(rows)[:_MOST_PUBLISHED])

    @property
    def plan(self) -> Mapping[str, Any]:
        return self.run.subject.plan

    def held(self) -> tuple[PlanComparison, ...]:
        return tuple(each for each in against_plan(self.run) if _is_band(each.planned))

    def beside(self) -> tuple[PublishedComparison, ...]:
        urls = {name: origin.url for name, origin in run_sources().items()}
        carried = constants().carried
        return against_published(self.run, self.published, urls, (carried.low, carried.high))


def has_no_gpu(run: BenchRun) -> bool:
    """Then arithmetic is the limit, and a small share of the bandwidth no sign of a fault."""
    return run.subject.host.get("gpus") in ([], ())


def is_number(value: object) -> TypeGuard[float]:
    """Of a size that a measured thing can have: from a file may come anything."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _HUGE


def band_of(told: object) -> Band | None:
    match told:
        case {"low": low, "expected": mid, "high": high} if all(map(is_number, (low, mid, high))):
            planned = Band(float(low), float(mid), float(high))
            return planned if _is_band(planned) else None
    return None


def _is_band(planned: Band) -> bool:
    return 0 <= planned.low <= planned.expected <= planned.high < _HUGE and planned.expected > _TINY


def left_out(every: Sequence[Any] | Mapping[Any, Any], most: int) -> str:
    return f"{len(every) - most} more are in the table only" if len(every) > most else ""


def ends_of(figure: MeasuredFigure | None) -> tuple[float | None, float | None]:
    """Of one observation there is no interval to draw."""
    return (figure.low, figure.high) if figure and figure.n > 1 else (None, None)
