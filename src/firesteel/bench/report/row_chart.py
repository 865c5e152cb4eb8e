"""A drawing with a line for each thing and one axis under all. It knows nothing of bench."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import floor, log10

from firesteel.bench.report.drawing import (
    BAD,
    BAND,
    COLOURS,
    EXPECTED,
    LETTER,
    RIGHT,
    SOFT,
    WIDTH,
    ChartAxis,
    ChartScale,
    Key,
    hollow,
    legend,
    mark,
    scale,
    short,
    svg,
    text,
    wrapped,
)

_ROW = 48


@dataclass(frozen=True, slots=True)
class ChartRow:
    """All of it is optional but its name and its figure in words."""

    name: str
    words: str
    bar: float | None = None
    dot: tuple[float, float, float] | None = None
    """(low, value, high), measured."""
    band: tuple[float, float, float] | None = None
    """(low, expected, high), planned."""
    hollow: tuple[float, ...] = ()
    bins: tuple[tuple[float, float, float], ...] = ()
    """(from, to, how high from 0 to 1)"""
    span: tuple[float, float, float] | None = None
    """Three ticks on a line: half, nine tenths, ninety-nine of a hundred."""

    def values(self) -> Iterator[float]:
        if self.bar is not None:
            yield self.bar
        for three in (self.dot, self.band, self.span):
            yield from three or ()
        yield from self.hollow
        yield from (edge for each in self.bins for edge in each[:2])


@dataclass(frozen=True, slots=True)
class RowChart:
    title: str
    says: str
    axis: ChartAxis
    rows: tuple[ChartRow, ...]
    corridor: tuple[float, float, str] | None = None
    line: tuple[float, str] | None = None
    keys: tuple[Key, ...] = ()
    is_bad: bool = False


def draw_rows(chart: RowChart, name: str) -> str:
    values = [value for row in chart.rows for value in row.values()]
    values += [*(chart.corridor[:2] if chart.corridor else ()), *(chart.line[:1] if chart.line else ())]
    x = scale(chart.axis, values, 20, WIDTH - RIGHT)
    top = 24.0 if chart.line or chart.corridor else 6.0
    floor_ = top + _ROW * len(chart.rows) + 4
    parts = [*_background(chart, x, top, floor_)]
    for at, row in enumerate(chart.rows):
        parts += _row(row, x, top + _ROW * at, BAD if chart.is_bad else COLOURS[0])
    parts += _under(x, floor_)
    parts += legend(chart.keys, floor_ + 52)
    return svg(name, chart.title, chart.says, floor_ + 46 + 20 * len(wrapped(chart.keys)), parts)


def _background(chart: RowChart, x: ChartScale, top: float, floor_: float) -> Iterator[str]:
    if chart.corridor:
        low, high, words = chart.corridor
        left, right = x.at(low), x.at(high)
        yield (
            f'<rect x="{left:.1f}" y="{top - 4:.1f}" width="{right - left:.1f}" '
            f'height="{floor_ - top + 4:.1f}" fill="{COLOURS[1]}" fill-opacity="0.16"/>'
        )
        yield text((left + right) / 2, 13, words, "middle", SOFT)
    if chart.line:
        at, words = x.at(chart.line[0]), chart.line[1]
        for row in range(len(chart.rows)):  # not through the words of each
            start = top + _ROW * row + 19
            yield f'<path d="M{at:.1f} {start:.1f}v25" stroke="currentColor" stroke-dasharray="5 3"/>'
        half = LETTER * len(words) / 2
        yield text(min(at, WIDTH - 4 - half), 13, words, "middle", SOFT)


def _row(row: ChartRow, x: ChartScale, top: float, colour: str) -> Iterator[str]:
    room = int((WIDTH - 46) / LETTER) - len(row.words) - 2
    name = row.name if len(row.name) <= room else f"{row.name[: max(8, room - 3)]}..."
    yield text(20, top + 14, name)
    yield text(WIDTH - RIGHT, top + 14, row.words, "end", SOFT)
    middle, start = top + 31, x.at(x.low)
    yield f'<path d="M{start:.1f} {top + 44:.1f}H{x.end:.1f}" stroke="currentColor" stroke-opacity="0.15"/>'
    if row.band:
        low, expected, high = map(x.at, row.band)
        width = max(2.0, high - low)
        yield f'<rect x="{low:.1f}" y="{top + 21:.1f}" width="{width:.1f}" height="20" {BAND}/>'
        yield f'<path d="M{expected:.1f} {top + 21:.1f}v20" {EXPECTED}/>'
    if row.bar is not None:
        width = max(1.0, x.at(row.bar) - start)
        yield f'<rect x="{start:.1f}" y="{top + 22:.1f}" width="{width:.1f}" height="18" fill="{colour}"/>'
    yield from _bins(row, x, top + 43, colour)
    if row.span:
        yield _span(row.span, x, middle)
    if row.dot:
        low, value, high = map(x.at, row.dot)
        yield (
            f'<path d="M{low:.1f} {middle:.1f}H{high:.1f}M{low:.1f} {middle - 5:.1f}v10M{high:.1f} '
            f'{middle - 5:.1f}v10" stroke="currentColor" fill="none"/>{mark(0, value, middle, colour)}'
        )
    yield from (hollow(x.at(value), middle) for value in row.hollow)


def _bins(row: ChartRow, x: ChartScale, base: float, colour: str) -> Iterator[str]:
    for low, high, share in row.bins:
        left, tall = x.at(low), 24 * share
        width = max(1.0, x.at(high) - left)
        yield (
            f'<rect x="{left:.1f}" y="{base - tall:.1f}" width="{width:.1f}" height="{tall:.1f}" '
            f'fill="{colour}" fill-opacity="0.6"/>'
        )


def _span(span: tuple[float, float, float], x: ChartScale, middle: float) -> str:
    ends = [x.at(each) for each in span]
    line = f"M{ends[0]:.1f} {middle:.1f}H{ends[-1]:.1f}"
    ticks = "".join(f"M{at:.1f} {middle - 9:.1f}v20" for at in ends)
    return f'<path d="{line}{ticks}" stroke="currentColor" stroke-width="1.4" fill="none"/>'


def _under(x: ChartScale, floor_: float) -> Iterator[str]:
    yield f'<path d="M20 {floor_:.1f}H{x.end:.1f}" stroke="currentColor"/>'
    for tick in x.ticks():
        at = x.at(tick)
        yield (
            f'<path d="M{at:.1f} {floor_:.1f}v5" stroke="currentColor"/>'
            + text(at, floor_ + 17, short(tick), "middle", SOFT)
        )
    yield text((20 + x.end) / 2, floor_ + 34, x.axis.words, "middle")


def binned(
    values: Sequence[float], low: float, high: float, bins: int = 48
) -> tuple[tuple[float, float, float], ...]:
    """How many lie where, on a logarithmic scale; the fullest bin is 1."""
    if not values or not 0 < low < high:
        return ()
    step = (log10(high) - log10(low)) / bins
    counts = [0] * bins
    for value in values:
        at = floor((log10(max(value, low)) - log10(low)) / step)
        counts[min(bins - 1, max(0, at))] += 1
    edges = [10 ** (log10(low) + step * at) for at in range(bins + 1)]
    most = max(counts)
    return tuple((a, b, n / most) for (a, b), n in zip(pairwise(edges), counts, strict=True) if n)
