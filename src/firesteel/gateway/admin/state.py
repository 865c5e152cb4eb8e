"""The state of the gateway and its models, as `/api/state` returns it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from heapq import nsmallest
from typing import TypedDict

from firesteel.facts import Meminfo
from firesteel.facts.host.gpu_reading import GpuReading
from firesteel.gateway.admin import status
from firesteel.gateway.admin.health_sentence import HealthJson, health_sentence
from firesteel.gateway.curves.sampler import RecentActivity
from firesteel.gateway.executor import ModelView
from firesteel.gateway.request_record import RequestRecord
from firesteel.gateway.service_config import ServiceConfig

_SHOWN_WAITING = 50


class ModelStateJson(TypedDict):
    name: str
    phase: str
    busy: int
    waiting: int
    planned_bytes: int | None
    measured_bytes: int | None
    since: float | None
    """Seconds since 1970 when it entered this phase."""
    ttl_s: float | None
    pinned: bool
    why: str | None
    """Why its last load failed, or why it cannot be served."""
    url: str | None
    context: int | None
    engine: str | None
    doing: str | None
    """What its load or unload is doing."""
    eta_s: float | None
    note: str | None
    aliases: list[str]
    outside: bool
    """It runs at a URL of its own, and is not ours to load or unload."""
    needed_bytes: int | None
    """What the next load needs, or what it holds now."""
    load_s: float | None
    """How long a load is expected to take."""
    requested: bool
    """It was asked for by name, and waits for its turn to be loaded."""
    evicts: list[str]
    """Models that a load would unload first."""
    why_not: str | None
    """Why a load is impossible, even if all that may be unloaded is."""
    health: HealthJson
    tokens_per_s: float | None
    """Of all its streams, in the last five seconds."""
    kv_used: float | None
    """Share of its KV cache, 0 to 1."""
    acceptance: float | None
    """Share of the drafted tokens that were right, 0 to 1, in the last minutes."""


class MemoryStateJson(TypedDict):
    ceiling_bytes: int | None
    """All models together may hold so much."""
    loaded_bytes: int
    available_bytes: int | None
    """On the host now."""
    total_bytes: int | None
    floor_bytes: int | None
    """The guard stops an engine when less is available."""


class GpuStateJson(TypedDict):
    temperature_c: float | None
    power_w: float | None
    clock_mhz: float | None
    throttle: str | None
    """Why its clock is lowered."""


class WaitingRequestJson(TypedDict):
    model: str
    key: str
    since: float
    """Seconds since 1970."""
    doing: str
    """What it waits for."""


class GatewayState(TypedDict):
    models: list[ModelStateJson]
    memory: MemoryStateJson
    gpu: GpuStateJson | None
    waiting: int
    queue: list[WaitingRequestJson]
    """The requests that have waited longest."""
    requests: int
    """Rows written to the request log since the gateway started; a change means that there are new ones."""


def gateway_state(
    views: Iterable[ModelView],
    config: ServiceConfig,
    memory: Meminfo | None,
    gpu: GpuReading | None,
    recent: Callable[[str], RecentActivity],
    queue: list[WaitingRequestJson],
    requests: int,
) -> GatewayState:
    views = list(views)
    statuses = [view.status for view in views if view.status]
    return {
        "models": [_model_state(view, recent(view.config.name), gpu) for view in views],
        "memory": {
            "ceiling_bytes": config.ceiling_bytes,
            "loaded_bytes": sum(model.bytes for model in statuses if model.phase != "off"),
            "available_bytes": memory.available_bytes if memory else None,
            "total_bytes": memory.total_bytes if memory else None,
            # As `run.start.options` tells the guard.
            "floor_bytes": config.keep_free_bytes // 2 or None,
        },
        "gpu": _gpu_state(gpu),
        "waiting": sum(model.waiting for model in statuses),
        "queue": queue,
        "requests": requests,
    }


def oldest_waiting(waiting: Iterable[RequestRecord], doing: Callable[[str], str]) -> list[WaitingRequestJson]:
    """The requests that have waited longest. `doing` says what happens for the requests of a model."""
    oldest = nsmallest(_SHOWN_WAITING, waiting, key=lambda record: record.waits_since)
    texts = {model: doing(model) for model in {record.request.model for record in oldest}}
    return [
        {
            "model": record.request.model,
            "key": record.request.caller.name,
            "since": round(record.waits_since, 1),
            "doing": texts[record.request.model],
        }
        for record in oldest
    ]


def _gpu_state(gpu: GpuReading | None) -> GpuStateJson | None:
    if gpu is None:
        return None
    return {
        "temperature_c": gpu.temperature_c,
        "power_w": gpu.power_w,
        "clock_mhz": gpu.clock_mhz,
        "throttle": gpu.throttle,
    }


def _model_state(view: ModelView, recent: RecentActivity, gpu: GpuReading | None) -> ModelStateJson:
    config, model, running, progress = view.config, view.status, view.running, view.progress
    preview = view.preview
    is_ready = status.phase(view) == "ready"
    return {
        "name": config.name,
        "phase": status.phase(view),
        "busy": model.busy if model else 0,
        "waiting": model.waiting if model else 0,
        "planned_bytes": config.bytes or None,
        "measured_bytes": running.bytes if running and running.bytes_are != "planned" else None,
        "since": round(time.time() - (time.monotonic() - model.since_s)) if model else None,
        "ttl_s": config.ttl_s,
        "pinned": config.pinned,
        "why": (model.why if model else str(config.why_not)) or None,
        "url": running.url if running else config.urls[0] if config.is_outside else None,
        "context": config.context,
        "engine": config.engine,
        "doing": progress.text if progress else None,
        "eta_s": progress.eta_s if progress else None,
        "note": view.note or None,
        "aliases": list(config.aliases),
        "outside": config.is_outside,
        "needed_bytes": (model.bytes if model else config.bytes) or None,
        "load_s": None if config.is_outside else round(config.load_s, 1),
        "requested": bool(preview and preview.is_requested),
        "evicts": list(preview.evicts) if preview else [],
        "why_not": preview.why_not if preview else None,
        "health": health_sentence(view, recent, gpu),
        "tokens_per_s": recent.tokens_per_s if is_ready else None,
        "kv_used": recent.kv_used if is_ready else None,
        "acceptance": recent.acceptance if is_ready else None,
    }
