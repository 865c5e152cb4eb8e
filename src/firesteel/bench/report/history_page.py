"""The history as a page: for each model, the decode speed of each load over time. Pure.

A step in a line is a change of engine, image, settings or host, or a fault: every point has the run to look
at. Runs that were reported by others or by another tool are hollow markers, and are joined to nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Literal

from firesteel.bench.report import formatting
from firesteel.bench.report.html import Markup, document, element, table
from firesteel.bench.report.sanitize import sanitize
from firesteel.bench.results.serialize import StoredRun
from firesteel.bench.values import BenchRun
from firesteel.render.charts import Axis, DataPoint, LinePlot, Series
from firesteel.values import replace

_DAY_S = 86_400
_Dated = tuple[datetime, BenchRun]


def history_page(runs: Sequence[StoredRun]) -> str:
    by_model: dict[str, list[StoredRun]] = defaultdict(list)
    for stored in runs:
        by_model[stored.run.subject.model].append(replace(stored, run=sanitize(stored.run)))
    body = [element("h1", "Speed over time")]
    for number, (model, own) in enumerate(sorted(by_model.items()), 1):
        body += [element("h2", model), *_model(own, f"history{number}")]
    return document("Speed over time", body)


def _model(runs: Sequence[StoredRun], name: str) -> Iterator[Markup]:
    dated = [(began, stored) for stored in runs if (began := _time(stored.run.began))]
    measured = sorted(((began, s.run) for began, s in dated if s.is_own), key=lambda pair: pair[0])
    reported = sorted(((began, s.run) for began, s in dated if not s.is_own), key=lambda pair: pair[0])
    if not any(figures.decode_tokens_per_s for _, run in (*measured, *reported) for figures in run.figures):
        yield element("p", "No run of it has a date and a decode speed.")
        return
    first = min(began for began, _ in (*measured, *reported))
    series = [*_series(measured, first), *_series(reported, first, "reported: ", "hollow")]
    # Loads that were measured most often come first: only six are drawn.
    series.sort(key=lambda each: (each.kind == "hollow", -len(each.points)))
    days = Axis(f"days since {first:%Y-%m-%d %H:%M} UTC")
    plot = LinePlot(f"Decode speed over time, {name}", days, Axis("tok/s of each user"), tuple(series))
    yield Markup(f"<figure>{plot.svg(name)}</figure>")
    if plot.undrawn:
        yield element("p", f"{plot.undrawn} more loads are only in the table.", "quiet")
    yield table(*plot.table())


def _series(
    runs: Sequence[_Dated], first: datetime, prefix: str = "", kind: Literal["marker", "hollow"] = "marker"
) -> Iterator[Series]:
    loads: dict[str, list[DataPoint]] = defaultdict(list)
    for began, run in runs:
        days = (began - first).total_seconds() / _DAY_S
        for figures in run.figures:
            if (speed := figures.decode_tokens_per_s) and figures.point.rate_per_s is None:
                load = ", ".join(filter(None, (run.subject.engine, formatting.load(figures.point))))
                interval = (speed.low, speed.high) if speed.n > 1 else None
                source = ", ".join(filter(None, (run.subject.version, f"run {run.id}")))
                loads[load].append(DataPoint(days, speed.value, interval, source=source))
    for load, points in loads.items():
        yield Series(f"{prefix}{load}", tuple(points), kind)


def _time(began: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(began)
    except ValueError:
        return None
    return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
