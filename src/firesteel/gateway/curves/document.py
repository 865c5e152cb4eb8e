"""What `GET /api/curves` returns."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from typing import TypedDict

from firesteel.gateway.curves.store import VALUES, CurveRange, Points
from firesteel.gateway.service_config import ModelConfig, PlannedRange

UNITS = {
    "tokens_per_s": "tokens/s", "ttft_p50_s": "s", "ttft_p95_s": "s", "gap_p50_s": "s", "gap_p95_s": "s",
    "queue": "requests", "kv_used": "share", "memory_bytes": "bytes", "power_w": "W",
}  # fmt: skip


class RangeJson(TypedDict):
    """What was planned; a figure outside it is worth a look."""

    low: float
    expected: float
    high: float


class CurveJson(TypedDict):
    name: str
    model: str | None
    """None: the whole machine."""
    unit: str
    values: list[float | None]
    """One for each step, the oldest first; None: not known, or nothing happened."""
    band: RangeJson | None


async def curves_document(
    resolution: CurveRange, start: int, points: Points, models: Mapping[str, ModelConfig]
) -> str:
    """As JSON, series by series: a month of 40 models takes a tenth of a second; streams go on."""
    parts = []
    for series in _series(resolution, start, points, models):
        parts.append(json.dumps(series))
        await asyncio.sleep(0)
    head = json.dumps({"range": resolution.name, "step_s": resolution.step_s, "start": start})
    return f'{head[:-1]}, "series": [{", ".join(parts)}]}}'


def _series(
    resolution: CurveRange, start: int, points: Points, models: Mapping[str, ModelConfig]
) -> Iterator[CurveJson]:
    starts = [start + index * resolution.step_s for index in range(resolution.points)]
    for model, found in sorted(points.items()):
        for column, name in enumerate(VALUES):
            values = [_rounded(found[at][column]) if at in found else None for at in starts]
            if any(value is not None for value in values):
                band = _band(name, models.get(model))
                yield CurveJson(name=name, model=model or None, unit=UNITS[name], values=values, band=band)


def _rounded(value: float | None) -> float | None:
    """Four digits: nobody sees more, and the document is half as long."""
    return None if value is None else float(f"{value:.4g}")


def _band(name: str, model: ModelConfig | None) -> RangeJson | None:
    planned = model.planned if model else None
    if planned is None:
        return None
    if name == "memory_bytes":
        return _json(planned.memory_bytes)
    if name == "gap_p50_s" and planned.decode_tokens_per_s and not planned.speculates:  # one token a piece
        rate = planned.decode_tokens_per_s
        return RangeJson(low=1 / rate.high, expected=1 / rate.expected, high=1 / rate.low)
    if name == "tokens_per_s":
        return _json(planned.total_tokens_per_s)
    return None


def _json(planned: PlannedRange | None) -> RangeJson | None:
    return RangeJson(low=planned.low, expected=planned.expected, high=planned.high) if planned else None
