"""A chart with two axes: series of points joined by lines, bands of planned values, and reported points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import ceil
from typing import Literal

from firesteel.render.charts import svg
from firesteel.render.charts.scale import Axis, Scale, fit_scale, format_number
from firesteel.render.charts.svg import COLOURS, LEFT, LETTER_WIDTH, RIGHT, WIDTH
from firesteel.values import Value

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
