"""Figures of running services for `ps`: from the engine's `/metrics`, else what its verification measured."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from firesteel.run.report import read_report
from firesteel.run.service import api_key
from firesteel.run.verify.expected import stored_expected
from firesteel.values import Value

if TYPE_CHECKING:
    from firesteel.run.service import Service

_TIMEOUT_S = 3


class LiveFigures(Value):
    """None: the engine does not tell."""

    decode_tokens_per_s: float | None = None
    """One request; the mean since the engine started, or as its verification measured it."""
    first_token_ms: float | None = None
    kv_used: float | None = None
    """0 to 1."""
    acceptance: float | None = None
    """The share of drafted tokens that were right, since the engine started."""


def read_figures(services: Iterable[Service]) -> Mapping[str, LiveFigures]:
    """By name. All are asked at once, so that several engines that hang cost one timeout."""
    ready = [service for service in services if service.phase == "ready" and service.spec.url]
    pages = asyncio.run(_pages(ready)) if ready else []
    return {service.name: figures(service, page) for service, page in zip(ready, pages, strict=True)}


async def _pages(services: Iterable[Service]) -> list[str | None]:
    from firesteel.edge.http.engine_client import metrics  # slow to load; only what runs has any

    asked = (metrics(each.spec.url, timeout_s=_TIMEOUT_S, key=api_key(each.spec)) for each in services)
    return await asyncio.gather(*asked)


def figures(service: Service, page: str | None) -> LiveFigures:
    from firesteel.engines.metrics import activity, pace

    measured = _measured(service)
    engine = stored_expected(service.folder).engine
    if page is None or engine is None:
        return measured
    now, mean = activity(engine, page), pace(engine, page)
    return LiveFigures(
        mean.decode_tokens_per_s or measured.decode_tokens_per_s,
        mean.first_token_ms or measured.first_token_ms,
        now.kv_usage,
        (now.accepted_tokens or 0) / now.draft_tokens if now.draft_tokens else None,
    )


def _measured(service: Service) -> LiveFigures:
    try:
        report = read_report(service.report or {})
    except ValueError:
        return LiveFigures()
    decode = next((row.measured for row in report.compared if row.what == "decode"), None)
    return LiveFigures(decode, report.first_token_ms or None)
