"""How far off predictions were: the values that a fit is told by, and that bands are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Errors:
    """Predicted over measured, less one; `low` and `high` hold 19 in 20 of measured over predicted."""

    runs: int
    models: int
    mean: float
    worst: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Fitted:
    costs: Mapping[str, float]
    fitted: Errors
    left_out: Errors


@dataclass(frozen=True, slots=True)
class Spread:
    """Nineteen in twenty of some ratios or times, and their middle."""

    runs: int
    low: float
    expected: float
    high: float


def spread(values: Iterable[float]) -> Spread:
    found = sorted(values)
    low, middle, high = (round(quantile(found, share), 4) for share in (0.025, 0.5, 0.975))
    return Spread(len(found), low, middle, high)


def errors(found: Sequence[tuple[str, float, float]]) -> Errors:
    """Of (model, told, real)."""
    off = [told / real - 1 for _, told, real in found]
    ratios = sorted(real / told for _, told, real in found)
    return Errors(
        len(found),
        len({model for model, _, _ in found}),
        round(sum(abs(each) for each in off) / len(off), 4),
        round(max(abs(each) for each in off), 4),
        round(quantile(ratios, 0.025), 4),
        round(quantile(ratios, 0.975), 4),
    )


def quantile(values: Sequence[float], share: float) -> float:
    """Of sorted values, with a straight line between neighbours."""
    at = share * (len(values) - 1)
    below = int(at)
    above = min(below + 1, len(values) - 1)
    return values[below] + (values[above] - values[below]) * (at - below)
