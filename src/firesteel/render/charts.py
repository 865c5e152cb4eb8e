"""Pictures as SVG, in one file that needs nothing else: a stack against a limit, and rates against a bound.

Colours are told apart by lightness too, and every part carries its figure in words, so that nothing rests on
colour alone. Text in, SVG out; what the figures mean is the caller's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

_COLOURS = ("#1f4e79", "#2e9e6b", "#e0a030", "#9c5fb5", "#c8553d", "#7f8c8d", "#4aa8d8", "#b0b86a")
_RED = "#b00020"
_FONT = 'font-family="system-ui, sans-serif" font-size="13"'
_WIDTH, _LEFT, _RIGHT = 880, 170, 150
_ROW = 34


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure with its band."""

    name: str
    low: float
    expected: float
    high: float
    words: str
    """The figure as people read it."""


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    bars: tuple[Bar, ...]
    limit: float
    """A line across the bars: the room there is, what bandwidth allows."""
    limit_words: str
    is_stack: bool = False
    """Bars stand end to end, as parts of one whole."""


def draw_chart(title: str, panels: Sequence[Panel], foot: str) -> str:
    """One SVG, a panel under the other."""
    parts: list[str] = [f'<text x="16" y="28" {_FONT} font-weight="bold">{escape(title)}</text>']
    top = 52
    for panel in panels:
        parts += _panel(panel, top)
        top += 60 + _ROW * len(panel.bars)
    parts.append(f'<text x="16" y="{top + 8}" {_FONT} fill="#666">{escape(foot)}</text>')
    height = top + 28
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}">'
    )
    return "\n".join([head, '<rect width="100%" height="100%" fill="#fff"/>', *parts, "</svg>", ""])


def _panel(panel: Panel, top: int) -> Iterator[str]:
    whole = sum(bar.high for bar in panel.bars) if panel.is_stack else max(bar.high for bar in panel.bars)
    scale = (_WIDTH - _LEFT - _RIGHT) / max(whole, panel.limit, 1e-9)
    yield f'<text x="16" y="{top + 14}" {_FONT} fill="#333">{escape(panel.title)}</text>'
    at = 0.0
    for index, bar in enumerate(panel.bars):
        y = top + 26 + _ROW * index
        yield from _bar(bar, at if panel.is_stack else 0.0, y, scale, _COLOURS[index % len(_COLOURS)])
        at += bar.expected
    x = _LEFT + panel.limit * scale
    bottom = top + 26 + _ROW * len(panel.bars)
    yield f'<path d="M{x:.1f} {top + 20}V{bottom}" stroke="{_RED}" stroke-dasharray="5 3"/>'
    words = escape(panel.limit_words)
    yield f'<text x="{x:.1f}" y="{bottom + 14}" {_FONT} fill="{_RED}" text-anchor="middle">{words}</text>'


def _bar(bar: Bar, start: float, y: int, scale: float, colour: str) -> Iterator[str]:
    x, width = _LEFT + start * scale, max(bar.expected * scale, 1.0)
    low, high = x + bar.low * scale, x + bar.high * scale
    middle = y + 10
    yield f'<text x="{_LEFT - 10}" y="{y + 15}" {_FONT} text-anchor="end">{escape(bar.name)}</text>'
    yield f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="20" fill="{colour}"/>'
    if bar.high > bar.low:
        yield (
            f'<path d="M{low:.1f} {middle}H{high:.1f}M{low:.1f} {middle - 5}v10M{high:.1f} {middle - 5}v10" '
            'stroke="#111" fill="none"/>'
        )
    yield f'<text x="{max(high, x + width) + 8:.1f}" y="{y + 15}" {_FONT}>{escape(bar.words)}</text>'
