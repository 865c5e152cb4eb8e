"""A run that was killed before it could say what it came to: its samples were kept, and say it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from firesteel.bench.results.figures import PointContext, figures
from firesteel.bench.values import BenchRun, RequestSample


def with_figures(run: BenchRun, samples: Sequence[RequestSample]) -> BenchRun:
    """Without what was seen beside them: power, the cache, the engine's own counters."""
    if run.figures or not samples:
        return run
    plan = run.subject.plan
    around = PointContext(
        plan=plan,
        target=run.settings.target,
        drafts=bool(plan.get("drafts")),
        has_gpu=run.subject.host.get("gpus") not in ([], ()),
    )
    by_point: dict[int, list[RequestSample]] = {at: [] for at in range(len(run.points))}
    for each in samples:
        by_point.get(each.point, []).append(each)
    found = tuple(figures(point, by_point[at], around) for at, point in enumerate(run.points))
    note = f"it was cut off: the figures are of the {len(samples):,} requests that were kept"
    return replace(run, figures=found, notes=run.notes if run.is_whole else (*run.notes, note))
