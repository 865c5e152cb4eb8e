"""The input of all charts of a run, and the section of the page that each chart becomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from firesteel.bench.compare.against import (
    PlanComparison,
    PublishedComparison,
    against_plan,
    against_published,
)
from firesteel.bench.results.serialize import StoredRun
from firesteel.bench.values import BenchRun, RequestSample
from firesteel.planner.speed.decode import constants
from firesteel.planner.speed.published import PublishedRun, run_sources
from firesteel.render.charts import LinePlot, RowChart
from firesteel.units import Band
from firesteel.values import Value

_MAX_PUBLISHED = 24
_MIN_VALUE, _MAX_VALUE = 1e-9, 1e15


class ChartSection(Value):
    """A drawing and its table. A chart without data has neither: `missing` says what it needs."""

    title: str
    svg: str = ""
    head: tuple[str, ...] = ()
    rows: Sequence[tuple[str, ...]] = ()
    missing: str = ""
    note: str = ""
    """How to read it."""


def section(
    chart: LinePlot | RowChart,
    name: str,
    note: str = "",
    table: tuple[tuple[str, ...], Sequence[tuple[str, ...]]] | None = None,
) -> ChartSection:
    """`table` replaces the table of the chart, where it has more to show."""
    undrawn = f"{chart.undrawn} more are only in the table." if chart.undrawn else ""
    note = " ".join(sentence for sentence in (note, undrawn) if sentence)
    return ChartSection(chart.title, chart.svg(name), *(table or chart.table()), note=note)


class ReportData(Value):
    run: BenchRun
    samples: tuple[RequestSample, ...] = ()
    published: tuple[PublishedRun, ...] = ()

    @classmethod
    def of(cls, stored: StoredRun, published: Sequence[PublishedRun] = ()) -> ReportData:
        rows = (row for row in published if row.decode_tps and _MIN_VALUE < row.decode_tps < _MAX_VALUE)
        return cls(stored.run, stored.samples, tuple(rows)[:_MAX_PUBLISHED])

    @property
    def plan(self) -> Mapping[str, Any]:
        return self.run.subject.plan

    def plan_comparisons(self) -> tuple[PlanComparison, ...]:
        return tuple(row for row in against_plan(self.run) if _is_plausible(row.planned))

    def published_comparisons(self) -> tuple[PublishedComparison, ...]:
        urls = {name: origin.url for name, origin in run_sources().items()}
        carried = constants().carried
        return against_published(self.run, self.published, urls, (carried.low, carried.high))


def has_no_gpu(run: BenchRun) -> bool:
    """Then arithmetic is the limit, and a small share of the bandwidth is no sign of a fault."""
    return run.subject.host.get("gpus") in ([], ())


def is_number(value: object) -> TypeGuard[float]:
    """A number of a size that something measured can have: a stored plan may contain anything."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MAX_VALUE


def parse_band(value: object) -> Band | None:
    match value:
        case {"low": low, "expected": expected, "high": high} if all(map(is_number, (low, expected, high))):
            band = Band(float(low), float(expected), float(high))
            return band if _is_plausible(band) else None
    return None


def _is_plausible(band: Band) -> bool:
    return 0 <= band.low <= band.expected <= band.high < _MAX_VALUE and band.expected > _MIN_VALUE
