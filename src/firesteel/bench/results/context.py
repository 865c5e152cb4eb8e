"""What is known about a point besides its samples, and the share of the memory bandwidth that follows.
Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from firesteel.bench.values import MeasuredFigure, Point, RequestSettings, Subject
from firesteel.values import Value

SHARE_LOW, SHARE_HIGH = 0.45, 0.95
"""Share of the bandwidth that decode of one user reached in 222 published runs on a GB10; outside of it,
something is wrong."""
_MAX_SHARE_DEPTH = 4096
"""Depth up to which the plan's bytes per token, given for about a thousand tokens, are close enough."""


class PointContext(Value):
    """What is known about a point besides its samples; None: unknown."""

    plan: Mapping[str, Any] = {}
    target: Mapping[str, float] = {}
    watts: float | None = None
    accepted_per_step: float | None = None
    cached_share: float | None = None
    """From the engine's counters; `usage` takes precedence."""
    kv_usage: float | None = None
    preemptions: int | None = None
    drafts: bool = False
    has_gpu: bool = True
    """The usual bandwidth share is that of a GB10; a CPU reaches less, and that is no fault."""

    @classmethod
    def of(cls, subject: Subject, settings: RequestSettings) -> PointContext:
        return cls(
            plan=subject.plan,
            target=settings.target,
            drafts=bool(subject.plan.get("drafts")),
            has_gpu=subject.host.get("gpus") not in ([], ()),
        )


def bandwidth_share(point: Point, decode: MeasuredFigure | None, context: PointContext) -> float | None:
    """Steps per second x bytes per step / bandwidth. With speculation, a step gives several tokens."""
    step_bytes, bandwidth = context.plan.get("bytes_per_token"), context.plan.get("bandwidth_bytes_per_s")
    if decode is None or not step_bytes or not bandwidth:
        return None
    if point.users != 1 or point.depth > _MAX_SHARE_DEPTH:
        return None
    if context.drafts and context.accepted_per_step is None:
        return None
    return float(decode.value / (context.accepted_per_step or 1.0) * step_bytes / bandwidth)
