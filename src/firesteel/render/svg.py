"""Parts of a drawing: escaped text, markers, the legend, and the SVG document around them.

A measured value is a filled marker, a planned value a band, and a value that others reported a hollow marker,
so that the three can be told apart without colour. The colours are visible on white and on black; text and
axes take the colour of the page's own text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Literal

COLOURS = ("#2f7fc1", "#2e9e6b", "#c8553d", "#9c5fb5", "#a8790f", "#7f8c8d")
BAD_COLOUR = "#c0392b"
_PLANNED_COLOUR, _REPORTED_COLOUR = "#e0a030", "#b0569f"
BAND_STYLE = f'fill="{_PLANNED_COLOUR}" fill-opacity="0.3"'
EXPECTED_STYLE = f'stroke="{_PLANNED_COLOUR}" stroke-width="2" stroke-dasharray="6 4"'
FAINT = ' opacity="0.75"'
WIDTH, LEFT, RIGHT = 720, 76, 26
LETTER_WIDTH = 6.7
"""Pixels of a letter at this font size, rounded up: the width of text is estimated, not measured."""
_MAX_TEXT = 300
_MAX_LEGEND_LABEL = 90
_INVISIBLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufffe\uffff]"
)
"""Control characters, lone surrogates, and characters that reverse the direction of the text after them."""

LegendEntry = tuple[Literal["marker", "band", "hollow", "line"], int, str]
"""How it is drawn, the index of its series, its label."""


def escape_text(text: object, limit: int = _MAX_TEXT) -> str:
    """Text for an element or a quoted attribute, of HTML and of XML.

    Model names, server errors and imported files are other people's text: it is cut to `limit` characters
    and cleared of characters that cannot be seen.
    """
    cut = str(text)
    if len(cut) > limit:
        cut = f"{cut[:limit]} ... ({len(cut):,} characters)"
    return escape(_INVISIBLE.sub(lambda match: " " if match[0] in "\t\n\r" else "\ufffd", cut))


def text(x: float, y: float, label: str, anchor: str = "start", attributes: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{attributes}>{escape_text(label)}</text>'


def rectangle(x: float, y: float, width: float, height: float, style: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" {style}/>'


def document(name: str, title: str, description: str, height: float, parts: Iterable[str]) -> str:
    """A drawing of full width. `name` is unique in its page; screen readers read title and description."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
            f'aria-labelledby="{name}-title {name}-description" font-family="system-ui, sans-serif" '
            'font-size="12" fill="currentColor">',
            f'<title id="{name}-title">{escape_text(title)}</title>'
            f'<desc id="{name}-description">{escape_text(description, 1000)}</desc>',
            *parts,
            "</svg>",
        ]
    )


def marker(index: int, x: float, y: float, colour: str) -> str:
    """Each series has a shape of its own."""
    shapes = (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}"/>',
        f'<rect x="{x - 4.5:.1f}" y="{y - 4.5:.1f}" width="9" height="9" fill="{colour}"/>',
        f'<path d="M{x:.1f} {y - 6:.1f}l6 11h-12z" fill="{colour}"/>',
        f'<path d="M{x:.1f} {y - 6.5:.1f}l6.5 6.5l-6.5 6.5l-6.5 -6.5z" fill="{colour}"/>',
        f'<path d="M{x:.1f} {y + 6:.1f}l6 -11h-12z" fill="{colour}"/>',
        f'<path d="M{x - 5.5:.1f} {y - 2:.1f}h3.5v-3.5h4v3.5h3.5v4h-3.5v3.5h-4v-3.5h-3.5z" fill="{colour}"/>',
    )
    return shapes[index % len(shapes)]


def hollow_marker(x: float, y: float) -> str:
    style = f'fill="none" stroke="{_REPORTED_COLOUR}" stroke-width="1.8"'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" {style}/>'


def legend(entries: Sequence[LegendEntry], top: float) -> tuple[list[str], float]:
    """The entries on as many lines as they need, and the height of those lines."""
    parts: list[str] = []
    x, line = float(LEFT), 0
    for kind, index, label in entries:
        width = 34 + LETTER_WIDTH * min(len(label), _MAX_LEGEND_LABEL)
        if x > LEFT and x + width > WIDTH:
            x, line = float(LEFT), line + 1
        y = top + 20 * line + 4
        parts += [_legend_symbol(kind, index, x + 8, y), text(x + 22, y + 4, label[:_MAX_LEGEND_LABEL])]
        x += width
    return parts, 20 * (line + 1) if entries else 0


def _legend_symbol(kind: str, index: int, x: float, y: float) -> str:
    colour = COLOURS[index % len(COLOURS)]
    if kind == "band":
        line = f'<path d="M{x - 8:.1f} {y:.1f}h16" {EXPECTED_STYLE}/>'
        return rectangle(x - 8, y - 6, 16, 12, BAND_STYLE) + line
    if kind == "line":
        return f'<path d="M{x - 8:.1f} {y:.1f}h16" stroke="{colour}" stroke-width="2"/>'
    return hollow_marker(x, y) if kind == "hollow" else marker(index, x, y, colour)
