"""The state of the gateway and its models, as `/api/state` returns it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TypedDict

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


class MemoryStateJson(TypedDict):
    ceiling_bytes: int | None
    loaded_bytes: int
    available_bytes: int | None


class GatewayState(TypedDict):
    models: list[ModelStateJson]
    memory: MemoryStateJson
    waiting: int


def gateway_state(
    views: Iterable[ModelView], ceiling_bytes: int | None, available_bytes: int | None
) -> GatewayState:
    views = list(views)
    statuses = [view.status for view in views if view.status]
    return {
        "models": [_model_state(view) for view in views],
        "memory": {
            "ceiling_bytes": ceiling_bytes,
            "loaded_bytes": sum(model.bytes for model in statuses if model.phase != "off"),
            "available_bytes": available_bytes,
        },
        "waiting": sum(model.waiting for model in statuses),
    }


def _model_state(view: ModelView) -> ModelStateJson:
    config, model, running, progress = view.config, view.status, view.running, view.progress
    return {
        "name": config.name,
        "phase": status.phase(view),
        "busy": model.busy if model else 0,
        "waiting": model.waiting if model else 0,
        "planned_bytes": config.bytes or None,
        "measured_bytes": running.bytes if running and running.bytes_are != "planned" else None,
        "since": time.time() - (time.monotonic() - model.since_s) if model else None,
        "ttl_s": config.ttl_s,
        "pinned": config.pinned,
        "why": (model.why if model else str(config.why_not)) or None,
        "url": running.url if running else config.urls[0] if config.is_outside else None,
        "context": config.context,
        "engine": config.engine,
        "doing": progress.text if progress else None,
        "eta_s": progress.eta_s if progress else None,
        "note": view.note or None,
    }
