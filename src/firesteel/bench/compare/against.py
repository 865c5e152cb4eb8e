"""A run against its plan, and against what others published. Pure.

A plan speaks of some points and of no others: decode near a depth, prefill of a prompt of a length. Only
those are held against it. A published figure comes without an interval and from other hands, so no more is
said than whether two are further apart than hands were seen to be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from firesteel.bench.compare.runs import Measure
from firesteel.bench.values import BenchRun, MeasuredFigure, Point, PointFigures, Text
from firesteel.planner import Band
from firesteel.planner.speed.published import PublishedRun as Published

_NEAR = 1.5
"""Published depths up to so many times apart are shown beside a point."""
_PLANNED_DEPTH = 1024
"""Where a plan gives its decode figure; `planner.speed.DEPTH`."""
_SAME_DEPTH = 2.0
_DRAFTED: Mapping[Text, str] = {"code": "code", "prose": "prose", "json": "structured", "math": "reasoning"}
"""What plans call these kinds of text."""


@dataclass(frozen=True, slots=True)
class PlanComparison:
    """A measured figure against a planned band."""

    point: Point
    measure: Measure
    measured: MeasuredFigure
    planned: Band
    verdict: Literal["inside the band", "faster than planned", "slower than planned"]

    @property
    def off(self) -> float:
        """Over what was expected."""
        return self.measured.value / self.planned.expected


@dataclass(frozen=True, slots=True)
class PublishedComparison:
    """A measured decode figure against one that somebody published."""

    point: Point
    measured: MeasuredFigure
    published: Published
    source: str
    verdict: str

    @property
    def ratio(self) -> float:
        return self.measured.value / (self.published.decode_tps or self.measured.value)


def against_plan(run: BenchRun) -> tuple[PlanComparison, ...]:
    """Only figures that the plan is about: decode near the depth that it is given for, of one user or of as
    many as it was made for; with drafts that of the kind of text; prefill and TTFT of prompts as long as its.
    """
    return tuple(held for figures in run.figures for held in _held(figures, run.subject.plan))


def _held(figures: PointFigures, plan: Mapping[str, Any]) -> Iterator[PlanComparison]:
    point, prompt = figures.point, plan.get("prompt_tokens")
    if point.rate_per_s is not None:
        return
    decode = _planned_decode(point, plan)
    if decode and figures.decode_tokens_per_s:
        yield _against(point, "decode", figures.decode_tokens_per_s, decode)
    has_its_prompt = isinstance(prompt, int) and prompt / 2 <= point.prompt_tokens <= prompt * 2
    if point.users > 1 or point.shared_tokens or not has_its_prompt:
        return
    prefill, ttft = _band(plan.get("prefill_tokens_per_s")), _band(plan.get("ttft_ms"))
    if prefill and figures.prefill_tokens_per_s:
        yield _against(point, "prefill", figures.prefill_tokens_per_s, prefill)
    if ttft and figures.ttft_mean_ms and point.prompt_tokens == prompt:
        yield _against(point, "TTFT", figures.ttft_mean_ms, ttft)


def _planned_decode(point: Point, plan: Mapping[str, Any]) -> Band | None:
    depth = point.depth + point.answer_tokens // 2
    is_shallow = 1 / _SAME_DEPTH <= depth / _PLANNED_DEPTH <= _SAME_DEPTH
    if not is_shallow and point.users == 1 and not plan.get("drafts"):
        return _at_depth(plan.get("at_depth"), depth)
    if not is_shallow:
        return None
    if point.users > 1:
        batch = plan.get("batch")
        is_its = isinstance(batch, Mapping) and batch.get("users") == point.users
        return _band(batch.get("each_tokens_per_s")) if is_its and isinstance(batch, Mapping) else None
    if not plan.get("drafts"):
        return _band(plan.get("decode_tokens_per_s"))
    drafted = plan.get("drafted")
    return _band(drafted.get(_DRAFTED[point.text])) if isinstance(drafted, Mapping) else None


def _at_depth(rows: object, depth: int) -> Band | None:
    """The plan's figure for about that depth; None where it has none."""
    for row in rows if isinstance(rows, list | tuple) else ():
        match row:
            case [int() as at, band] if 1 / _SAME_DEPTH <= depth / max(1, at) <= _SAME_DEPTH:
                return _band(band)
    return None


def _against(point: Point, measure: Measure, measured: MeasuredFigure, planned: Band) -> PlanComparison:
    is_time, value = measure == "TTFT", measured.value
    if planned.low <= value <= planned.high:
        return PlanComparison(point, measure, measured, planned, "inside the band")
    is_faster = (value > planned.high) != is_time
    return PlanComparison(
        point, measure, measured, planned, "faster than planned" if is_faster else "slower than planned"
    )


def _band(said: object) -> Band | None:
    match said:
        case {
            "low": int() | float() as low,
            "expected": int() | float() as expected,
            "high": int() | float() as high,
        }:
            return Band(float(low), float(expected), float(high)) if expected > 0 and low <= high else None
    return None


def against_published(
    run: BenchRun, rows: Sequence[Published], sources: Mapping[str, str], carried: tuple[float, float]
) -> tuple[PublishedComparison, ...]:
    """`rows`: plain runs of the same checkpoint and engine. `carried`: how far off two hands were seen to be
    when they measured the same, least and most. It says no more than that two differ by more."""
    found = []
    for figures in run.figures:
        point, decode = figures.point, figures.decode_tokens_per_s
        if decode is None or point.users != 1 or point.rate_per_s is not None:
            continue
        depth = point.depth + point.answer_tokens // 2
        near = [
            row for row in rows if row.decode_tps and 1 / _NEAR <= (row.middle_depth or 1) / depth <= _NEAR
        ]
        found += [
            PublishedComparison(
                point, decode, row, sources.get(row.source, row.source), _beside(decode, row, carried)
            )
            for row in near
        ]
    return tuple(found)


def _beside(decode: MeasuredFigure, row: Published, carried: tuple[float, float]) -> str:
    theirs = row.decode_tps or decode.value
    low, high = decode.low / theirs, decode.high / theirs
    if low > carried[1]:
        return "faster"
    if high < carried[0]:
        return "slower"
    return "no more apart than two hands are"
