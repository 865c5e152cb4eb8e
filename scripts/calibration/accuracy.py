"""How far predictions are from measurements: the errors that a fit reports and that bands are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from firesteel.planner.speed.decode import ErrorsSchema, SpreadSchema


def spread(values: Iterable[float]) -> SpreadSchema:
    """The median of some ratios or times, and the range that holds 19 in 20 of them."""
    ordered = sorted(values)
    low, median, high = (round(quantile(ordered, share), 4) for share in (0.025, 0.5, 0.975))
    return SpreadSchema(runs=len(ordered), low=low, expected=median, high=high)


def prediction_errors(results: Sequence[tuple[str, float, float]]) -> ErrorsSchema:
    """From (model, predicted, measured)."""
    errors = [abs(predicted / measured - 1) for _, predicted, measured in results]
    ratios = sorted(measured / predicted for _, predicted, measured in results)
    return ErrorsSchema(
        runs=len(results),
        models=len({model for model, _, _ in results}),
        mean=round(sum(errors) / len(errors), 4),
        worst=round(max(errors), 4),
        low=round(quantile(ratios, 0.025), 4),
        high=round(quantile(ratios, 0.975), 4),
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """Linear interpolation between neighbours of sorted values."""
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)
