"""Reads the state of the gateway and its models (`gateway/state.py`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from heapq import nsmallest

from firesteel import __version__
from firesteel.facts.host.gpus import GpuReading
from firesteel.facts.host.hardware import Meminfo
from firesteel.gateway.admin import status
from firesteel.gateway.admin.health_sentence import health_sentence
from firesteel.gateway.curves.sampler import RecentActivity
from firesteel.gateway.executor import ModelView
from firesteel.gateway.request_record import RequestRecord
from firesteel.gateway.service_config import ServiceConfig
from firesteel.gateway.state import GatewayState, GpuStatus, MemoryStatus, ModelStatus, WaitingRequest

_SHOWN_WAITING = 50


def gateway_state(
    views: Iterable[ModelView],
    config: ServiceConfig,
    memory: Meminfo | None,
    gpu: GpuReading | None,
    recent: Callable[[str], RecentActivity],
    queue: tuple[WaitingRequest, ...],
    requests: int,
) -> GatewayState:
    views = list(views)
    scheduled = [view.status for view in views if view.status]
    return GatewayState(
        version=__version__,
        models=tuple(_model_status(view, recent(view.config.name), gpu) for view in views),
        memory=MemoryStatus(
            ceiling_bytes=config.ceiling_bytes,
            loaded_bytes=sum(model.bytes for model in scheduled if model.phase != "off"),
            available_bytes=memory.available_bytes if memory else None,
            total_bytes=memory.total_bytes if memory else None,
            # What `run.start.options` gives the guard.
            floor_bytes=config.keep_free_bytes // 2 or None,
        ),
        gpu=GpuStatus(gpu.temperature_c, gpu.power_w, gpu.clock_mhz, gpu.throttle) if gpu else None,
        waiting=sum(model.waiting for model in scheduled),
        queue=queue,
        requests=requests,
    )


def oldest_waiting(
    waiting: Iterable[RequestRecord], doing: Callable[[str], str]
) -> tuple[WaitingRequest, ...]:
    """The requests that have waited longest. `doing` says what happens for the requests of a model."""
    oldest = nsmallest(_SHOWN_WAITING, waiting, key=lambda record: record.waits_since)
    texts = {model: doing(model) for model in {record.request.model for record in oldest}}
    return tuple(
        WaitingRequest(
            record.request.model,
            record.request.caller.name,
            round(record.waits_since, 1),
            texts[record.request.model],
        )
        for record in oldest
    )


def _model_status(view: ModelView, recent: RecentActivity, gpu: GpuReading | None) -> ModelStatus:
    config, model, running, progress = view.config, view.status, view.running, view.progress
    preview = view.preview
    is_ready = status.phase(view) == "ready"
    return ModelStatus(
        name=config.name,
        phase=status.phase(view),
        busy=model.busy if model else 0,
        waiting=model.waiting if model else 0,
        planned_bytes=config.bytes or None,
        measured_bytes=running.bytes if running and running.bytes_are != "planned" else None,
        since=round(time.time() - (time.monotonic() - model.since_s)) if model else None,
        ttl_s=config.ttl_s,
        pinned=config.pinned,
        why=(model.why if model else str(config.why_not)) or None,
        url=running.url if running else config.urls[0] if config.is_outside else None,
        context=config.context,
        engine=config.engine,
        doing=progress.text if progress else None,
        eta_s=progress.eta_s if progress else None,
        note=view.note or None,
        aliases=config.aliases,
        outside=config.is_outside,
        needed_bytes=(model.bytes if model else config.bytes) or None,
        load_s=None if config.is_outside else round(config.load_s, 1),
        requested=bool(preview and preview.is_requested),
        evicts=preview.evicts if preview else (),
        why_not=preview.why_not if preview else None,
        health=health_sentence(view, recent, gpu),
        tokens_per_s=recent.tokens_per_s if is_ready else None,
        kv_used=recent.kv_used if is_ready else None,
        acceptance=recent.acceptance if is_ready else None,
    )
