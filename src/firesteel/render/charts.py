"""Charts as SVG text: lines over two axes (`LinePlot`), and rows over one axis (`RowChart`).

A line plot has series of points joined by lines, bands of planned values, and reported points. A row chart
has a row for each thing and one axis under all rows: bars, bands, markers, histograms. Both also give their
figures as a table, for readers who do not see the drawing. Pure: the same values give the same text. It knows
nothing of plans and runs, and does not choose what is worth a chart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from math import ceil, floor, log10
from typing import Literal

from firesteel.render import svg
from firesteel.render.svg import COLOURS, LEFT, LETTER_WIDTH, RIGHT, WIDTH, LegendEntry
from firesteel.values import Value

_MAX_TICKS = 10


class Axis(Value):
    label: str
    is_log: bool = False
    base: Literal[2, 10] = 10
    is_count: bool = False
    """Only whole numbers get a tick."""

    @property
    def title(self) -> str:
        return f"{self.label} (log scale)" if self.is_log else self.label


class Scale(Value):
    """From a value to its pixel, and which values get a tick."""

    axis: Axis
    low: float
    high: float
    start: float
    end: float
    """In pixels. It is less than `start` on a vertical axis, since y grows downwards."""

    def pixel(self, value: float) -> float:
        low, high = self.low, self.high
        if self.axis.is_log:
            low, high, value = log10(low), log10(high), log10(max(value, low / 10))
        share = (value - low) / (high - low)
        return self.start + (self.end - self.start) * max(-0.02, min(1.02, share))

    def ticks(self) -> list[float]:
        if self.axis.is_log:
            return _log_ticks(self.low, self.high, self.axis.base)
        step_at_least = (self.high - self.low) / 6
        power = 10.0 ** floor(log10(step_at_least))
        step = next(step for f in (1, 2, 2.5, 5, 10) if (step := f * power) >= step_at_least * 0.999)
        first, last = ceil(self.low / step - 1e-9), floor(self.high / step + 1e-9)
        ticks = [index * step for index in range(first, last + 1)]
        return [tick for tick in ticks if tick == round(tick)] if self.axis.is_count else ticks


def _log_ticks(low: float, high: float, base: int) -> list[float]:
    """Powers of the base; of ten also their double and their fivefold, where these are not too many."""
    exponents = range(floor(log10(low) / log10(base)), ceil(log10(high) / log10(base)) + 1)
    powers = [float(base) ** exponent for exponent in exponents]
    fine = powers if base == 2 else [factor * power for power in powers for factor in (1, 2, 5)]
    ticks: list[float] = []
    for candidates in (fine, powers):
        ticks = [tick for tick in candidates if low <= tick * 1.0001 and tick <= high * 1.0001]
        if len(ticks) <= _MAX_TICKS:
            break
    return ticks[:: max(1, ceil(len(ticks) / _MAX_TICKS))]


def fit_scale(axis: Axis, values: Iterable[float], start: float, end: float, from_zero: bool = True) -> Scale:
    """A scale that shows all values, with a margin."""
    shown = [value for value in values if value > 0 or not axis.is_log]
    low, high = min(shown), max(shown)
    if axis.is_log:
        return Scale(axis, low / 1.25, high * 1.25, start, end)
    if from_zero:
        return Scale(axis, min(0.0, low), high * 1.08 or 1.0, start, end)
    margin = (high - low) * 0.15 or abs(high) * 0.1 or 1.0
    return Scale(axis, low - margin if low < 0 else max(0.0, low - margin), high + margin, start, end)


def format_number(value: float) -> str:
    """At least three digits, as on an axis and in the table of a chart."""
    if value and (abs(value) >= 1e9 or abs(value) < 0.001):
        return f"{value:.0e}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


_TOP, _BOTTOM = 18, 46
_MAX_SERIES = len(COLOURS)
_Box = tuple[float, float, float, float]


class DataPoint(Value):
    x: float
    y: float
    interval: tuple[float, float] | None = None
    label: str = ""
    source: str = ""
    """Only in the table."""


class Series(Value):
    name: str
    points: tuple[DataPoint, ...]
    """Sorted by x where they are joined."""
    kind: Literal["marker", "line", "band", "hollow"] = "marker"
    """Measured points with or without markers, a planned band, or points that others reported."""


class LinePlot(Value):
    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    """Of measured series the first six are drawn; the table has all."""
    height: int = 340
    from_zero: bool = True
    is_tight: bool = False
    """The x axis ends at the first and the last point, without a margin."""

    @property
    def _drawn(self) -> list[Series]:
        """Measured series first, since their index chooses colour and marker."""
        others = [series for series in self.series if series.kind in ("band", "hollow")]
        return [*(series for series in self.series if series not in others)][:_MAX_SERIES] + others

    @property
    def undrawn(self) -> int:
        return len(self.series) - len(self._drawn)

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """The header, and a row for each point."""
        rows: list[tuple[str, ...]] = []
        for series in self.series:
            for point in series.points:
                name = ", ".join(filter(None, (series.name, point.label, point.source)))
                rows.append((name, format_number(point.x), _with_interval(point.y, point.interval)))
        return ("series", self.x.label, self.y.label), rows

    def svg(self, name: str) -> str:
        """`name`: an id that no other drawing of the page has."""
        drawn = self._drawn
        bottom = self.height - _BOTTOM
        x, y = self._scales(drawn, bottom)
        parts = [*_axes(x, y, bottom)]
        # Bands come first: they lie behind everything else.
        for index, series in sorted(enumerate(drawn), key=lambda pair: pair[1].kind != "band"):
            parts += _draw_series(index, series, x, y)
        parts += _labels(drawn, x, y, bottom)
        entries = {
            series.name: (series.kind, n, series.name) for n, series in enumerate(drawn) if series.name
        }
        legend, legend_height = svg.legend([*entries.values()], self.height)
        ends = (
            f"{series.name or self.title}: {format_number(first.y)} at {format_number(first.x)}, "
            f"{format_number(last.y)} at {format_number(last.x)}"
            for series in drawn
            for first, last in [(series.points[0], series.points[-1])]
        )
        description = f"{self.y.label} against {self.x.label}. {'; '.join(ends)}"
        return svg.document(name, self.title, description, self.height + legend_height, [*parts, *legend])

    def _scales(self, drawn: Sequence[Series], bottom: float) -> tuple[Scale, Scale]:
        points = [point for series in drawn for point in series.points]
        xs = [point.x for point in points]
        ys = [value for point in points for value in (point.y, *(point.interval or ()))]
        x = fit_scale(self.x, xs, LEFT, WIDTH - RIGHT)
        if self.is_tight and max(xs) > min(xs):
            x = Scale(self.x, min(xs), max(xs), x.start, x.end)
        return x, fit_scale(self.y, ys, bottom, _TOP, self.from_zero)


def _with_interval(value: float, interval: tuple[float, float] | None) -> str:
    return format_number(value) + (" ({} to {})".format(*map(format_number, interval)) if interval else "")


def _axes(x: Scale, y: Scale, bottom: float) -> Iterator[str]:
    for tick in y.ticks():
        at = y.pixel(tick)
        yield f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="currentColor" stroke-opacity="0.15"/>'
        yield svg.text(LEFT - 8, at + 4, format_number(tick), "end", svg.FAINT)
    for tick in x.ticks():
        at = x.pixel(tick)
        yield f'<path d="M{at:.1f} {bottom}v5" stroke="currentColor"/>'
        yield svg.text(at, bottom + 18, format_number(tick), "middle", svg.FAINT)
    yield f'<path d="M{LEFT} {_TOP}V{bottom}H{WIDTH - RIGHT}" stroke="currentColor" fill="none"/>'
    yield svg.text((LEFT + WIDTH - RIGHT) / 2, bottom + 37, x.axis.title, "middle")
    middle = (_TOP + bottom) / 2
    yield svg.text(14, middle, y.axis.title, "middle", f' transform="rotate(-90 14 {middle:.1f})"')


def _draw_band(points: Sequence[DataPoint], x: Scale, y: Scale) -> Iterator[str]:
    rows = [(x.pixel(p.x), y.pixel(p.y), *map(y.pixel, p.interval or (p.y, p.y))) for p in points]
    if len(rows) == 1:  # a single value has no width
        rows = [(rows[0][0] - 9, *rows[0][1:]), (rows[0][0] + 9, *rows[0][1:])]
    upper = " ".join(f"{row[0]:.1f},{row[3]:.1f}" for row in rows)
    lower = " ".join(f"{row[0]:.1f},{row[2]:.1f}" for row in reversed(rows))
    middle = " ".join(f"{row[0]:.1f},{row[1]:.1f}" for row in rows)
    yield f'<polygon points="{upper} {lower}" {svg.BAND_STYLE}/>'
    yield f'<polyline points="{middle}" fill="none" {svg.EXPECTED_STYLE}/>'


def _draw_series(index: int, series: Series, x: Scale, y: Scale) -> Iterator[str]:
    if series.kind == "band":
        yield from _draw_band(series.points, x, y)
        return
    colour = COLOURS[index % len(COLOURS)]
    pixels = [(x.pixel(point.x), y.pixel(point.y)) for point in series.points]
    if series.kind == "hollow":
        yield from (svg.hollow_marker(*pixel) for pixel in pixels)
        return
    if len(pixels) > 1:
        line = " ".join(f"{px:.1f},{py:.1f}" for px, py in pixels)
        yield f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
    for point, (px, py) in zip(series.points, pixels, strict=True):
        if point.interval:
            low, high = map(y.pixel, point.interval)
            caps = f"M{px - 4:.1f} {low:.1f}h8M{px - 4:.1f} {high:.1f}h8"
            yield f'<path d="M{px:.1f} {low:.1f}V{high:.1f}{caps}" stroke="currentColor" fill="none"/>'
        if series.kind == "marker":
            yield svg.marker(index, px, py, colour)


def _labels(drawn: Sequence[Series], x: Scale, y: Scale, bottom: float) -> Iterator[str]:
    """Labels beside their points, clear of markers, lines and each other. A label that finds no free place
    is left out, since the table has it."""
    taken: list[_Box] = []
    labelled = []
    for series in (series for series in drawn if series.kind != "band"):
        pixels = [(x.pixel(point.x), y.pixel(point.y)) for point in series.points]
        labelled += [(px, py, p.label) for p, (px, py) in zip(series.points, pixels, strict=True) if p.label]
        taken += [(px - 6, py - 6, px + 6, py + 6) for px, py in pixels]
        for (x1, y1), (x2, y2) in pairwise(pixels) if series.kind != "hollow" else ():
            steps = ceil(max(abs(x2 - x1), abs(y2 - y1)) / 6)
            on_line = [(x1 + (x2 - x1) * n / steps, y1 + (y2 - y1) * n / steps) for n in range(1, steps)]
            taken += [(px - 2, py - 2, px + 2, py + 2) for px, py in on_line]
    for px, py, label in labelled:
        width = LETTER_WIDTH * len(label)
        beside = ((left, base) for left in (px + 9, px - 9 - width) for base in (py - 7, py + 17))
        centre = px - width / 2
        for left, base in (*beside, (centre, py - 13), (centre, py + 23)):
            box = (left, base - 11, left + width, base + 3)
            is_inside = left > LEFT and box[2] < WIDTH and box[1] > 0 and box[3] < bottom
            if is_inside and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                yield svg.text(left, base, label)
                break


def _overlap(a: _Box, b: _Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def downsample(points: Sequence[DataPoint], limit: int = 240) -> tuple[DataPoint, ...]:
    """Keep the lowest and the highest point of each stretch, so that no spike is lost."""
    if len(points) <= limit:
        return tuple(points)
    size = ceil(2 * len(points) / limit)
    sampled: list[DataPoint] = []
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        extremes = {min(stretch, key=lambda point: point.y), max(stretch, key=lambda point: point.y)}
        sampled += sorted(extremes, key=lambda point: point.x)
    return tuple(sampled)


_LEFT, _ROW_HEIGHT = 20, 48
_MAX_ROWS = 12


class Row(Value):
    """A name and a label with the figure as text; everything else is optional."""

    name: str
    label: str
    bar: tuple[float, float] | None = None
    """From, to."""
    whisker: tuple[float, float] | None = None
    """Low, high."""
    marker: float | None = None
    band: tuple[float, float, float] | None = None
    """Low, expected, high of what was planned."""
    reported: tuple[float, ...] = ()
    bins: tuple[tuple[float, float, float], ...] = ()
    """From, to, height between 0 and 1."""
    percentiles: tuple[float, ...] = ()
    """Ticks on a line."""

    def values(self) -> Iterator[float]:
        for values in (self.bar, self.whisker, self.band, self.reported, self.percentiles):
            yield from values or ()
        if self.marker is not None:
            yield self.marker
        yield from (edge for first, last, _ in self.bins for edge in (first, last))


class RowChart(Value):
    title: str
    axis: Axis
    rows: tuple[Row, ...]
    """The first twelve are drawn, all of them are in the table."""
    usual: tuple[float, float, str] | None = None
    """A shaded range behind the rows, with its label."""
    limit: tuple[float, str] | None = None
    """A line across the rows, with its label."""
    legend: tuple[LegendEntry, ...] = ()
    colours: tuple[str, ...] = COLOURS[:1]
    """Of the rows, in turn."""

    @property
    def undrawn(self) -> int:
        return max(0, len(self.rows) - _MAX_ROWS)

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        return ("", self.axis.label), [(row.name, row.label) for row in self.rows]

    def svg(self, name: str) -> str:
        """`name`: an id that no other drawing of the page has."""
        parts, height = self.draw()
        description = "; ".join(f"{row.name}: {row.label}" for row in self.rows)
        return svg.document(name, self.title, description, height, parts)

    def draw(self) -> tuple[list[str], float]:
        """The elements, and the height that they take."""
        rows = self.rows[:_MAX_ROWS]
        values = [value for row in rows for value in row.values()]
        values += [*(self.usual[:2] if self.usual else ()), *(self.limit[:1] if self.limit else ())]
        x = fit_scale(self.axis, values, _LEFT, WIDTH - RIGHT)
        top = 24.0 if self.limit or self.usual else 6.0
        bottom = top + _ROW_HEIGHT * len(rows) + 4
        parts = [*self._background(x, top, bottom)]
        for index, row in enumerate(rows):
            parts += _draw_row(row, x, top + _ROW_HEIGHT * index, self.colours[index % len(self.colours)])
        parts.append(f'<path d="M{_LEFT} {bottom:.1f}H{x.end:.1f}" stroke="currentColor"/>')
        for tick in x.ticks():
            at = x.pixel(tick)
            parts.append(f'<path d="M{at:.1f} {bottom:.1f}v5" stroke="currentColor"/>')
            parts.append(svg.text(at, bottom + 17, format_number(tick), "middle", svg.FAINT))
        parts.append(svg.text((_LEFT + x.end) / 2, bottom + 34, self.axis.title, "middle"))
        legend, legend_height = svg.legend(self.legend, bottom + 52)
        return [*parts, *legend], bottom + 46 + legend_height

    def _background(self, x: Scale, top: float, bottom: float) -> Iterator[str]:
        if self.usual:
            low, high, label = self.usual
            left, right = x.pixel(low), x.pixel(high)
            style = f'fill="{COLOURS[1]}" fill-opacity="0.16"'
            yield svg.rectangle(left, top - 4, right - left, bottom - top + 4, style)
            yield svg.text((left + right) / 2, 13, label, "middle", svg.FAINT)
        if self.limit:
            at, label = x.pixel(self.limit[0]), self.limit[1]
            for index in range(len(self.rows[:_MAX_ROWS])):  # interrupted, so that it crosses no text
                start = top + _ROW_HEIGHT * index + 19
                yield f'<path d="M{at:.1f} {start:.1f}v25" stroke="currentColor" stroke-dasharray="5 3"/>'
            half = LETTER_WIDTH * len(label) / 2
            yield svg.text(min(at, WIDTH - 4 - half), 13, label, "middle", svg.FAINT)


def _draw_row(row: Row, x: Scale, top: float, colour: str) -> Iterator[str]:
    letters = int((WIDTH - 46) / LETTER_WIDTH) - len(row.label) - 2
    name = row.name if len(row.name) <= letters else f"{row.name[: max(8, letters - 3)]}..."
    yield svg.text(_LEFT, top + 14, name)
    yield svg.text(WIDTH - RIGHT, top + 14, row.label, "end", svg.FAINT)
    middle, start = top + 31, x.pixel(x.low)
    yield f'<path d="M{start:.1f} {top + 44:.1f}H{x.end:.1f}" stroke="currentColor" stroke-opacity="0.15"/>'
    if row.band:
        low, expected, high = map(x.pixel, row.band)
        yield svg.rectangle(low, top + 21, max(2.0, high - low), 20, svg.BAND_STYLE)
        yield f'<path d="M{expected:.1f} {top + 21:.1f}v20" {svg.EXPECTED_STYLE}/>'
    if row.bar:
        left, right = map(x.pixel, row.bar)
        yield svg.rectangle(left, top + 22, max(1.0, right - left), 18, f'fill="{colour}"')
    for first, last, height in row.bins:
        left, right = x.pixel(first), x.pixel(last)
        style = f'fill="{colour}" fill-opacity="0.6"'
        yield svg.rectangle(left, top + 43 - 24 * height, max(1.0, right - left), 24 * height, style)
    if row.percentiles:
        yield _ticks_on_line(row.percentiles, x, middle, 9)
    if row.whisker:
        yield _ticks_on_line(row.whisker, x, middle, 5)
    if row.marker is not None:
        yield svg.marker(0, x.pixel(row.marker), middle, colour)
    yield from (svg.hollow_marker(x.pixel(value), middle) for value in row.reported)


def _ticks_on_line(values: Sequence[float], x: Scale, middle: float, half_height: int) -> str:
    pixels = [x.pixel(value) for value in values]
    line = f"M{pixels[0]:.1f} {middle:.1f}H{pixels[-1]:.1f}"
    ticks = "".join(f"M{at:.1f} {middle - half_height:.1f}v{2 * half_height}" for at in pixels)
    return f'<path d="{line}{ticks}" stroke="currentColor" fill="none"/>'


def draw_panels(title: str, charts: Sequence[RowChart], footnote: str) -> str:
    """Several charts under each other as an SVG file of its own, on white."""
    parts = [
        '<rect width="100%" height="100%" fill="#fff"/>',
        svg.text(16, 28, title, attributes=' font-weight="bold"'),
    ]
    top = 56.0
    for chart in charts:
        drawn, height = chart.draw()
        parts.append(svg.text(16, top, chart.title))
        parts += [f'<g transform="translate(0 {top + 12:.1f})">', *drawn, "</g>"]
        top += height + 36
    parts.append(svg.text(16, top, footnote, attributes=svg.FAINT))
    description = "; ".join(f"{row.name}: {row.label}" for chart in charts for row in chart.rows)
    return svg.document("chart", title, description, top + 16, parts) + "\n"


def histogram(
    values: Sequence[float], low: float, high: float, bins: int = 48
) -> tuple[tuple[float, float, float], ...]:
    """How many values lie where on a logarithmic scale, as (from, to, height); the fullest bin is 1 high."""
    if not values or not 0 < low < high:
        return ()
    step = (log10(high) - log10(low)) / bins
    counts = [0] * bins
    for value in values:
        index = floor((log10(max(value, low)) - log10(low)) / step)
        counts[min(bins - 1, max(0, index))] += 1
    edges = [10 ** (log10(low) + step * index) for index in range(bins + 1)]
    fullest = max(counts)
    return tuple((a, b, n / fullest) for (a, b), n in zip(pairwise(edges), counts, strict=True) if n)
