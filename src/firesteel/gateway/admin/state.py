"""The state of the gateway and its models, as `/api/state` returns it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TypedDict

from firesteel.facts import Meminfo
from firesteel.gateway.admin import status
from firesteel.gateway.executor import ModelView


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


class MemoryStateJson(TypedDict):
    total_bytes: int | None
    ceiling_bytes: int | None
    loaded_bytes: int
    available_bytes: int | None


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
    waiting: int
    queue: list[WaitingRequestJson]
    """The requests that have waited longest."""
    requests: int
    """Rows written to the request log since the gateway started; a change means that there are new ones."""


def gateway_state(
    views: Iterable[ModelView],
    ceiling_bytes: int | None,
    meminfo: Meminfo | None,
    queue: list[WaitingRequestJson],
    requests: int,
) -> GatewayState:
    views = list(views)
    statuses = [view.status for view in views if view.status]
    return {
        "models": [_model_state(view) for view in views],
        "memory": {
            "total_bytes": meminfo.total_bytes if meminfo else None,
            "ceiling_bytes": ceiling_bytes,
            "loaded_bytes": sum(model.bytes for model in statuses if model.phase != "off"),
            "available_bytes": meminfo.available_bytes if meminfo else None,
        },
        "waiting": sum(model.waiting for model in statuses),
        "queue": queue,
        "requests": requests,
    }


def _model_state(view: ModelView) -> ModelStateJson:
    config, model, running, progress = view.config, view.status, view.running, view.progress
    preview = view.preview
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
    }
