"""Connects the parts of the gateway: authenticates a request, submits it, finds its endpoint, records it.

Three parts call it and do not know each other: the HTTP server (`interfaces.Dispatcher`), the executor
(`jobs.ExecutorListener`) and the admin API (`admin.api.AdminActions`). It makes no scheduling decision. What
a request costs its key is kept by `Accounting`; `Fallbacks` says which model answers in place of another.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial
from itertools import chain
from urllib.parse import unquote_to_bytes

from firesteel.edge.home import Home
from firesteel.gateway.admin import status
from firesteel.gateway.admin.events import Subscribers
from firesteel.gateway.admin.meter import GatewayGauges, Meter, ModelCounters, ModelGauges, route_kind
from firesteel.gateway.admin.prometheus import MetricFamily
from firesteel.gateway.admin.request_log import RequestLog, charged_tokens, log_path
from firesteel.gateway.admin.usage import spent_tokens
from firesteel.gateway.cache_report import CacheReport, report
from firesteel.gateway.endpoints import ModelEndpoints, RequestRecord, model_endpoints
from firesteel.gateway.executor import Executor, ModelView
from firesteel.gateway.http.body_edits import ParameterRules, answer_size, estimated_tokens
from firesteel.gateway.http.messages import prompt_too_long
from firesteel.gateway.http.routes import OLLAMA_PATHS
from firesteel.gateway.interfaces import (
    Caller,
    Endpoint,
    FallbackReason,
    GatewayResponse,
    PendingRequest,
    Rejection,
    RequestOutcome,
    Usage,
    WaitStatus,
)
from firesteel.gateway.jobs import JobResult
from firesteel.gateway.key_limits import STEP, KeyLimiter, Reservation, TokenNeed
from firesteel.gateway.keys import (
    KeyRing,
    check_admin,
    check_metrics,
    check_model_access,
    unknown_model,
)
from firesteel.gateway.monitoring.monitoring import Monitoring, memory
from firesteel.gateway.monitoring.store import CurveRange
from firesteel.gateway.prompt_chain import PromptChains
from firesteel.gateway.scheduler.events import LoadRequested, RejectRequest, RequestAbandoned
from firesteel.gateway.service_config import ModelConfig, ModelParameters, ServiceConfig
from firesteel.gateway.state import GatewayState, WaitingRequest
from firesteel.values import replace

_FOR_EVERY_KEY = frozenset((b"/api/curves", b"/api/usage", *OLLAMA_PATHS))
"""Paths of the admin API that an inference key may use, for its own models; `admin.api` has them too."""
_STATUS_OF_REJECTION = {
    "unknown": (404, "unknown_model"),
    "full": (503, "queue_full"),
    "too large": (422, "does_not_fit"),
    "no memory": (503, "no_room"),
    "failed": (503, "load_failed"),
    "cancelled": (422, "load_cancelled"),
}
"""Not 5xx where a retry cannot help: clients repeat those by themselves."""
_UNSTREAMED = 32_768
"""Tokens of an answer that sets no limit, from a server whose context is not known..."""
_SHORT = 4_096
"""... and how many such a server must be able to make: below that, the answer is given a limit."""
_REVOKED = Rejection(401, "invalid_api_key", "this key was revoked.")


class RequestDispatcher:
    def __init__(
        self,
        home: Home,
        ring: KeyRing,
        log: RequestLog,
        notify: Callable[[str, str], None],
        *,
        logs_prompts: bool = False,
    ) -> None:
        """`notify` gets a model's name (or an empty string) and a message for the operator."""
        self.home, self._ring, self._notify = home, ring, notify
        self.accounting = Accounting(home, ring, log, notify, logs_prompts=logs_prompts)
        self.meter, self._rates = self.accounting.meter, self.accounting.limiter.rates
        self.subscribers = Subscribers()
        self.is_draining = False
        self.page_files: Mapping[bytes, GatewayResponse] = {}
        """By path. Public: what they show comes from the admin API, which needs a key."""
        self.admin_endpoint: Endpoint | None = None
        self.executor: Executor
        self.monitoring: Monitoring
        self._replica_health: Callable[[str], tuple[bool, ...]] = lambda model: ()
        self._records: dict[PendingRequest, RequestRecord] = {}
        self._waiting: dict[str, set[RequestRecord]] = {}
        self._endpoints: dict[str, ModelEndpoints] = {}
        self._chains = PromptChains()
        self._count_cached: set[str] = set()
        """Models whose engine has said at least once how much of a prompt was cached."""
        self._aliases: Mapping[str, str] = {}
        self._fallbacks: Fallbacks
        self._contexts: dict[str, int] = {}
        """Limits of prompts, by model and alias."""

    def attach(self, executor: Executor, replica_health: Callable[[str], tuple[bool, ...]]) -> None:
        """`replica_health` tells which replicas of an outside model answer."""
        self.executor, self._replica_health = executor, replica_health
        self.monitoring = Monitoring(
            self.home,
            executor,
            self.meter,
            queue=self._queue,
            logged=lambda: self.accounting.log.written,
            notify=lambda text: self.noted("", text),
        )
        self._use_config()

    def config_changed(self) -> None:
        self._endpoints.clear()
        self._use_config()
        self.subscribers.publish({"event": "changed"})

    def keys_changed(self) -> None:
        """Stop the requests of revoked keys, also in mid-answer; those from before the first key continue."""
        self.accounting.use_limits(self._ring)
        known = {"", *(key.name for key in self._ring.keys.values())}
        for request in tuple(self._records):
            if request.caller.name not in known:
                request.stop(_REVOKED)

    def _use_config(self) -> None:
        config = self.executor.config
        self._aliases, self._fallbacks = config.aliased, Fallbacks(config)
        self._ring.use_models((*config.by_name, *self._aliases))
        self._contexts = config.context_limits
        self.meter.add_models(model.name for model in config.models)

    # --- for the HTTP server ---

    def admit(self, token: bytes | None) -> Caller | Rejection:
        caller = self._ring.authenticate(token)
        if isinstance(caller, Caller):
            if caller.name not in self._rates.limited:
                return caller
            caller = self._rates.admit(caller.name, time.monotonic()) or caller
        if isinstance(caller, Rejection):
            self.meter.rejected_early(caller.kind)
        return caller

    def public_response(self, method: bytes, path: bytes) -> GatewayResponse | None:
        if method not in (b"GET", b"HEAD"):
            return None
        return status.health((), self.is_draining) if path == b"/health" else self.page_files.get(path)

    def local_target(
        self, method: bytes, path: bytes, caller: Caller
    ) -> GatewayResponse | Rejection | Endpoint | None:
        if path == b"/v1/models":
            return status.model_list(self.executor.views(), caller)
        if path == b"/health":
            return status.health(self.executor.views(), self.is_draining, caller)
        if path.startswith(b"/v1/models/"):
            view = self._visible_model(unquote_to_bytes(path.removeprefix(b"/v1/models/")), caller)
            return view if isinstance(view, Rejection) else status.model_details(view)
        if path.startswith(b"/health/"):
            view = self._visible_model(unquote_to_bytes(path.removeprefix(b"/health/")), caller)
            return view if isinstance(view, Rejection) else status.model_health(view)
        if path == b"/metrics":
            return check_metrics(caller) or self.admin_endpoint
        if path.startswith(b"/api/"):
            is_open = path in _FOR_EVERY_KEY and not caller.is_for_metrics
            return (None if is_open else check_admin(caller)) or self.admin_endpoint
        return self.page_files.get(path) if method in (b"GET", b"HEAD") else None

    def submit(self, request: PendingRequest) -> None:
        record = self._records[request] = RequestRecord(request)
        asked, caller = request.model, request.caller
        if asked in self._aliases:  # from here on only its name is used: scheduler, log
            request.model = self._aliases[asked]
        if caller.models is not None and (rejection := check_model_access(caller, asked, request.model)):
            request.rejected(rejection)
            return
        if caller.has_reservation and (rejection := self._reserve(record)):
            request.rejected(rejection)
            return
        limit = self._contexts.get(asked)
        if limit is not None and (rejection := check_length(request, asked, limit)):
            if not self._fall_back(record, "too_long"):
                request.rejected(rejection)
            return
        self._enqueue(record)

    def _reserve(self, record: RequestRecord) -> Rejection | None:
        """When a request is complete, not before: a key that has used its budget can still ask for its
        usage."""
        request = record.request
        config = self.executor.model_config(request.model)
        need = _need(request, config, record.asked)
        if isinstance(need, Rejection):
            return need
        held = self.accounting.reserve(request.caller, need)
        if isinstance(held, Rejection):
            return held
        record.reservation = held
        answer = held.budget - need.prompt
        if need.is_stream and held.is_open and held.tokens:
            request.meter(held)
        elif held.is_open and held.budget and answer < (need.most if config and config.context else _SHORT):
            record.answer_limit = answer
        return None

    def extend(self, request: PendingRequest) -> Rejection | None:
        record = self._records.get(request)
        held = record.reservation if record is not None else None
        return None if held is None else self.accounting.extend(held)

    def check_direct(self, model: str, caller: Caller, *, is_path: bool) -> Rejection | None:
        view = self._visible_model(model.encode(), caller)
        if isinstance(view, Rejection):
            return view
        if is_path and not view.config.upstream:
            why = f"`{model}` is open on its API only. The service file can open its paths: `upstream: true`."
            return Rejection(404, "unknown_path", why)
        return self._ring.check_uncounted(caller)

    def _enqueue(self, record: RequestRecord) -> None:
        request = record.request
        caller = request.caller
        self.executor.submit(record, request.model, caller.priority, caller.name)
        if record.endpoint is None and request in self._records:
            self._begin_waiting(record)
            request.update_wait_status(self._wait_status(request.model))

    def sent(self, request: PendingRequest, prompt: bytes) -> None:
        record = self._records.get(request)
        if record is None or record.endpoint is None:
            return
        engine = request.model, record.endpoint.replica
        if record.seen is None:
            asyncio.get_running_loop().call_soon(self._follow, record, engine, prompt)
        else:  # once more, after the first try failed
            record.seen.now.model, record.seen.now.replica = engine

    def _follow(self, record: RequestRecord, engine: tuple[str, int], prompt: bytes) -> None:
        """Later than its first byte, and than what else the loop has to do."""
        record.seen = self._chains.take(record.request.caller.name, record.asked, prompt, engine)

    def _cache_report(self, record: RequestRecord, outcome: RequestOutcome) -> CacheReport | None:
        """What was read again that could have been cached."""
        seen, usage, model = record.seen, outcome.usage, record.request.model
        if seen is None or outcome.how != "whole" or outcome.status != 200:
            return None
        seen.now.was_answered = True
        if usage is not None and usage.cached_tokens is not None:
            self._count_cached.add(model)
        if seen.before is None and seen.cause is None:
            return None
        config = self.executor.config
        cures = config.cures.get(record.request.agent.partition("/")[0])
        planned = config.by_name[model].planned if model in config.by_name else None
        return report(seen, outcome, planned, cures, counts_cached=model in self._count_cached)

    def abandon(self, request: PendingRequest, waited_s: float = 0.0) -> None:
        record = self._records.pop(request, None)
        if record is None:
            return
        self._stop_waiting(record)
        self.executor.finish(record) if record.is_between else self.executor.handle(RequestAbandoned(record))
        outcome = RequestOutcome("left", waited_s=waited_s, total_s=waited_s)
        self.accounting.record(request, outcome, held=record.reservation)

    def retry(self, request: PendingRequest, reason: FallbackReason) -> bool:
        """By another replica while there are retries left, or by the fallback of its model."""
        record = self._records.get(request)
        if record is None or (endpoint := record.endpoint) is None:
            return False
        endpoints = record.endpoints
        if reason != "too_long" and endpoints.may_retry(endpoint, record.retries, time.monotonic()):
            record.retries += 1
            record.is_between = True
            resume = partial(self._grant_again, record)
        elif self._fallbacks.model_for(record, reason):
            self.executor.finish(record)
            resume = partial(self._resume_elsewhere, record, reason)
        else:
            return False
        endpoints.release(endpoint)
        record.endpoint = None
        asyncio.get_running_loop().call_soon(resume)  # the caller is not ready for an answer yet
        return True

    def _grant_again(self, record: RequestRecord) -> None:
        record.is_between = False
        if record.request in self._records:
            self.granted(record, record.request.model)

    def _resume_elsewhere(self, record: RequestRecord, reason: FallbackReason) -> None:
        request = record.request
        if not self._fall_back(record, reason) and request in self._records:  # the file has just changed
            request.rejected(Rejection(503, "engine_down", f"`{request.model}` cannot serve this", 5.0))

    def _fall_back(self, record: RequestRecord, reason: FallbackReason) -> bool:
        if record.request not in self._records or not self._fallbacks.switch(record, reason):
            return False
        self._enqueue(record)
        return True

    def hold(self, request: PendingRequest, *, was_sent: bool) -> bool:
        record, model = self._records.get(request), self.executor.model_config(request.model)
        if self.retry(request, "down"):
            return True
        if record is None or record.endpoint is None or model is None or model.is_outside:
            return False
        if not record.may_be_held(was_sent=was_sent):
            return False
        self._chains.restarted(request.model)
        record.endpoints.release(record.endpoint)
        record.endpoint = None
        self._begin_waiting(record)
        request.update_wait_status(WaitStatus(f"{request.model} has failed and is restarted"))
        self.executor.hold(record, request.model, request.caller.priority, request.caller.name)
        return True

    def keep_alive(self, model: str, seconds: float, caller: Caller) -> Rejection | None:
        view = self._visible_model(model.encode(), caller)
        if isinstance(view, Rejection):
            return view
        if view.config.is_outside or view.config.pinned:
            return None
        if seconds:
            self.executor.set_ttl(view.config.name, None if seconds < 0 else seconds)
        else:
            self.executor.handle(LoadRequested(view.config.name, False))
        return None

    def finish(self, request: PendingRequest, outcome: RequestOutcome) -> None:
        record = self._records.pop(request, None)
        if record is None:
            return
        endpoint = record.endpoint
        outcome.loaded_s = record.loaded_s
        if endpoint is None:
            self.accounting.record(request, outcome, held=record.reservation)
            return
        record.endpoints.release(endpoint)
        self.executor.finish(record)
        if record.seen is not None:
            outcome.cache = self._cache_report(record, outcome)
        self.accounting.record(request, outcome, endpoint.replica, record.counters, record.reservation)

    # --- for the executor ---

    def granted(self, record: Hashable, model: str) -> None:
        assert isinstance(record, RequestRecord)
        request = record.request
        if self._waiting:
            self._stop_waiting(record)
        endpoints = self._endpoints.get(model) or self._find_endpoints(model)
        endpoint = endpoints.acquire(request, self._replica_health) if endpoints else None
        if endpoint is None or endpoints is None:
            self.executor.finish(record)
            if not self._fall_back(record, "down"):
                request.rejected(Rejection(503, "engine_down", f"no server of `{model}` answers", 5.0))
            return
        if record.asked != model:
            endpoint = endpoints.by_another_name(endpoint, record.fallback or record.asked)
        if record.answer_limit:
            endpoint = endpoints.limited(endpoint, record.answer_limit)
        counters = self.meter.counters(model, request.caller.name)
        record.endpoint, record.endpoints, record.counters = endpoint, endpoints, counters
        request.granted(endpoint, counters)

    def rejected(self, rejection: RejectRequest) -> None:
        record = rejection.request
        assert isinstance(record, RequestRecord)
        self._stop_waiting(record)
        reason = FALLBACK_REASONS.get(rejection.kind)
        if reason is not None and self._fall_back(record, reason):
            return
        http_status, kind = _STATUS_OF_REJECTION[rejection.kind]
        if rejection.kind == "failed" and rejection.retry_after_s is None:
            http_status, kind = 422, "cannot_be_served"
        why = rejection.why
        if rejection.kind == "unknown":
            models = record.request.caller.models
            names = [m.name for m in self.executor.config.models if models is None or m.name in models]
            why = f"{why}. Available: {', '.join(names) or 'none for this key'}."
        retry_after_s = rejection.retry_after_s
        if rejection.kind == "full":
            retry_after_s = max(retry_after_s or 0.0, self._next_load_s())
        record.request.rejected(Rejection(http_status, kind, why, retry_after_s))

    def load_progressed(self, model: str, wait_status: WaitStatus) -> None:
        for record in tuple(self._waiting.get(model, ())):
            record.loads_since = record.loads_since or time.time()
            record.request.update_wait_status(wait_status)
        self.subscribers.publish(
            {"event": "news", "model": model, "words": wait_status.text, "eta_s": wait_status.eta_s}
        )

    def noted(self, model: str, text: str) -> None:
        self._endpoints.pop(model, None)  # its address may have changed
        self._notify(model, text)
        self.monitoring.alerts.noted(model, text)
        self.subscribers.publish({"event": "note", "model": model, "words": text})

    def job_finished(self, model: str, result: JobResult, seconds: float, reason: str) -> None:
        self._chains.restarted(model)
        if result == "loaded":
            self.meter.loaded(model, seconds)
        elif result == "failed":
            self.meter.load_failed(model, reason)
        else:
            self.meter.unloaded(model)
        self.monitoring.alerts.job_finished(model, result)
        self.subscribers.publish(
            {"event": result, "model": model, "seconds": round(seconds, 1), "why": reason}
        )

    # --- for the admin API ---

    def state(self) -> GatewayState:
        return self.monitoring.state(with_previews=True)

    def _queue(self) -> tuple[WaitingRequest, ...]:
        waiting = (record for records in self._waiting.values() for record in records)
        return status.oldest_waiting(waiting, lambda model: self._wait_status(model).text)

    def set_loaded(self, model: str, is_loaded: bool) -> Rejection | None:
        config = self.executor.model_config(model)
        if config is None:
            return unknown_model(model)
        if config.why_not:
            return Rejection(409, "cannot_be_served", str(config.why_not))
        if config.is_outside:
            why = f"`{model}` runs at {config.urls[0]}, outside firesteel; start or stop it there"
            return Rejection(409, "not_ours", why)
        self.executor.handle(LoadRequested(model, is_loaded, cancels=not is_loaded))
        return None

    def set_pinned(self, model: str, is_pinned: bool) -> Rejection | None:
        """Until the service file is read again, which is where a pin is kept."""
        config = self.executor.model_config(model)
        if config is None:
            return unknown_model(model)
        if config.is_outside or config.why_not:
            why = f"`{model}` is not loaded by this gateway, so it stays as it is."
            return Rejection(409, "not_ours", why)
        self.executor.pin(model, is_pinned)
        return None

    def metrics(self) -> Iterable[MetricFamily]:
        statuses = [view.status for view in self.executor.views() if view.status]
        gauges = {
            model.name: ModelGauges(
                model.phase, model.busy, model.waiting, model.bytes if model.phase != "off" else 0
            )
            for model in statuses
        }
        ceiling_bytes, log, host = self.executor.config.ceiling_bytes, self.accounting.log, memory()
        available_bytes = host.available_bytes if host else None
        own = GatewayGauges(gauges, ceiling_bytes, available_bytes, log.written, log.dropped)
        return chain(self.meter.families(own), self.monitoring.families())

    async def engine_metrics(self) -> Mapping[str, str]:
        return await self.monitoring.engine_metrics()

    async def curves_document(self, resolution: CurveRange, models: frozenset[str] | None) -> str:
        return await self.monitoring.curves_document(resolution, models)

    # --- helpers ---

    def _visible_model(self, raw_name: bytes, caller: Caller) -> ModelView | Rejection:
        asked = raw_name.decode("utf-8", "replace")
        name = self._aliases.get(asked, asked)
        view = next((view for view in self.executor.views() if view.config.name == name), None)
        return unknown_model(asked) if view is None or check_model_access(caller, asked, name) else view

    def _find_endpoints(self, model: str) -> ModelEndpoints | None:
        config = self.executor.model_config(model)
        if config is None:
            return None
        running, apis = self.executor.running(model), self.executor.apis
        endpoints = self._endpoints[model] = model_endpoints(config, running, apis)
        return endpoints

    def _next_load_s(self) -> float:
        """When the load under way should end, by its own estimate, and waiting requests are served."""
        views = self.executor.views()
        left = (status.load_left_s(view) for view in views if status.phase(view) == "loading")
        return min(left, default=0.0)

    def _wait_status(self, model: str) -> WaitStatus:
        """For every request that has to wait, so it looks at two models, however many there are."""
        own, loading = self.executor.view(model), self.executor.loading()
        if own is None:
            return WaitStatus(f"waiting for {model}")
        if own.status and loading is None:
            own = replace(own, preview=self.executor.preview(model))
        return status.wait_status(own, loading)

    def _begin_waiting(self, record: RequestRecord) -> None:
        record.waits_since = time.time()
        self._waiting.setdefault(record.request.model, set()).add(record)

    def _stop_waiting(self, record: RequestRecord) -> None:
        model = record.request.model
        if record.loads_since:
            record.loaded_s, record.loads_since = time.time() - record.loads_since, 0.0
        if waiting := self._waiting.get(model):
            waiting.discard(record)
            if not waiting:
                del self._waiting[model]


FALLBACK_REASONS: dict[str, FallbackReason] = {
    "full": "full",
    "no memory": "full",
    "too large": "down",
    "failed": "down",
    "cancelled": "down",
}
"""Why the scheduler rejects a request."""


def check_length(request: PendingRequest, asked: str, limit: int) -> Rejection | None:
    """`limit`: tokens of a prompt that the model or alias takes."""
    if (tokens := estimated_tokens(request.body)) <= limit:
        return None
    return prompt_too_long(
        tokens, limit, f"`{asked}` takes that many; the prompt is estimated from its length."
    )


class Fallbacks:
    """The models that answer in place of others: `fallback` in the service file.

        models:
          coder: {recipe: ..., fallback: {down: small, full: small, too_long: big}}

    Another replica, or such a model, answers a request that its server cannot, only as long as nothing of an
    answer has reached the client. A request is sent to each replica once at most, retries have a budget
    (`endpoints.py`), and each model is tried once: a broken server gets no more load than its clients make. A
    header tells the client which model answers (`X-Firesteel-Fallback`).
    """

    def __init__(self, config: ServiceConfig) -> None:
        self._models = config.by_name
        self._aliases = config.aliased

    def model_for(self, record: RequestRecord, reason: FallbackReason) -> str | None:
        """The model or alias that serves a request instead of its own; None: there is none for this key, or
        it was tried."""
        request = record.request
        config = self._models.get(request.model)
        name = config.fallbacks.get(reason) if config else None
        model = self._aliases.get(name, name) if name else None
        if name is None or model is None or model in (request.model, *record.tried):
            return None
        return None if check_model_access(request.caller, name, model) else name

    def switch(self, record: RequestRecord, reason: FallbackReason) -> bool:
        """Make it a request for its fallback, if it has one."""
        name, request = self.model_for(record, reason), record.request
        if name is None:
            return False
        record.tried += (request.model,)
        record.fallback, record.retries = name, 0
        request.falls_back(request.model, name, reason)
        request.model = self._aliases.get(name, name)
        return True


class Accounting:
    """What requests cost their keys: rate limits and budgets, metrics, charges and the request log."""

    def __init__(
        self, home: Home, ring: KeyRing, log: RequestLog, notify: Callable[[str, str], None],
        *, logs_prompts: bool,
    ) -> None:  # fmt: skip
        self.meter = Meter()
        self.log = log
        self.limiter = KeyLimiter()
        self._log_path = log_path(home)
        self._logs_prompts, self._notify = logs_prompts, notify
        self.use_limits(ring)

    def use_limits(self, ring: KeyRing) -> None:
        self.limiter.change(ring.limits(), self._spent, time.monotonic(), time.time())

    def _spent(self, key: str, since: float, until: float) -> int:
        """A log that cannot be read is moved aside and recreated by its thread, which reports it."""
        try:
            return spent_tokens(self._log_path, key, since, until)
        except sqlite3.Error:
            return 0

    def reserve(self, caller: Caller, need: TokenNeed) -> Reservation | Rejection:
        return self.limiter.reserve(caller.name, need, time.monotonic(), time.time())

    def extend(self, held: Reservation) -> Rejection | None:
        if self.limiter.extend(held, time.monotonic(), time.time()):
            return None
        why = f"key `{held.key}` has used its budget. The answer ends here; see `firesteel serve usage`."
        return Rejection(429, "budget_exceeded", why)

    def record(
        self,
        request: PendingRequest,
        outcome: RequestOutcome,
        replica: int = 0,
        counters: ModelCounters | None = None,
        held: Reservation | None = None,
    ) -> None:
        """A request has ended. It is charged and logged with the same time, so that the sums of a day are
        the same."""
        caller, usage, now = request.caller, outcome.usage, time.time()
        key, route = caller.name, route_kind(request.path)
        if held is not None and usage is not None and usage.prompt_tokens is None:
            usage.prompt_tokens = held.prompt  # of a stream that was cut, at a server that counts at the end
        (counters or self.meter.counters(request.model, key)).finish(route, outcome)
        if held is not None:
            over = self.limiter.settle(held, charged_tokens(usage), time.monotonic(), now)
            if over:
                self._notify("", f"key `{key}` is {over:,} tokens over its budget: {_why_over(held, usage)}")
        is_charged = usage is not None and caller.has_budget
        prompt = bytes(request.body) if self._logs_prompts else None
        self.log.add(now, key, request.model, route, outcome, replica, prompt, is_charged)


def _why_over(held: Reservation, usage: Usage | None) -> str:
    prompt_tokens = usage.prompt_tokens if usage is not None else None
    if prompt_tokens is None or prompt_tokens <= held.prompt:
        return "an answer was longer than its request allowed"
    return f"a prompt was estimated at {held.prompt:,} tokens and had {prompt_tokens:,}"


def _need(request: PendingRequest, config: ModelConfig | None, asked: str) -> TokenNeed | Rejection:
    """What a request may cost. Forms, with sounds and pictures, and the
    requests of an open connection have no prompt whose tokens could be estimated."""
    body = request.body
    if body[:1] not in (b"{", b" ", b"\n", b"\r", b"\t"):
        return TokenNeed(0)
    prompt = estimated_tokens(body)
    own = config.alias_parameters.get(asked, config.parameters) if config is not None else ModelParameters()
    rules = ParameterRules(own).of(route_kind(request.path))
    if rules is None:
        return TokenNeed(prompt)
    size = answer_size(body, rules)
    if isinstance(size, Rejection):
        return size
    context = config.context if config is not None else None
    unstreamed = max(1, context - prompt) if context else _UNSTREAMED
    return TokenNeed(prompt, size.tokens, STEP if size.is_stream else unstreamed, size.is_stream)
