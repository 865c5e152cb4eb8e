"""A run against its plan, and against published figures. Pure.

A plan is about some points only: decode near a depth, prefill of a prompt of a certain length. Only those are
compared with it. A published figure has no interval and comes from another setup, so the only verdict is
whether two figures differ by more than setups are known to differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from firesteel.bench.compare.stats import Measure
from firesteel.bench.measurements import BenchRun, MeasuredFigure, Point, PointFigures
from firesteel.launch import Text
from firesteel.planner.speed import published
from firesteel.planner.speed.decode import constants
from firesteel.planner.speed.published import PublishedRun
from firesteel.units import Band
from firesteel.values import Value

_NEAR_DEPTH = 1.5
"""Published figures are shown next to a point if the depths differ by at most this factor."""
_PLANNED_DEPTH = 1024
"""The depth of a plan's decode figure; `planner.speed.DEPTH`."""
_SAME_DEPTH = 2.0
PLANNER_TEXTS: Mapping[Text, str] = {
    "code": "code", "prose": "prose", "json": "structured", "math": "reasoning",
}  # fmt: skip
"""How plans name these kinds of text."""


class PlanComparison(Value):
    """A measured figure against a planned band."""

    point: Point
    measure: Measure
    measured: MeasuredFigure
    planned: Band
    verdict: Literal["inside the band", "faster than planned", "slower than planned"]

    @property
    def off(self) -> float:
        """Measured over expected."""
        return self.measured.value / self.planned.expected


class PublishedComparison(Value):
    """A measured decode figure against a published one."""

    point: Point
    measured: MeasuredFigure
    published: PublishedRun
    source: str
    verdict: str

    @property
    def ratio(self) -> float:
        return self.measured.value / (self.published.decode_tps or self.measured.value)


def against_plan(run: BenchRun) -> tuple[PlanComparison, ...]:
    """Compare what the plan is about: decode near its depth, for one user or as many as it was made for (with
    speculation, for the same kind of text); prefill and TTFT of prompts as long as the plan's."""
    return tuple(row for figures in run.figures for row in _plan_rows(figures, run.subject.plan))


def _plan_rows(figures: PointFigures, plan: Mapping[str, Any]) -> Iterator[PlanComparison]:
    point, prompt = figures.point, plan.get("prompt_tokens")
    if point.rate_per_s is not None:
        return
    decode = _planned_decode(point, plan)
    if decode and figures.decode_tokens_per_s:
        yield _compare(point, "decode", figures.decode_tokens_per_s, decode)
    has_planned_prompt = isinstance(prompt, int) and prompt / 2 <= point.prompt_tokens <= prompt * 2
    if point.users > 1 or point.shared_tokens or not has_planned_prompt:
        return
    prefill, ttft = _band(plan.get("prefill_tokens_per_s")), _band(plan.get("ttft_ms"))
    if prefill and figures.prefill_tokens_per_s:
        yield _compare(point, "prefill", figures.prefill_tokens_per_s, prefill)
    if ttft and figures.ttft_mean_ms and point.prompt_tokens == prompt:
        yield _compare(point, "TTFT", figures.ttft_mean_ms, ttft)


def _planned_decode(point: Point, plan: Mapping[str, Any]) -> Band | None:
    depth = _middle_depth(point)
    if not _is_same_depth(depth, _PLANNED_DEPTH):
        has_rows = point.users == 1 and not plan.get("drafts")
        return _at_depth(plan.get("at_depth"), depth) if has_rows else None
    if point.users > 1:
        batch = plan.get("batch")
        if not isinstance(batch, Mapping) or batch.get("users") != point.users:
            return None
        return _band(batch.get("each_tokens_per_s"))
    if not plan.get("drafts"):
        return _band(plan.get("decode_tokens_per_s"))
    drafted = plan.get("drafted")
    return _band(drafted.get(PLANNER_TEXTS[point.text])) if isinstance(drafted, Mapping) else None


def _middle_depth(point: Point) -> int:
    return point.depth + point.answer_tokens // 2


def _is_same_depth(one: int, other: int) -> bool:
    return 1 / _SAME_DEPTH <= one / max(1, other) <= _SAME_DEPTH


def _at_depth(rows: object, depth: int) -> Band | None:
    """The plan's figure for about that depth, if it has one."""
    for row in rows if isinstance(rows, list | tuple) else ():
        match row:
            case [int() as planned, band] if _is_same_depth(depth, planned):
                return _band(band)
    return None


def _compare(point: Point, measure: Measure, measured: MeasuredFigure, planned: Band) -> PlanComparison:
    is_time, value = measure == "TTFT", measured.value
    if planned.low <= value <= planned.high:
        return PlanComparison(point, measure, measured, planned, "inside the band")
    is_faster = (value > planned.high) != is_time
    return PlanComparison(
        point, measure, measured, planned, "faster than planned" if is_faster else "slower than planned"
    )


def _band(value: object) -> Band | None:
    match value:
        case {
            "low": int() | float() as low,
            "expected": int() | float() as expected,
            "high": int() | float() as high,
        }:
            return Band(float(low), float(expected), float(high)) if expected > 0 and low <= high else None
    return None


def all_published(run: BenchRun) -> tuple[PublishedComparison, ...]:
    """Against every published run of the same checkpoint, engine and number of Sparks."""
    checkpoint = str(run.subject.launch.get("model") or run.subject.model)
    sparks = run.subject.launch.get("sparks")
    rows = published.runs_of(checkpoint, run.subject.engine or "", sparks if isinstance(sparks, int) else 1)
    sources = {name: origin.url for name, origin in published.run_sources().items()}
    carried = constants().carried
    return against_published(run, rows, sources, (carried.low, carried.high))


def against_published(
    run: BenchRun, rows: Sequence[PublishedRun], sources: Mapping[str, str], usual: tuple[float, float]
) -> tuple[PublishedComparison, ...]:
    """`rows`: plain runs of the same checkpoint and engine. `usual`: the lowest and the highest ratio that
    was seen between two setups that measured the same."""
    found = []
    for figures in run.figures:
        point, decode = figures.point, figures.decode_tokens_per_s
        if decode is None or point.users != 1 or point.rate_per_s is not None:
            continue
        for row in rows:
            ratio = (row.middle_depth or 1) / _middle_depth(point)
            if row.decode_tps and 1 / _NEAR_DEPTH <= ratio <= _NEAR_DEPTH:
                source = sources.get(row.source, row.source)
                verdict = _published_verdict(decode, row.decode_tps, usual)
                found.append(PublishedComparison(point, decode, row, source, verdict))
    return tuple(found)


def _published_verdict(decode: MeasuredFigure, published: float, usual: tuple[float, float]) -> str:
    if decode.low / published > usual[1]:
        return "faster"
    if decode.high / published < usual[0]:
        return "slower"
    return "within the usual difference between setups"
