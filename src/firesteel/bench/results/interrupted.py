"""Figures of a run that was killed before it could store them, from the samples that it stored. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from firesteel.bench.results.context import PointContext
from firesteel.bench.results.figures import figures
from firesteel.bench.values import BenchRun, RequestSample
from firesteel.values import replace


def with_figures(run: BenchRun, samples: Sequence[RequestSample]) -> BenchRun:
    """Power, cache use and engine counters are lost; everything else follows from the samples."""
    if run.figures or not samples:
        return run
    context = PointContext.of(run.subject, run.settings)
    by_point: dict[int, list[RequestSample]] = {index: [] for index in range(len(run.points))}
    for sample in samples:
        by_point.get(sample.point, []).append(sample)
    found = tuple(figures(point, by_point[index], context) for index, point in enumerate(run.points))
    note = f"the run was interrupted: its figures are of the {len(samples):,} requests that were stored"
    return replace(run, figures=found, notes=run.notes if run.is_whole else (*run.notes, note))
