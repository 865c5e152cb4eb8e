"""A small least-squares fit with bounds, enough for a dozen figures and a few hundred runs.

Errors are relative: a run of 4 tok/s counts as much as one of 400. Every figure is drawn a little to a
prior, so that what no run tells stays there. Cyclic coordinate descent solves it exactly enough, and
the same everywhere: no library, no random start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log

Point = tuple[Mapping[str, float], float, float]
"""Terms, the milliseconds they took, and how much the run counts."""
_SWEEPS = 20_000
_STILL = 1e-10


@dataclass(frozen=True, slots=True)
class FitVariable:
    """One figure to find."""

    name: str
    low: float
    high: float
    prior: float


def fit_even(points: Sequence[Point], unknowns: Sequence[FitVariable], rounds: int = 12) -> dict[str, float]:
    """As `fit`, where half of a time is as wrong as twice it: for figures that miss by much.

    Plain relative errors forgive a time told too short, since it can be off by no more than all of it.
    """
    found = fit(points, unknowns)
    for _ in range(rounds):
        found = fit([_even(point, found) for point in points], unknowns)
    return found


def _even(point: Point, found: Mapping[str, float]) -> Point:
    """The weight at which a squared relative error pulls as hard as the squared logarithm of the ratio."""
    parts, took_ms, weight = point
    ratio = sum(size * found.get(name, 0.0) for name, size in parts.items()) / took_ms
    pull = log(ratio) / (ratio - 1) / ratio if abs(ratio - 1) > 1e-6 else 1.0
    return parts, took_ms, weight * pull


def fit(points: Sequence[Point], unknowns: Sequence[FitVariable], pull: float = 0.02) -> dict[str, float]:
    """The figures within their bounds that miss the runs least; `pull` is the weight of the priors."""
    gram, goal = _normal(points, unknowns)
    for at, unknown in enumerate(unknowns):
        weight = pull * gram[at][at]
        gram[at][at] += weight
        goal[at] += weight * unknown.prior
    found = [unknown.prior for unknown in unknowns]
    for _ in range(_SWEEPS):
        if _sweep(gram, goal, unknowns, found) < _STILL:
            break
    return {unknown.name: value for unknown, value in zip(unknowns, found, strict=True)}


def _normal(
    points: Sequence[Point], unknowns: Sequence[FitVariable]
) -> tuple[list[list[float]], list[float]]:
    size = len(unknowns)
    gram, goal = [[0.0] * size for _ in range(size)], [0.0] * size
    for parts, took_ms, weight in points:
        row = [parts.get(unknown.name, 0.0) / took_ms for unknown in unknowns]
        for at, value in enumerate(row):
            if value:
                goal[at] += weight * value
                for other in range(size):
                    gram[at][other] += weight * value * row[other]
    return gram, goal


def _sweep(
    gram: Sequence[Sequence[float]],
    goal: Sequence[float],
    unknowns: Sequence[FitVariable],
    found: list[float],
) -> float:
    """Sets each figure to its best with the others held; returns the largest move."""
    moved = 0.0
    for at, unknown in enumerate(unknowns):
        if not gram[at][at]:
            continue
        others = sum(gram[at][k] * found[k] for k in range(len(found))) - gram[at][at] * found[at]
        best = min(unknown.high, max(unknown.low, (goal[at] - others) / gram[at][at]))
        moved, found[at] = max(moved, abs(best - found[at])), best
    return moved
