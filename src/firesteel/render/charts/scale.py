"""Axes and scales: from a value to its pixel, and which values get a tick."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, floor, log10
from typing import Literal

from firesteel.values import Value

_MAX_TICKS = 10


class Axis(Value):
    label: str
    is_log: bool = False
    base: Literal[2, 10] = 10
    is_count: bool = False
    """Only whole numbers get a tick."""

    @property
    def title(self) -> str:
        return f"{self.label} (log scale)" if self.is_log else self.label


class Scale(Value):
    axis: Axis
    low: float
    high: float
    start: float
    end: float
    """In pixels. It is less than `start` on a vertical axis, since y grows downwards."""

    def pixel(self, value: float) -> float:
        low, high = self.low, self.high
        if self.axis.is_log:
            low, high, value = log10(low), log10(high), log10(max(value, low / 10))
        share = (value - low) / (high - low)
        return self.start + (self.end - self.start) * max(-0.02, min(1.02, share))

    def ticks(self) -> list[float]:
        if self.axis.is_log:
            return _log_ticks(self.low, self.high, self.axis.base)
        step_at_least = (self.high - self.low) / 6
        power = 10.0 ** floor(log10(step_at_least))
        step = next(step for f in (1, 2, 2.5, 5, 10) if (step := f * power) >= step_at_least * 0.999)
        first, last = ceil(self.low / step - 1e-9), floor(self.high / step + 1e-9)
        ticks = [index * step for index in range(first, last + 1)]
        return [tick for tick in ticks if tick == round(tick)] if self.axis.is_count else ticks


def _log_ticks(low: float, high: float, base: int) -> list[float]:
    """Powers of the base; of ten also their double and their fivefold, where these are not too many."""
    exponents = range(floor(log10(low) / log10(base)), ceil(log10(high) / log10(base)) + 1)
    powers = [float(base) ** exponent for exponent in exponents]
    fine = powers if base == 2 else [factor * power for power in powers for factor in (1, 2, 5)]
    ticks: list[float] = []
    for candidates in (fine, powers):
        ticks = [tick for tick in candidates if low <= tick * 1.0001 and tick <= high * 1.0001]
        if len(ticks) <= _MAX_TICKS:
            break
    return ticks[:: max(1, ceil(len(ticks) / _MAX_TICKS))]


def fit_scale(axis: Axis, values: Iterable[float], start: float, end: float, from_zero: bool = True) -> Scale:
    """A scale that shows all values, with a margin."""
    shown = [value for value in values if value > 0 or not axis.is_log]
    low, high = min(shown), max(shown)
    if axis.is_log:
        return Scale(axis, low / 1.25, high * 1.25, start, end)
    if from_zero:
        return Scale(axis, min(0.0, low), high * 1.08 or 1.0, start, end)
    margin = (high - low) * 0.15 or abs(high) * 0.1 or 1.0
    return Scale(axis, low - margin if low < 0 else max(0.0, low - margin), high + margin, start, end)


def format_number(value: float) -> str:
    """At least three digits, as on an axis and in the table of a chart."""
    if value and (abs(value) >= 1e9 or abs(value) < 0.001):
        return f"{value:.0e}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
