"""Drops impossible numbers from a run: it may come from anybody's file, and its charts must be drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import fields

from firesteel.bench.values import BenchRun, MeasuredFigure, Point, PointFigures
from firesteel.values import replace

_MAX = 1e12
_MAX_RELATIVE_WIDTH = 50
"""An interval that reaches beyond this multiple of its figure says nothing."""


def sanitize(run: BenchRun) -> BenchRun:
    """Without loads of impossible size, non-finite values and rates of zero; a note says what was dropped."""
    figures = tuple(_sanitize_figures(load) for load in run.figures if _is_possible(load.point))
    dropped = len(run.figures) - len(figures)
    notes = (f"{dropped} loads of impossible size are left out",) if dropped else ()
    return replace(run, figures=figures, client=_possible(run.client), notes=(*run.notes, *notes))


def _is_possible(point: Point) -> bool:
    counts = (point.users, point.prompt_tokens, point.answer_tokens, point.turns, point.shared_tokens + 1)
    rate = 1.0 if point.rate_per_s is None else point.rate_per_s
    return all(0 < count < _MAX for count in (*counts, rate))


def _sanitize_figures(figures: PointFigures) -> PointFigures:
    changed: dict[str, Any] = {}
    for field in fields(figures):
        value = getattr(figures, field.name)
        if isinstance(value, MeasuredFigure):
            is_ordered = -_MAX < value.low <= value.value <= value.high <= _MAX_RELATIVE_WIDTH * value.value
            is_sized = 1 / _MAX < value.value < _MAX and 0 < value.n < _MAX
            changed[field.name] = value if is_ordered and is_sized else None
        elif isinstance(value, float) or field.name == "preemptions":
            changed[field.name] = value if value is not None and 0 <= value < _MAX else None
        elif isinstance(value, Mapping):
            changed[field.name] = _possible(value)
    return replace(figures, **changed)


def _possible(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value for name, value in values.items() if isinstance(value, int | float) and 0 <= value < _MAX
    }
