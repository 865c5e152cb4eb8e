"""Charts of the host during a run: GPU clock, power, temperature, memory over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from firesteel.bench.report import formatting
from firesteel.bench.report.data import ChartSection, is_number
from firesteel.render.charts import Axis, DataPoint, LinePlot, Series, downsample

_METRICS: Mapping[str, tuple[str, str, float]] = {
    "clock_mhz": ("GPU clock", "MHz", 1),
    "power_w": ("GPU power", "W", 1),
    "temperature_c": ("GPU temperature", "\u00b0C", 1),
    "use_percent": ("GPU utilization", "%", 1),
    "memory_available_bytes": ("Available memory", "GiB", 2**30),
    "kv_usage": ("KV cache usage", "%", 0.01),
}
"""Key in the samples of a run: title, unit, and what a sample is divided by."""


def host_over_time(samples: Mapping[str, Any]) -> tuple[ChartSection, ...]:
    """The minimum, mean and maximum of each metric, then a chart of each that was kept over time."""
    title = "The host during the run"
    rows = tuple(_summary(samples))
    if not rows:
        return (ChartSection(title, missing="no clock, power, temperature or memory was sampled"),)
    charts = tuple(_charts(samples.get("over_time")))
    note = "" if charts else "Only the minimum, mean and maximum were kept, so there is no chart over time."
    return ChartSection(title, head=("metric", "minimum", "mean", "maximum"), rows=rows, note=note), *charts


def _summary(samples: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for key, (title, unit, divisor) in _METRICS.items():
        match samples.get(key):
            case {"least": least, "mean": mean, "most": most} if all(map(is_number, (least, mean, most))):
                yield f"{title}, {unit}", *(formatting.number(v / divisor) for v in (least, mean, most))


def _charts(over_time: object) -> Iterator[ChartSection]:
    """Of `{"at_s": [...], "clock_mhz": [...], ...}`: lists of one length, None where nothing was sampled."""
    if not isinstance(over_time, Mapping) or not isinstance(times := over_time.get("at_s"), list | tuple):
        return
    for key, (title, unit, divisor) in _METRICS.items():
        values = over_time.get(key)
        pairs = zip(times, values, strict=False) if isinstance(values, list | tuple) else ()
        points = [DataPoint(t, value / divisor) for t, value in pairs if is_number(t) and is_number(value)]
        if len(points) < 2:
            continue
        series = Series("", downsample(sorted(points, key=lambda point: point.x)), "line")
        plot = LinePlot(
            title, Axis("seconds of the run"), Axis(unit), (series,),
            height=190, is_tight=True, from_zero=key != "temperature_c",
        )  # fmt: skip
        yield ChartSection(title, plot.svg(key.replace("_", "-")))
