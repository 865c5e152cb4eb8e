"""Charts of what the sampler saw: clocks, power, heat, memory over the time of a run. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from firesteel.bench.report import format
from firesteel.bench.report.charts import Chart, ReportData, is_number
from firesteel.bench.report.drawing import ChartAxis
from firesteel.bench.report.plot import Dot, Plot, Series, draw_plot, thinned

_SEEN: Mapping[str, tuple[str, str, float]] = {
    "clock_mhz": ("Clock of the GPU", "MHz", 1),
    "power_w": ("Power of the GPU", "W", 1),
    "temperature_c": ("Heat of the GPU", "\u00b0C", 1),
    "use_percent": ("Use of the GPU", "%", 1),
    "memory_available_bytes": ("Memory available on the machine", "GiB", 2**30),
    "kv_usage": ("KV cache in use", "%", 0.01),
}


def over_time(shown: ReportData) -> tuple[Chart, ...]:
    """One for each thing that was seen; the table of least and most in the first."""
    title, seen = "What the machine did meanwhile", shown.run.beside
    rows = tuple(_seen_rows(seen))
    if not rows:
        return (Chart(title, why="nothing was seen of clocks, power, heat or memory"),)
    head = ("what", "least", "mean", "most")
    series = _time_series(seen.get("over_time"))
    if not series:
        why = "No drawing over time: only the least, the mean and the most of each were kept."
        return (Chart(title, head=head, rows=rows, why=why),)
    drawn = tuple(_time_chart(name, dots, at) for at, (name, dots) in enumerate(series.items()))
    return (Chart(title, head=head, rows=rows), *drawn)


def _seen_rows(seen: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, (words, unit, by) in _SEEN.items():
        match seen.get(name):
            case {
                "least": int() | float() as least,
                "mean": int() | float() as mean,
                "most": int() | float() as most,
            }:
                three = (each / by if is_number(each) else None for each in (least, mean, most))
                yield f"{words}, {unit}", *map(format.plain, three)


def _time_series(told: object) -> dict[str, tuple[Dot, ...]]:
    """`{"at_s": [...], "clock_mhz": [...], ...}`: lists of one length, None where nothing was seen."""
    if not isinstance(told, Mapping) or not isinstance(times := told.get("at_s"), list | tuple):
        return {}
    found = {}
    for name, (_, _, by) in _SEEN.items():
        values = told.get(name)
        pairs = zip(times, values, strict=False) if isinstance(values, list | tuple) else ()
        dots = [Dot(at, value / by) for at, value in pairs if is_number(at) and is_number(value)]
        if len(dots) > 1:
            found[name] = thinned(sorted(dots, key=lambda dot: dot.x))
    return found


def _time_chart(name: str, dots: tuple[Dot, ...], at: int) -> Chart:
    words, unit, _ = _SEEN[name]
    low, high = min(dot.y for dot in dots), max(dot.y for dot in dots)
    says = f"from {format.plain(low)} to {format.plain(high)} {unit} over {dots[-1].x - dots[0].x:.0f} s"
    plot = Plot(
        words, says, ChartAxis("s of the run"), ChartAxis(unit), (Series("", dots, has_marks=False),),
        height=190, is_tight=True, from_zero=name != "temperature_c",
    )  # fmt: skip
    return Chart(words, draw_plot(plot, f"time{at}"))
