"""Figures and loads as text, the same in every table, chart and sentence of bench."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite

from firesteel.bench.values import MeasuredFigure, Point
from firesteel.planner import Band

_MAX_PLAIN = 1e9


def number(value: float | None, form: str = "") -> str:
    """As in the table of `firesteel bench`, or in the given format; a dash where it is unknown."""
    if value is None or not isfinite(value):
        return "-"
    if form:
        return f"{value:{form}}"
    if abs(value) >= _MAX_PLAIN:
        return f"{value:.2e}"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def figure(measured: MeasuredFigure | None) -> str:
    """`53.8 ±1.2%`; a single observation has no interval."""
    if measured is None:
        return "-"
    spread = f"±{measured.half_width:.1%}" if measured.n > 1 else "(once)"
    return f"{number(measured.value)} {spread}"


def band(planned: Band) -> str:
    return f"{number(planned.expected)} ({number(planned.low)} to {number(planned.high)})"


def users(point: Point) -> str:
    if point.rate_per_s is not None:
        return f"{point.rate_per_s:g} requests/s"
    return "1 user" if point.users == 1 else f"{point.users:,} users"


def tokens(point: Point) -> str:
    """Tokens of the prompt and of the answer."""
    shared = f" ({point.shared_tokens:,} shared)" if point.shared_tokens else ""
    turns = f", {point.turns} turns" if point.turns > 1 else ""
    return f"{point.depth:,} + {point.answer_tokens:,}{shared}{turns}"


def load(point: Point) -> str:
    return f"{point.text}, {users(point)}, {tokens(point)}"


def join_words(words: Iterable[str]) -> str:
    """`a, b and c`"""
    *first, last = [*words] or [""]
    return f"{', '.join(first)} and {last}" if first else last


def client_cost(client: Mapping[str, float]) -> str:
    """How late the client was, beside the machine, and what it used."""
    lag, machine, cpu = map(client.get, ("p99_lag_ms", "machine_p99_lag_ms", "cpu_share"))
    parts = [
        f"{lag:.2f} ms late under load (p99)" if lag is not None else "lateness not known",
        f"this machine {machine:.2f} ms" if machine is not None else "",
        f"{cpu:.1%} of a core" if cpu is not None else "",
    ]
    return ", ".join(filter(None, parts))
