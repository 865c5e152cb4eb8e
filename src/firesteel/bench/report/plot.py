"""A drawing with two axes: series of dots, and ribbons of what was planned. It knows nothing of bench."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import Literal

from firesteel.bench.report.drawing import (
    BAND,
    COLOURS,
    EXPECTED,
    LEFT,
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

_HEIGHT = 340
_TOP, _BOTTOM = 18, 46


@dataclass(frozen=True, slots=True)
class Dot:
    x: float
    y: float
    low: float | None = None
    high: float | None = None
    label: str = ""


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    dots: tuple[Dot, ...]
    is_reported: bool = False
    has_marks: bool = True


@dataclass(frozen=True, slots=True)
class Ribbon:
    """What was planned: (x, low, expected, high) in order of x."""

    name: str
    rows: tuple[tuple[float, float, float, float], ...]


@dataclass(frozen=True, slots=True)
class Plot:
    title: str
    says: str
    """What it shows, for those who do not see it."""
    x: ChartAxis
    y: ChartAxis
    series: tuple[Series, ...]
    ribbons: tuple[Ribbon, ...] = ()
    height: int = _HEIGHT
    from_zero: bool = True
    is_tight: bool = False
    """From the first x to the last, as time goes."""


def draw_plot(plot: Plot, name: str) -> str:
    """`name`: of this drawing alone in its page."""
    floor_ = plot.height - _BOTTOM
    dots = [dot for series in plot.series for dot in series.dots]
    ribbon_rows = [row for ribbon in plot.ribbons for row in ribbon.rows]
    places = [*(dot.x for dot in dots), *(row[0] for row in ribbon_rows)]
    x = scale(plot.x, places, LEFT, WIDTH - RIGHT)
    if plot.is_tight and max(places) > min(places):
        x = ChartScale(plot.x, min(places), max(places), x.start, x.end)
    heights = [value for dot in dots for value in (dot.y, dot.low, dot.high) if value is not None]
    heights += [value for row in ribbon_rows for value in row[1:]]
    y = scale(plot.y, heights, floor_, _TOP, plot.from_zero)
    labels = _Labels(floor_)
    parts = [*_axes(x, y, floor_)]
    for ribbon in plot.ribbons:
        parts += _ribbon(ribbon, x, y)
    for at, series in enumerate(plot.series):
        parts += _series(at, series, x, y)
    for series in plot.series:
        labels.keep_clear([(x.at(dot.x), y.at(dot.y)) for dot in series.dots], not series.is_reported)
    for series in plot.series:
        parts += [text for dot in series.dots if (text := labels.beside(x.at(dot.x), y.at(dot.y), dot.label))]
    keys = list(_keys(plot))
    parts += legend(keys, plot.height)
    return svg(name, plot.title, plot.says, plot.height + 20 * len(wrapped(keys)), parts)


def _axes(x: ChartScale, y: ChartScale, floor_: float) -> Iterator[str]:
    for tick in y.ticks():
        at = y.at(tick)
        yield (
            f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="currentColor" stroke-opacity="0.15"/>'
            + text(LEFT - 8, at + 4, short(tick), "end", SOFT)
        )
    for tick in x.ticks():
        at = x.at(tick)
        yield (
            f'<path d="M{at:.1f} {floor_}v5" stroke="currentColor"/>'
            + text(at, floor_ + 18, short(tick), "middle", SOFT)
        )
    yield f'<path d="M{LEFT} {_TOP}V{floor_}H{WIDTH - RIGHT}" stroke="currentColor" fill="none"/>'
    yield text((LEFT + WIDTH - RIGHT) / 2, floor_ + 37, x.axis.words, "middle")
    middle = (_TOP + floor_) / 2
    yield text(14, middle, y.axis.words, "middle", f' transform="rotate(-90 14 {middle:.1f})"')


def _ribbon(ribbon: Ribbon, x: ChartScale, y: ChartScale) -> Iterator[str]:
    rows = [(x.at(at), y.at(low), y.at(mid), y.at(high)) for at, low, mid, high in ribbon.rows]
    if len(rows) == 1:  # a band at one place
        at = rows[0][0]
        rows = [(at - 9, *rows[0][1:]), (at + 9, *rows[0][1:])]
    upper = " ".join(f"{at:.1f},{high:.1f}" for at, _, _, high in rows)
    lower = " ".join(f"{at:.1f},{low:.1f}" for at, low, _, _ in reversed(rows))
    middle = " ".join(f"{at:.1f},{mid:.1f}" for at, _, mid, _ in rows)
    yield f'<polygon points="{upper} {lower}" {BAND}/>'
    yield f'<polyline points="{middle}" fill="none" {EXPECTED}/>'


def _series(at: int, series: Series, x: ChartScale, y: ChartScale) -> Iterator[str]:
    colour = COLOURS[at % len(COLOURS)]
    places = [(x.at(dot.x), y.at(dot.y)) for dot in series.dots]
    if series.is_reported:
        yield from (hollow(*place) for place in places)
        return
    if len(places) > 1:
        line = " ".join(f"{px:.1f},{py:.1f}" for px, py in places)
        yield f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
    for dot, (px, py) in zip(series.dots, places, strict=True):
        if dot.low is not None and dot.high is not None:
            yield _whisker(px, y.at(dot.low), y.at(dot.high))
        if series.has_marks:
            yield mark(at, px, py, colour)


def _whisker(x: float, low: float, high: float) -> str:
    return (
        f'<path d="M{x:.1f} {low:.1f}V{high:.1f}M{x - 4:.1f} {low:.1f}h8M{x - 4:.1f} {high:.1f}h8" '
        'stroke="currentColor" fill="none"/>'
    )


Box = tuple[float, float, float, float]


class _Labels:
    """Words beside dots, where they hit neither dots nor each other. One that finds no place is left out:
    the table under the drawing has it."""

    def __init__(self, floor_: float) -> None:
        self._floor = floor_
        self._taken: list[Box] = []

    def keep_clear(self, dots: Sequence[tuple[float, float]], is_joined: bool) -> None:
        self._taken += [(x - 6, y - 6, x + 6, y + 6) for x, y in dots]
        for (x, y), (to_x, to_y) in pairwise(dots) if is_joined else ():
            steps = ceil(max(abs(to_x - x), abs(to_y - y)) / 6)
            on = ((x + (to_x - x) * at / steps, y + (to_y - y) * at / steps) for at in range(1, steps))
            self._taken += [(px - 2, py - 2, px + 2, py + 2) for px, py in on]

    def beside(self, x: float, y: float, words: str) -> str | None:
        if not words:
            return None
        width = LETTER * len(words)
        for left, base in ((x + 9, y - 7), (x + 9, y + 17), (x - 9 - width, y - 7), (x - 9 - width, y + 17),
                           (x - width / 2, y - 13), (x - width / 2, y + 23)):  # fmt: skip
            box = (left, base - 11, left + width, base + 3)
            if self._is_free(box):
                self._taken.append(box)
                return text(left, base, words)
        return None

    def _is_free(self, box: Box) -> bool:
        is_inside = box[0] > LEFT and box[2] < WIDTH and box[1] > 0 and box[3] < self._floor
        return is_inside and not any(_meet(box, other) for other in self._taken)


def _meet(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _keys(plot: Plot) -> Iterator[Key]:
    for at, series in enumerate(plot.series):
        kind: Literal["mark", "hollow", "line"] = (
            "hollow" if series.is_reported else "mark" if series.has_marks else "line"
        )
        if series.name:
            yield kind, at, series.name
    yield from (("band", 0, name) for name in dict.fromkeys(each.name for each in plot.ribbons))


def thinned(dots: Sequence[Dot], most: int = 240) -> tuple[Dot, ...]:
    """Of each stretch its least and its most, so that no spike is lost."""
    if len(dots) <= most:
        return tuple(dots)
    size = ceil(2 * len(dots) / most)
    found: list[Dot] = []
    for at in range(0, len(dots), size):
        part = dots[at : at + size]
        ends = {min(part, key=lambda dot: dot.y), max(part, key=lambda dot: dot.y)}
        found += sorted(ends, key=lambda dot: dot.x)
    return tuple(found)
