"""A small bounded least-squares fit, enough for a dozen variables and a few hundred runs.

Errors are relative: a run of 4 tok/s counts as much as one of 400. Every variable is pulled a little
towards a prior, so a variable that no run determines stays there. Cyclic coordinate descent is exact enough
and gives the same result everywhere: no library, no random start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log

Point = tuple[Mapping[str, float], float, float]
"""Terms, the milliseconds they took, and the weight of the run."""
_MAX_SWEEPS = 20_000
_TOLERANCE = 1e-10


@dataclass(frozen=True, slots=True)
class FitVariable:
    name: str
    low: float
    high: float
    prior: float


def fit_log_ratios(
    points: Sequence[Point], variables: Sequence[FitVariable], rounds: int = 12
) -> dict[str, float]:
    """As `fit`, but half of a time is as wrong as twice it: for predictions that miss by a large factor.

    Plain relative errors favour times that are too short, because those can be wrong by at most 100 %.
    """
    values = fit(points, variables)
    for _ in range(rounds):
        values = fit([_reweighted(point, values) for point in points], variables)
    return values


def _reweighted(point: Point, values: Mapping[str, float]) -> Point:
    """The weight at which a squared relative error pulls as hard as the squared logarithm of the ratio."""
    terms, measured_ms, weight = point
    ratio = sum(size * values.get(name, 0.0) for name, size in terms.items()) / measured_ms
    pull = log(ratio) / (ratio - 1) / ratio if abs(ratio - 1) > 1e-6 else 1.0
    return terms, measured_ms, weight * pull


def fit(points: Sequence[Point], variables: Sequence[FitVariable], pull: float = 0.02) -> dict[str, float]:
    """The values within their bounds with the smallest error; `pull` is the weight of the priors."""
    gram, goal = _normal_equations(points, variables)
    for index, variable in enumerate(variables):
        weight = pull * gram[index][index]
        gram[index][index] += weight
        goal[index] += weight * variable.prior
    values = [variable.prior for variable in variables]
    for _ in range(_MAX_SWEEPS):
        if _sweep(gram, goal, variables, values) < _TOLERANCE:
            break
    return {variable.name: value for variable, value in zip(variables, values, strict=True)}


def _normal_equations(
    points: Sequence[Point], variables: Sequence[FitVariable]
) -> tuple[list[list[float]], list[float]]:
    size = len(variables)
    gram, goal = [[0.0] * size for _ in range(size)], [0.0] * size
    for terms, measured_ms, weight in points:
        row = [terms.get(variable.name, 0.0) / measured_ms for variable in variables]
        for index, value in enumerate(row):
            if value:
                goal[index] += weight * value
                for other in range(size):
                    gram[index][other] += weight * value * row[other]
    return gram, goal


def _sweep(
    gram: Sequence[Sequence[float]],
    goal: Sequence[float],
    variables: Sequence[FitVariable],
    values: list[float],
) -> float:
    """Set each value to its optimum with the others fixed; return the largest change."""
    largest = 0.0
    for index, variable in enumerate(variables):
        diagonal = gram[index][index]
        if not diagonal:
            continue
        others = sum(gram[index][k] * values[k] for k in range(len(values))) - diagonal * values[index]
        best = min(variable.high, max(variable.low, (goal[index] - others) / diagonal))
        largest, values[index] = max(largest, abs(best - values[index])), best
    return largest
