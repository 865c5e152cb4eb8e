"""Figures and loads as text, the same in every table, chart and sentence of bench. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite

from firesteel.bench.measurements import FoundLoad, MeasuredFigure, Point
from firesteel.units import Band

_MAX_PLAIN = 1e9
"""A larger figure is shown as a power of ten, since it would not fit into a column."""
_TARGETS = {"ttft_ms": "the first token within", "inter_token_ms": "a token every"}
"""How a limit of this measure begins in a sentence."""


def number(value: float | None, form: str = "") -> str:
    """A figure as the table of `firesteel bench` shows it, or in the given format; a dash if unknown."""
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
    """`53.8 (48.1 to 59.0)`"""
    return f"{number(planned.expected)} ({number(planned.low)} to {number(planned.high)})"


def load(point: Point) -> str:
    """`prose, 4 users, 2,048 + 256`: kind of text, users, tokens of the prompt and of the answer."""
    return f"{point.text_label}, {users(point)}, {tokens(point)}"


def users(point: Point) -> str:
    """`4 users`, or the rate at which requests arrive."""
    if point.rate_per_s is not None:
        return f"{point.rate_per_s:g} requests/s"
    return "1 user" if point.users == 1 else f"{point.users:,} users"


def tokens(point: Point) -> str:
    """`2,048 + 256`: tokens of the prompt and of the answer."""
    shared = f" ({point.shared_tokens:,} shared)" if point.shared_tokens else ""
    turns = f", {point.turns} turns" if point.turns > 1 else ""
    return f"{point.depth:,} + {point.answer_tokens:,}{shared}{turns}"


def target(limits: Mapping[str, float]) -> str:
    """`the first token within 2,000 ms and a token every 50 ms`"""
    return join_words(f"{_TARGETS.get(name, name)} {limit:,g} ms" for name, limit in limits.items())


def found_text(found: FoundLoad, limits: Mapping[str, float]) -> str:
    """What a search for the highest load found, and how sure it is."""
    goal = f"{target(limits)}, for nine in ten requests"
    only_one = found.kind == "users" and found.holds == 1
    if found.holds is not None:
        load = "one user holds" if only_one else f"up to {found.holds:g} {found.kind} hold"
        holds = f"{load} {goal}"
    elif found.misses is not None or found.unclear:
        holds = f"no number of {found.kind} that was tried certainly holds {goal}"
    elif found.is_final:
        holds = f"{found.kind} were not looked for, since not even one user certainly holds {goal}"
    else:
        holds = f"no time was left to look for {found.kind}"
    unclear = join_words(f"{load:g}" for load in found.unclear)
    parts = [
        holds,
        f"cannot tell for {unclear}" if found.unclear else "",
        f"{found.misses:g} miss it" if found.misses is not None else "",
    ]
    why = f" (at {found.why})" if found.why else ""
    late = "" if found.is_final else "; time was up, and a larger --budget narrows it"
    return "; ".join(filter(None, parts)) + why + late


def client_cost(client: Mapping[str, float]) -> str:
    """How late the client was, compared with the whole machine, and how much CPU it used."""
    lag, machine, cpu = map(client.get, ("p99_lag_ms", "machine_p99_lag_ms", "cpu_share"))
    parts = [
        f"{lag:.2f} ms late under load (p99)" if lag is not None else "lateness not known",
        f"this machine {machine:.2f} ms" if machine is not None else "",
        f"{cpu:.1%} of a core" if cpu is not None else "",
    ]
    return ", ".join(filter(None, parts))


def join_words(words: Iterable[str]) -> str:
    """`a, b and c`"""
    *first, last = [*words] or [""]
    return f"{', '.join(first)} and {last}" if first else last
