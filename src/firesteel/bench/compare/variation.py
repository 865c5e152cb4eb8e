"""How much runs of one unchanged server differ by themselves: caches, clocks, heat, where its memory lies.

The repetitions of one run say nothing about it: within a run all of that stays the same. It is estimated from
earlier runs of the same launch, settings and load, or taken from `DEFAULT_SPREAD`, which was measured once.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import log
from statistics import fmean, variance
from typing import Literal

from firesteel.bench.load.contention import NOTE as CONTENTION
from firesteel.bench.values import BenchRun, MeasuredFigure, Point
from firesteel.values import Value, replace

Measure = Literal["decode", "total", "prefill", "TTFT"]
FIELDS: Mapping[Measure, str] = {
    "decode": "decode_tokens_per_s",
    "total": "total_tokens_per_s",
    "prefill": "prefill_tokens_per_s",
    "TTFT": "ttft_mean_ms",
}
PINNED = ("thinking", "temperature", "max_num_seqs", "ignores_eos")
"""Settings that must be equal for a comparison."""
DEFAULT_SPREAD = 0.02
"""Standard deviation of a run's figure, as a share. Of 88 pairs of runs with equal model, flags and load on
Sparks (`data/measured/runs.csv`, source `djangodevreng`), decode has 0.9 % by the median pair and 3.0 % by
the pooled variance, TTFT 1.3 % by the median; two runs of one unchanged embedded engine differed by 4.2 %
(2026-11-15)."""
_MIN_FREEDOM = 3
"""Degrees of freedom below which an estimate from earlier runs is worth less than the default."""
_MIN_REPETITIONS = 3
_KNOWN = 1e6
"""Degrees of freedom of a figure that counts as known."""


class RunVariation(Value):
    spread: float = DEFAULT_SPREAD
    """Standard deviation of a run's figure, as a share of it."""
    freedom: float = _KNOWN
    runs: int = 0
    """Earlier runs that it was estimated from; 0: the default."""

    def widen(self, squared_error: float, freedom: float) -> tuple[float, float]:
        """The squared error of a difference of two runs, and its degrees of freedom. Earlier runs show the
        whole error of a run's figure, the default only what is added to that within the run."""
        between = 2 * self.spread**2
        if not self.runs:
            total = squared_error + between
            return total, freedom * (total / squared_error) ** 2 if squared_error > 0 else _KNOWN
        return max((squared_error, freedom), (between, self.freedom))


def run_variation(
    point: Point, measure: Measure, first: BenchRun, second: BenchRun, earlier: Iterable[BenchRun]
) -> RunVariation:
    """`earlier`: other runs of the history. Runs of a server that we did not start are not used: nobody knows
    whether it was changed between them."""
    by_launch: dict[str, list[float]] = {}
    for run in earlier:
        key = run.subject.launch_key
        is_same = any(_is_same_server(run, side) for side in (first, second))
        figure = _figure(run, point, measure)
        if key and is_same and figure and run.id not in (first.id, second.id):
            by_launch.setdefault(key, []).append(log(figure.value))
    groups = [values for values in by_launch.values() if len(values) > 1]
    freedom = sum(len(values) - 1 for values in groups)
    if freedom < _MIN_FREEDOM:
        return RunVariation()
    pooled = sum((len(values) - 1) * variance(values) for values in groups) / freedom
    return RunVariation(pooled**0.5, freedom, sum(map(len, groups)))


def _is_same_server(run: BenchRun, side: BenchRun) -> bool:
    one, other = run.subject, side.subject
    return (
        (one.launch_key, one.host.get("title")) == (other.launch_key, other.host.get("title"))
        and all(getattr(run.settings, name) == getattr(side.settings, name) for name in PINNED)
        and CONTENTION not in run.notes
    )


def _figure(run: BenchRun, point: Point, measure: Measure) -> MeasuredFigure | None:
    load = replace(point, shape="")
    figures = next((found for found in run.figures if replace(found.point, shape="") == load), None)
    figure: MeasuredFigure | None = getattr(figures, FIELDS[measure], None)
    return figure if figure and figure.n >= _MIN_REPETITIONS and figure.value > 0 else None


def variation_note(variations: Mapping[Measure, RunVariation]) -> str:
    """For the figures of a comparison of two runs that were not measured in turns."""
    known = {name: found for name, found in variations.items() if found.runs}
    if not known:
        return (
            f"runs of one unchanged server vary by themselves, by about {DEFAULT_SPREAD:.0%} (a usual value; "
            "with four more runs of the same launch it is measured here), so differences below about "
            f"{3.3 * DEFAULT_SPREAD:.0%} are not called; `--ab` measures both in turns and sees smaller ones"
        )
    shares = ", ".join(f"{name} {found.spread:.1%}" for name, found in known.items())
    count = fmean(found.runs for found in known.values())
    return (
        f"runs of one unchanged server vary by themselves; {count:.0f} earlier runs here by: {shares} "
        "(standard deviation). That is in each interval; `--ab` measures both in turns and sees less"
    )
