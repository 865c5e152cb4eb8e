"""Figures and points in words, and words made safe for a page.

What a model is called, what a server said when it failed, what a file of another tool holds: all of it is
somebody else's text. On a page it is cut, rid of what cannot be seen, and escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from math import isfinite

from firesteel.bench.values import MeasuredFigure, Point
from firesteel.planner import Band

_CUT = 300
_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufffe\uffff]"
)
"""Control characters, lone surrogates, and marks that turn the order of what follows round."""
_MANY = 1e9


def safe(text: object, most: int = _CUT) -> str:
    """For an element or an attribute in quotes, of HTML as of XML."""
    words = str(text)
    words = words if len(words) <= most else f"{words[:most]} ... ({len(words):,} characters)"
    return escape(_UNSEEN.sub(_shown, words))


def _shown(found: re.Match[str]) -> str:
    return " " if found[0] in "\t\n\r" else "\ufffd"


def plain(value: float | None) -> str:
    """As the table of `firesteel bench` has it."""
    if value is None or not isfinite(value):
        return "-"
    if abs(value) >= _MANY:
        return f"{value:.2e}"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def figure(found: MeasuredFigure | None) -> str:
    """`53.8 ±1.2%`; of one observation the interval says nothing."""
    if found is None:
        return "-"
    return f"{plain(found.value)} ±{found.half_width:.1%}" if found.n > 1 else f"{plain(found.value)} (once)"


def interval(found: MeasuredFigure | None) -> str:
    """`53.8 (53.2 to 54.4)`"""
    if found is None or found.n < 2:
        return figure(found)
    return f"{plain(found.value)} ({plain(found.low)} to {plain(found.high)})"


def band(planned: Band) -> str:
    return f"{plain(planned.expected)} ({plain(planned.low)} to {plain(planned.high)})"


def users(point: Point) -> str:
    if point.rate_per_s is not None:
        return f"{point.rate_per_s:g} requests/s"
    return "1 user" if point.users == 1 else f"{point.users:,} users"


def tokens(point: Point) -> str:
    """Of the prompt and of the answer."""
    shared = f" ({point.shared_tokens:,} shared)" if point.shared_tokens else ""
    turns = f", {point.turns} turns" if point.turns > 1 else ""
    return f"{point.depth:,} + {point.answer_tokens:,}{shared}{turns}"


def load(point: Point) -> str:
    """A point in a few words."""
    return f"{point.text}, {users(point)}, {tokens(point)}"


def join_words(words: Iterable[str]) -> str:
    """`a, b and c`"""
    every = list(words)
    return " and ".join(part for part in (", ".join(every[:-1]), *every[-1:]) if part)
