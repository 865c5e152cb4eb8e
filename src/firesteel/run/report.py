"""Figures of a service: the report of its start, and what it does now.

The report says what came up, which checks it passed, and planned against measured figures. `ps` shows figures
of the moment from the engine's `/metrics`, or else what its verification measured.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from firesteel.edge.home import write_text
from firesteel.edge.http.answer import Answer
from firesteel.engines.logs import ReportedMemory
from firesteel.planner.plan import Plan
from firesteel.run.service import Service, api_key
from firesteel.run.verify.checks import CheckResult
from firesteel.run.verify.expected import stored_expected
from firesteel.units import Band
from firesteel.values import Value, from_json, plain

PROVED_BEFORE = "proved before"
"""The check of a brief proof (`verify/after_start.py`)."""


class Compared(Value):
    """One figure, planned and measured."""

    what: str
    unit: str
    planned: Band
    measured: float

    @property
    def is_within(self) -> bool:
        """An exact figure may differ by what the engine's log rounds off."""
        slack = 0.005 * self.planned.expected if self.planned.is_exact else 0
        return self.planned.low - slack <= self.measured <= self.planned.high + slack


class Report(Value):
    name: str
    url: str
    model: str
    engine: str
    version: str | None
    checks: tuple[CheckResult, ...]
    compared: tuple[Compared, ...]
    start_s: float
    """From launching the engine to its first healthy answer."""
    first_token_ms: float
    log: str

    @property
    def is_brief(self) -> bool:
        """It was proved before, and only asked whether it is still the same."""
        return any(check.name == PROVED_BEFORE for check in self.checks)

    @property
    def is_verified(self) -> bool:
        """Failed notes do not count."""
        return not any(check.fails_launch for check in self.checks)


def write_report(folder: Path, report: Report) -> None:
    document = plain(report)
    for check in document["checks"]:
        check["saw"] = check.pop("observed")  # the key on disk
    write_text(folder / "report.json", json.dumps(document, indent=1))


def read_report(document: Mapping[str, Any]) -> Report:
    """From the content of `report.json`; raises ValueError when it is not a report."""
    checks = document.get("checks")
    if isinstance(checks, list):
        renamed = [{"observed": check.get("saw"), **check} for check in checks if isinstance(check, dict)]
        document = {**document, "checks": renamed}
    return from_json(Report, dict(document))


def compare(
    plan: Plan, reported: ReportedMemory, memory_bytes: int | None, texts: Iterable[Answer]
) -> tuple[Compared, ...]:
    """Every planned figure that was also measured."""
    parts = {part.name: part.bytes for part in plan.memory.parts}
    if plan.launch.engine == "vllm" and "adapters" in parts:
        parts["weights"] += parts["adapters"]  # its line about loading counts the slots of adapters, too
    weights_bytes = reported.weights_bytes
    if weights_bytes is not None and plan.memory.host_total_bytes != plan.host.memory_total_bytes:
        weights_bytes -= reported.host_weights_bytes  # the plan is of the GPU's own memory
    measured = {
        "weights": weights_bytes,
        "KV cache": reported.kv_bytes,
        "compute buffers": reported.compute_bytes,
    }
    rows = [
        Compared(name, "bytes", parts[name], size)
        for name, size in measured.items()
        if size is not None and name in parts
    ]
    if memory_bytes is not None:
        rows.append(Compared("memory in all", "bytes", plan.memory.needed, memory_bytes))
    speeds = [text.decode_tokens_per_s for text in texts if text.decode_tokens_per_s]
    if plan.speed and speeds:
        # The fastest answer: anything else that the host does only slows answers down.
        drafted = {row.text: row.decode_tokens_per_s for row in plan.speed.drafted}
        planned = drafted.get("prose") or drafted.get("any") or plan.speed.decode_tokens_per_s
        rows.append(Compared("decode", "tok/s", planned, max(speeds)))
    return tuple(rows)


# --- what a running service does now ---

_METRICS_TIMEOUT_S = 3


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

    asked = (
        metrics(each.spec.url, timeout_s=_METRICS_TIMEOUT_S, key=api_key(each.spec)) for each in services
    )
    return await asyncio.gather(*asked)


def figures(service: Service, page: str | None) -> LiveFigures:
    from firesteel.engines.metrics import activity, pace

    measured = _measured_at_start(service)
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


def _measured_at_start(service: Service) -> LiveFigures:
    try:
        report = read_report(service.report or {})
    except ValueError:
        return LiveFigures()
    decode = next((row.measured for row in report.compared if row.what == "decode"), None)
    return LiveFigures(decode, report.first_token_ms or None)
