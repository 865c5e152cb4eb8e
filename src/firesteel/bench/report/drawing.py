"""Pieces of drawings: scales, marks, words, what the marks mean. SVG that stands in a page.

What is measured is filled, what is planned is a band, what others reported is hollow, so that the three are
told apart without colour. Colours are such as can be seen on white and on black; words and axes have the
colour of the page's own text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Literal

from firesteel.bench.report.format import safe

COLOURS = ("#2f7fc1", "#2e9e6b", "#c8553d", "#9c5fb5", "#a8790f", "#7f8c8d")
MOST_SERIES = len(COLOURS)
PLANNED, REPORTED, BAD = "#e0a030", "#b0569f", "#c0392b"
BAND = f'fill="{PLANNED}" fill-opacity="0.3"'
EXPECTED = f'stroke="{PLANNED}" stroke-width="2" stroke-dasharray="6 4"'
WIDTH, LEFT, RIGHT = 720, 76, 26
_MOST_TICKS = 10
LETTER = 6.7
"""Pixels of a letter at this size, on the wide side."""


@dataclass(frozen=True, slots=True)
class ChartAxis:
    words: str
    is_log: bool = False
    base: Literal[2, 10] = 10
    is_count: bool = False
    """Of whole things."""


# --- scales ---


@dataclass(frozen=True, slots=True)
class ChartScale:
    axis: ChartAxis
    low: float
    high: float
    start: float
    end: float
    """In pixels; the end may lie before the start."""

    def at(self, value: float) -> float:
        low, high, here = self.low, self.high, value
        if self.axis.is_log:
            low, high, here = log10(low), log10(high), log10(max(value, self.low / 10))
        share = (here - low) / (high - low)
        return self.start + (self.end - self.start) * max(-0.02, min(1.02, share))

    def ticks(self) -> list[float]:
        if not self.axis.is_log:
            every = _even(self.low, self.high)
            return [each for each in every if each == round(each)] if self.axis.is_count else every
        return _powers(self.low, self.high, self.axis.base)


def _powers(low: float, high: float, base: int) -> list[float]:
    """Those of the base; of ten, twice and five times them too, where there is room."""
    first, last = (floor(log10(each) / log10(base)) for each in (low, high))
    whole = [float(base) ** power for power in range(first, last + 1)]
    fine = whole if base == 2 else [factor * each for each in whole for factor in (1, 2, 5)]
    every = [
        [each for each in some if low <= each * 1.0001 and each <= high * 1.0001] for some in (fine, whole)
    ]
    chosen = every[0] if len(every[0]) <= _MOST_TICKS else every[1]
    return chosen[:: max(1, ceil(len(chosen) / _MOST_TICKS))]


def _even(low: float, high: float) -> list[float]:
    """Four to eight round values."""
    rough = (high - low) / 6
    power = 10.0 ** floor(log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    return [at * step for at in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]


def scale(
    axis: ChartAxis, values: Iterable[float], start: float, end: float, from_zero: bool = True
) -> ChartScale:
    every = [each for each in values if each > 0 or not axis.is_log]
    low, high = min(every), max(every)
    if axis.is_log:
        return ChartScale(axis, low / 1.25, high * 1.25, start, end)
    if from_zero:
        return ChartScale(axis, min(0.0, low), high * 1.08 or 1.0, start, end)
    room = (high - low) * 0.15 or abs(high) * 0.1 or 1.0
    return ChartScale(axis, low - room if low < 0 else max(0.0, low - room), high + room, start, end)


def short(value: float) -> str:
    if value and (abs(value) >= 1e7 or abs(value) < 0.001):
        return f"{value:.0e}"
    return f"{value:,.0f}" if abs(value) >= 10 else f"{value:.3g}"


# --- pieces ---


def text(x: float, y: float, words: str, anchor: str = "start", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{safe(words)}</text>'


SOFT = ' opacity="0.75"'


def svg(name: str, title: str, says: str, height: float, parts: Iterable[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'aria-labelledby="{name}-title {name}-says" font-family="system-ui, sans-serif" font-size="12" '
        'fill="currentColor">'
    )
    told = f'<title id="{name}-title">{safe(title)}</title><desc id="{name}-says">{safe(says, 1000)}</desc>'
    return "\n".join([head, told, *parts, "</svg>"])


def mark(at: int, x: float, y: float, colour: str) -> str:
    """A shape of its own for each series."""
    shapes = (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}"/>',
        f'<rect x="{x - 4.5:.1f}" y="{y - 4.5:.1f}" width="9" height="9" fill="{colour}"/>',
        f'<path d="M{x:.1f} {y - 6:.1f}l6 11h-12z" fill="{colour}"/>',
        f'<path d="M{x:.1f} {y - 6.5:.1f}l6.5 6.5l-6.5 6.5l-6.5 -6.5z" fill="{colour}"/>',
        f'<path d="M{x:.1f} {y + 6:.1f}l6 -11h-12z" fill="{colour}"/>',
        f'<path d="M{x - 5.5:.1f} {y - 2:.1f}h3.5v-3.5h4v3.5h3.5v4h-3.5v3.5h-4v-3.5h-3.5z" fill="{colour}"/>',
    )
    return shapes[at % len(shapes)]


def hollow(x: float, y: float) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="none" stroke="{REPORTED}" stroke-width="1.8"/>'


# --- what the marks mean ---

Key = tuple[Literal["mark", "band", "hollow", "line"], int, str]


def _key_width(key: Key) -> float:
    return 34 + LETTER * min(len(key[2]), 90)


def wrapped(keys: Sequence[Key]) -> list[list[Key]]:
    lines: list[list[Key]] = []
    for key in keys:
        if lines and sum(map(_key_width, lines[-1])) + _key_width(key) <= WIDTH - LEFT:
            lines[-1].append(key)
        else:
            lines.append([key])
    return lines


def legend(keys: Sequence[Key], top: float) -> Iterator[str]:
    for line, several in enumerate(wrapped(keys)):
        x, y = float(LEFT), top + 20 * line + 4
        for kind, at, words in several:
            yield _sample(kind, at, x + 8, y)
            yield text(x + 22, y + 4, words[:90])
            x += _key_width((kind, at, words))


def _sample(kind: str, at: int, x: float, y: float) -> str:
    colour = COLOURS[at % len(COLOURS)]
    if kind == "band":
        return (
            f'<rect x="{x - 8:.1f}" y="{y - 6:.1f}" width="16" height="12" {BAND}/>'
            f'<path d="M{x - 8:.1f} {y:.1f}h16" {EXPECTED}/>'
        )
    if kind == "line":
        return f'<path d="M{x - 8:.1f} {y:.1f}h16" stroke="{colour}" stroke-width="2"/>'
    return hollow(x, y) if kind == "hollow" else mark(at, x, y, colour)
