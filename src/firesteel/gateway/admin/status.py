"""The state of the gateway and its models (`gateway/state.py`), a sentence on each model's health, the
responses about them (the list of models, health checks), and their metrics. Pure, but for the clock.

`/v1/models` is one document for both kinds of clients: OpenAI's fields, Anthropic's, and our own (`state`,
`context`, `plan`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import nsmallest
from math import ceil
from typing import Any

from firesteel import __version__
from firesteel.facts.host.gpus import GpuReading
from firesteel.facts.host.hardware import Meminfo
from firesteel.gateway.admin.prometheus import Kind, MetricFamily, MetricSample
from firesteel.gateway.endpoints import RequestRecord
from firesteel.gateway.executor import ModelView
from firesteel.gateway.interfaces import Caller, GatewayResponse, WaitStatus
from firesteel.gateway.monitoring.sampler import RECENT_S, RecentActivity
from firesteel.gateway.monitoring.store import Counts, first_quantile
from firesteel.gateway.service_config import ServiceConfig
from firesteel.gateway.state import (
    GatewayState,
    GpuStatus,
    MemoryStatus,
    ModelHealth,
    ModelStatus,
    WaitingRequest,
)
from firesteel.units import show_seconds

_SHOWN_WAITING = 50


def gateway_state(
    views: Iterable[ModelView],
    config: ServiceConfig,
    memory: Meminfo | None,
    gpu: GpuReading | None,
    recent: Callable[[str], RecentActivity],
    queue: tuple[WaitingRequest, ...],
    requests: int,
    problem: str,
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
            # What `run.spec` gives the guard.
            floor_bytes=config.keep_free_bytes // 2 or None,
        ),
        gpu=GpuStatus(gpu.temperature_c, gpu.power_w, gpu.clock_mhz, gpu.throttle) if gpu else None,
        waiting=sum(model.waiting for model in scheduled),
        queue=queue,
        requests=requests,
        problem=problem,
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
    is_ready = phase(view) == "ready"
    return ModelStatus(
        name=config.name,
        phase=phase(view),
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


# --- responses of the gateway itself ---

_EPOCH = "1970-01-01T00:00:00Z"
"""Both protocols require a date; a service file has none."""
_RETRY_S = 5
"""`Retry-After` when the waiting time is unknown."""


def model_list(views: Iterable[ModelView], caller: Caller) -> GatewayResponse:
    seen = list(views)
    rows = [_model_row(view) for view in seen if _may_see(caller, view)]
    rows += [
        _model_row(view) | {"id": alias, "display_name": alias, "alias_of": view.config.name}
        for view in seen  # clients offer only names that are in the list
        for alias in view.config.aliases
        if _may_see(caller, view) or alias in (caller.models or ())
    ]
    ends = {"first_id": rows[0]["id"], "last_id": rows[-1]["id"]} if rows else {}
    return _response(200, {"object": "list", "data": rows, "has_more": False, **ends})


def model_details(view: ModelView) -> GatewayResponse:
    return _response(200, _model_row(view))


def _model_row(view: ModelView) -> dict[str, Any]:
    config = view.config
    row = {
        "id": config.name, "object": "model", "created": 0, "owned_by": "firesteel",
        "type": "model", "display_name": config.name, "created_at": _EPOCH,
        "state": phase(view), "context": config.context, "max_model_len": config.context,
        "engine": config.engine, "pinned": config.pinned,
        "plan": {"bytes": config.bytes, "load_s": round(config.load_s, 1)} if not config.is_outside else None,
    }  # fmt: skip
    if config.why_not:
        row["why"] = str(config.why_not)
    return row


def phase(view: ModelView) -> str:
    """`off`, `loading`, `ready`, `unloading`, or `cannot`: it can never be served."""
    return view.status.phase if view.status else "cannot"


def load_left_s(view: ModelView) -> float:
    """Of a load under way. One that is later than planned has no estimate."""
    eta_s = view.progress.eta_s if view.progress else None
    return _RETRY_S if eta_s is None else eta_s


def model_health(view: ModelView) -> GatewayResponse:
    """200 for a model that would answer at once; otherwise 503, with the expected waiting time."""
    state = phase(view)
    content: dict[str, Any] = {"status": "ok" if state == "ready" else state, "model": view.config.name}
    content["state"] = state
    if view.progress:
        content["doing"] = view.progress.text
    if state == "ready":
        return _response(200, content)
    if state == "cannot":
        return _response(503, {**content, "why": str(view.config.why_not)})
    eta_s: float | None = view.config.load_s
    if state == "loading":  # only its own estimate: a load that is later than planned has none
        eta_s = view.progress.eta_s if view.progress else None
    if eta_s is not None:
        content["eta_s"] = ceil(eta_s)
    retry_s = _RETRY_S if eta_s is None else max(1, ceil(eta_s))
    return _response(503, content, ((b"Retry-After", b"%d" % retry_s),))


def health(views: Iterable[ModelView], is_draining: bool, caller: Caller | None = None) -> GatewayResponse:
    """Of the gateway itself: whether it accepts requests. Lists the models that `caller` may see."""
    models = {view.config.name: phase(view) for view in views if caller is None or _may_see(caller, view)}
    text = "draining" if is_draining else "ok"
    return _response(503 if is_draining else 200, {"status": text, "models": models})


def wait_status(view: ModelView, loading: ModelView | None) -> WaitStatus:
    """For requests that wait for a model: the progress of its load, its note, or whose load goes first.

    `loading` is the model that is being loaded now, if any.
    """
    name = view.config.name
    if view.progress:
        return view.progress
    if view.status and view.status.phase == "loading" and view.note:
        return WaitStatus(f"{name}: {view.note}")
    if loading is None or loading.config.name == name:
        evicts = view.preview.evicts if view.preview else ()
        first = f": {' and '.join(evicts)} must be unloaded first" if evicts else ""
        return WaitStatus(f"waiting for {name}{first}")
    text = f"{name}: waiting until {loading.config.name} is loaded"
    rest_s = loading.progress.eta_s if loading.progress else None
    if rest_s is None:
        return WaitStatus(text)
    eta_s = rest_s + view.config.load_s
    return WaitStatus(f"{text}, about {show_seconds(eta_s)}", eta_s)


def _may_see(caller: Caller, view: ModelView) -> bool:
    return caller.models is None or view.config.name in caller.models


def _response(
    http_status: int, content: dict[str, Any], headers: tuple[tuple[bytes, bytes], ...] = ()
) -> GatewayResponse:
    return GatewayResponse(http_status, json.dumps(content).encode(), headers=headers)


# --- is a model healthy? ---

MIN_REQUESTS = 5
MAX_BROKEN_SHARE = 0.1
FULL_KV = 0.97
"""With preemptions at any fill. vLLM fills its cache with old prefixes only when they are not counted as
used, so a cache this full holds requests that run."""
MIN_DRAFTED = 500
MIN_ACCEPTANCE = 0.1
"""Below it drafting costs more than it gains: one drafted token adds about a quarter to a step."""
MIN_LATER_TURNS = 5
SPIKE_S = 3.0
"""A later turn reads only what is new. Slower than this, and than three times the median: a spike."""
SPIKE_TIMES = 3.0
MIN_GAPS = 200


_GOOD_NEWS = ("answers again", "was already running", "was started outside the gateway")
"""Notes on a model that has just become ready; the next check removes them."""


def health_sentence(view: ModelView, recent: RecentActivity, gpu: GpuReading | None) -> ModelHealth:
    """One sentence: is the model healthy, and if not, why?

    What is watched: does it answer, do requests end well, is the GPU slowed down, is the KV cache full, are
    drafted tokens accepted, do later turns of a cached conversation start at once, does it decode as planned.
    A model that is not loaded is healthy unless its last load failed, and the wait for a load or for other
    requests is not counted as its own slowness. Thresholds are our choice unless a source is given;
    each needs enough requests, so that one slow answer does not make a model unhealthy.
    """
    name, status = view.config.name, view.status
    if status is None:
        return _verdict(False, f"{name} cannot be served: {view.config.why_not}")
    if status.phase != "ready":
        return _not_ready(view)
    problem = next(_problems(view, recent, gpu), None)
    return _verdict(False, problem) if problem else _verdict(True, f"healthy: {_doing(recent, status.busy)}")


def _verdict(ok: bool, text: str) -> ModelHealth:
    """One line: reasons of engines may have several."""
    return ModelHealth(ok, " ".join(text.split()))


def _not_ready(view: ModelView) -> ModelHealth:
    status, progress = view.status, view.progress
    assert status is not None
    if status.phase == "off":
        if status.why:
            return _verdict(False, f"its last load failed: {status.why}")
        if view.note:
            return _verdict(False, view.note)
        if view.preview and view.preview.why_not:
            return _verdict(True, f"not loaded: {view.preview.why_not}")
        return _verdict(True, "not loaded; a request loads it")
    if progress:
        left = f", about {show_seconds(progress.eta_s)} left" if progress.eta_s else ""
        return _verdict(True, f"{progress.text}{left}")
    if view.note:
        return _verdict(False, view.note)
    return _verdict(True, status.phase)


def _problems(view: ModelView, recent: RecentActivity, gpu: GpuReading | None) -> Iterator[str]:
    """The most serious first."""
    if view.note and not any(part in view.note for part in _GOOD_NEWS):
        yield view.note
    if recent.requests >= MIN_REQUESTS and recent.broke > MAX_BROKEN_SHARE * recent.requests:
        yield f"{recent.broke} of {recent.requests} requests failed in the last {_WINDOW}; see its log"
    if gpu and gpu.throttle and not view.config.is_outside:
        hot = f" at {gpu.temperature_c:.0f} °C" if gpu.temperature_c is not None else ""
        yield f"the GPU is slowed down{hot} ({gpu.throttle}); check its cooling and its power supply"
    yield from _cache_problems(recent)
    yield from _speed_problems(view, recent)


def _cache_problems(recent: RecentActivity) -> Iterator[str]:
    if recent.preempted:
        yield (
            f"its KV cache was full: {recent.preempted} requests lost their place and started again in the "
            f"last {_WINDOW}; fewer users or a shorter context help"
        )
    if recent.kv_used is not None and recent.kv_used >= FULL_KV:
        yield f"its KV cache is {_percent(recent.kv_used)} full; fewer users or a shorter context help"
    acceptance = recent.acceptance
    if acceptance is not None and recent.drafted >= MIN_DRAFTED and acceptance < MIN_ACCEPTANCE:
        yield (
            f"only {_percent(acceptance)} of its drafted tokens are accepted: speculation slows it down; "
            "check that the drafter belongs to this model, or run without it"
        )
    later, slow_s = recent.cached_firsts, _first_s(recent.cached_firsts, 0.95, recent) or 0.0
    usual_s = _first_s(later, 0.5, recent) or 0.0
    if sum(later) >= MIN_LATER_TURNS and slow_s > max(SPIKE_S, SPIKE_TIMES * usual_s):
        yield (
            f"later turns of a conversation are slow to start, {slow_s:.1f} s at worst instead of "
            f"{usual_s:.1f} s: their prefixes fall out of the cache or wait behind long prompts"
        )


def _speed_problems(view: ModelView, recent: RecentActivity) -> Iterator[str]:
    planned = view.config.planned.decode_tokens_per_s if view.config.planned else None
    rate = stream_rate(recent)
    if planned is None or rate is None or rate >= planned.low:
        return
    yield (
        f"slower than planned: a stream gets {rate:.3g} tokens/s, the plan says {planned.low:.3g} to "
        f"{planned.high:.3g}; `firesteel verify {view.config.name}` looks for the cause"
    )


def stream_rate(recent: RecentActivity) -> float | None:
    """Tokens a second of one stream, on average; None: too few to say. By the sum of all gaps, not their
    median: with speculation several tokens arrive at once, and then none for a step."""
    gaps = sum(recent.gaps)
    if gaps < MIN_GAPS or recent.gaps_s <= 0:
        return None
    return max(1.0, recent.tokens / recent.pieces) * gaps / recent.gaps_s


def _first_s(counts: Counts, share: float, recent: RecentActivity) -> float | None:
    return first_quantile(counts, share, most=recent.unqueued_most_s)


def _doing(recent: RecentActivity, busy: int) -> str:
    parts = []
    if recent.tokens and recent.busy_s:
        parts.append(f"{_figure(recent.tokens / recent.busy_s)} tokens/s")
    if (first_s := _first_s(recent.unqueued_firsts, 0.95, recent)) is not None:
        parts.append(f"first token within {_figure(first_s, 2)} s")
    if recent.kv_used is not None:
        parts.append(f"KV cache {_percent(recent.kv_used)} used")
    if recent.acceptance is not None:
        parts.append(f"{_percent(recent.acceptance)} of drafts accepted")
    if parts and (recent.requests or recent.tokens):
        return ", ".join(parts)
    if recent.requests:
        return f"{recent.requests} {'request' if recent.requests == 1 else 'requests'} in the last {_WINDOW}"
    return "a request is running" if busy else f"no request in the last {_WINDOW}"


def _figure(value: float, digits: int = 3) -> str:
    """Never as a power of ten."""
    return f"{value:.0f}" if value >= 100 else f"{value:.{digits}g}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


_WINDOW = show_seconds(RECENT_S)


# --- the state as metrics ---


def state_families(state: GatewayState) -> Iterator[MetricFamily]:
    by_model: dict[str, tuple[str, Callable[[ModelStatus], float | None]]] = {
        "healthy": (
            "0 for a model that is not healthy; /api/state says why.",
            lambda m: int(m.health.ok) if m.health else None,
        ),
        "tokens_per_second": (
            "Tokens that the model wrote in the last five seconds.",
            lambda m: m.tokens_per_s,
        ),
        "kv_used_ratio": ("Share of the KV cache in use.", lambda m: m.kv_used),
        "draft_acceptance_ratio": (
            "Share of the drafted tokens that were accepted.",
            lambda m: m.acceptance,
        ),
    }
    for name, (help, read) in by_model.items():
        yield gauge(f"model_{name}", help, {model.name: read(model) for model in state.models}, "model")
    memory, gpu = state.memory, state.gpu
    single: dict[str, tuple[str, float | None]] = {
        "memory_total_bytes": ("Memory of the host.", memory.total_bytes),
        "memory_floor_bytes": ("The guard stops an engine when less is available.", memory.floor_bytes),
        "gpu_temperature_celsius": ("Of the GPU.", gpu.temperature_c if gpu else None),
        "gpu_power_watts": ("Of the GPU.", gpu.power_w if gpu else None),
        "gpu_clock_hertz": ("Of its processors.", (gpu.clock_mhz or 0) * 1e6 if gpu else None),
        "gpu_throttled": ("1 while heat or power slow it down.", int(bool(gpu.throttle)) if gpu else None),
    }
    for name, (help, value) in single.items():
        yield gauge(name, help, {"": value}, None)


def gauge(
    name: str, help: str, values: Mapping[str, float | None], label: str | None, *, kind: Kind = "gauge"
) -> MetricFamily:
    """One value for each of `label`; those that are not known are left out."""
    samples = (
        MetricSample("", ((label, key),) if label else (), value)
        for key, value in values.items()
        if value is not None
    )
    return MetricFamily(f"firesteel_{name}", kind, help, samples)
