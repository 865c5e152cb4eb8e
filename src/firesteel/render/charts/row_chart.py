"""A chart with a row for each thing and one axis under all rows: bars, bands, markers, histograms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import floor, log10

from firesteel.render.charts import svg
from firesteel.render.charts.scale import Axis, Scale, fit_scale, format_number
from firesteel.render.charts.svg import COLOURS, LETTER_WIDTH, RIGHT, WIDTH, LegendEntry
from firesteel.values import Value

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
