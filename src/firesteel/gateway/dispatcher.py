"""Who may, where to, and what became of it: keys, the swap, seats, meter and log behind one counter.

Three rooms speak to it and know nothing of each other: the plane (`talk.Desk`), the swap (`swap.Front`) and
the control side (`control.ControlDesk`). It decides nothing that the schedule decides.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from firesteel.edge.files.home import Home
from firesteel.edge.host.memory import meminfo
from firesteel.errors import HostNotReady
from firesteel.gateway.admin import status
from firesteel.gateway.admin.meter import GatewayGauges, Meter, ModelCounters, ModelGauges, route_of
from firesteel.gateway.admin.prometheus import MetricFamily
from firesteel.gateway.admin.request_log import RequestLog
from firesteel.gateway.admin.subscribers import Event, Subscribers
from firesteel.gateway.endpoints import ModelEndpoints, model_endpoints
from firesteel.gateway.executor import Executor, ModelView, Swapped
from firesteel.gateway.interfaces import (
    Endpoint,
    GatewayResponse,
    Identity,
    PendingRequest,
    Refusal,
    RequestOutcome,
    WaitStatus,
)
from firesteel.gateway.keys import KeyRing, may_ask, may_control, unknown_model
from firesteel.gateway.rate_limits import RateLimiter
from firesteel.gateway.scheduler.events import LoadRequested, RefuseRequest, RequestAbandoned

_ENGINE_S = 3.0
_HOW_REFUSED = {
    "unknown": (404, "unknown_model"),
    "full": (503, "queue_full"),
    "too large": (422, "does_not_fit"),
    "no room": (503, "no_room"),
    "failed": (503, "load_failed"),
}
"""What asking again cannot mend is no 5xx: clients repeat those by themselves."""


_REVOKED = Refusal(401, "invalid_api_key", "this key was revoked.")


class RequestRecord:
    """One request between `ask` and `finish`; to the schedule it is a name that nobody else has."""

    __slots__ = ("caller", "is_by_alias", "places", "seat", "tally")

    def __init__(self, caller: PendingRequest) -> None:
        self.caller = caller
        self.is_by_alias = False
        self.seat: Endpoint | None = None
        self.places: ModelEndpoints
        self.tally: ModelCounters
        """These two are there with the seat."""


class RequestDispatcher:
    def __init__(
        self,
        home: Home,
        ring: KeyRing,
        log: RequestLog,
        tell: Callable[[str, str], None],
        *,
        logs_prompts: bool = False,
    ) -> None:
        """`tell` hears what there is to say to whoever looks on: a model's name or nothing, and words."""
        self.home, self._ring, self._log, self._tell = home, ring, log, tell
        self._logs_prompts = logs_prompts
        self.meter = Meter()
        self.rates = RateLimiter(ring.limits(), time.monotonic())
        self.listeners = Subscribers()
        self.is_draining = False
        self.control: Endpoint | None = None
        self.swap: Executor
        self._answers: Callable[[str], tuple[bool, ...]] = lambda model: ()
        self._cases: dict[PendingRequest, RequestRecord] = {}
        self._waiting: dict[str, set[RequestRecord]] = {}
        self._places: dict[str, ModelEndpoints] = {}
        self._aliased: dict[str, str] = {}

    def attach(self, swap: Executor, answers: Callable[[str], tuple[bool, ...]]) -> None:
        """`answers`: which replicas of an outside model do."""
        self.swap, self._answers, self._aliased = swap, answers, swap.reading.aliased
        self.meter.know(each.name for each in swap.reading.models)

    def changed(self) -> None:
        """Another service file, or other keys: what was worked out from them is worked out anew."""
        self._places.clear()
        self._aliased = self.swap.reading.aliased
        self.meter.know(each.name for each in self.swap.reading.models)
        self.listeners.tell({"event": "changed"})

    def keys_changed(self) -> None:
        """Whoever's key is gone is let go, in the middle of what it does."""
        self.rates.change(self._ring.limits(), time.monotonic())
        known = {key.name for key in self._ring.keys.values()}
        for caller in tuple(self._cases):
            if caller.who.name not in known and not self._ring.is_open:
                caller.stop(_REVOKED)

    # --- for the plane ---

    def admit(self, token: bytes | None) -> Identity | Refusal:
        who = self._ring.who(token)
        if isinstance(who, Identity):
            if who.name not in self.rates.limited:
                return who
            who = self.rates.admit(who.name, time.monotonic()) or who
        if isinstance(who, Refusal):
            self.meter.turned_away(who.kind)
        return who

    def public(self, method: bytes, path: bytes) -> GatewayResponse | None:
        is_asked = path == b"/health" and method in (b"GET", b"HEAD")
        return status.health((), self.is_draining) if is_asked else None

    def own(self, method: bytes, path: bytes, who: Identity) -> GatewayResponse | Refusal | Endpoint | None:
        if path.startswith(b"/v1/models"):
            return self._models(path, who)
        if path == b"/health" or path.startswith(b"/health/"):
            return self._health(path, who)
        if path.startswith(b"/api/") or path in (b"/metrics", b"/"):
            return may_control(who) or self.control
        return None

    def ask(self, caller: PendingRequest) -> None:
        case = self._cases[caller] = RequestRecord(caller)
        if caller.model in self._aliased:  # from here on it has one name, for keys, the schedule and the log
            case.is_by_alias, caller.model = True, self._aliased[caller.model]
        who = caller.who
        if who.models is not None and (refusal := may_ask(who, caller.model)):
            caller.refused(refusal)
            return
        self.swap.ask(case, caller.model, who.priority)
        if case.seat is None and caller in self._cases:
            self._waiting.setdefault(caller.model, set()).add(case)
            caller.told(self._news(caller.model))

    def leave(self, caller: PendingRequest, waited_s: float = 0.0) -> None:
        case = self._cases.pop(caller, None)
        if case is None:
            return
        self._stop_waiting(case)
        self.swap.tell(RequestAbandoned(case))
        self._note(caller, RequestOutcome("left", waited_s=waited_s, total_s=waited_s))

    def finish(self, caller: PendingRequest, end: RequestOutcome) -> None:
        case = self._cases.pop(caller, None)
        if case is None:
            return
        seat = case.seat
        if seat is None:
            self._note(caller, end)
            return
        case.places.leave(seat)
        self.swap.finished(case)
        if end.usage is not None and caller.who.name in self.rates.limited:
            spent = (end.usage.prompt_tokens or 0) + (end.usage.completion_tokens or 0)
            self.rates.charge(caller.who.name, spent, time.monotonic())
        self._note(caller, end, seat.replica, case.tally)

    # --- for the swap ---

    def granted(self, request: Hashable, model: str) -> None:
        assert isinstance(request, RequestRecord)
        caller = request.caller
        if self._waiting:
            self._stop_waiting(request)
        found = self._places.get(model) or self._find_places(model)
        seat = found.take(caller, self._answers) if found else None
        if seat is None or found is None:
            self.swap.finished(request)
            caller.refused(Refusal(503, "engine_down", f"no server of `{model}` answers", 5.0))
            return
        if request.is_by_alias and seat.served_name is None:  # the engine knows no alias
            seat = replace(seat, served_name=model.encode())
        tally = self.meter.tally(model, caller.who.name)
        request.seat, request.places, request.tally = seat, found, tally
        caller.granted(seat, tally)

    def refused(self, refusal: RefuseRequest) -> None:
        case = refusal.request
        assert isinstance(case, RequestRecord)
        self._stop_waiting(case)
        status, kind = _HOW_REFUSED[refusal.kind]
        if refusal.kind == "failed" and refusal.retry_after_s is None:
            status, kind = 422, "cannot_be_served"
        why = refusal.why
        if refusal.kind == "unknown":
            why = f"{why}. There is {', '.join(self._names(case.caller.who)) or 'none for this key'}."
        case.caller.refused(Refusal(status, kind, why, refusal.retry_after_s))

    def told(self, model: str, news: WaitStatus) -> None:
        for case in tuple(self._waiting.get(model, ())):
            case.caller.told(news)
        self.listeners.tell({"event": "news", "model": model, "words": news.words, "eta_s": news.eta_s})

    def noted(self, model: str, words: str) -> None:
        self._places.pop(model, None)  # it may answer elsewhere from now on
        self._tell(model, words)
        self.listeners.tell({"event": "note", "model": model, "words": words})

    def swapped(self, model: str, what: Swapped, seconds: float, why: str) -> None:
        if what == "loaded":
            self.meter.loaded(model, seconds)
        elif what == "failed":
            self.meter.load_failed(model, why)
        else:
            self.meter.unloaded(model)
        self.listeners.tell({"event": what, "model": model, "seconds": round(seconds, 1), "why": why})

    # --- for the control side ---

    def state(self) -> Any:
        shown = self.swap.shown()
        held = [each.standing for each in shown if each.standing]
        return {
            "models": [self._model_state(each) for each in shown],
            "memory": {
                "ceiling_bytes": self.swap.reading.ceiling_bytes,
                "loaded_bytes": sum(each.bytes for each in held if each.phase != "off"),
                "available_bytes": _available(),
            },
            "waiting": sum(each.waiting for each in held),
        }

    def want(self, model: str, is_loaded: bool) -> Refusal | None:
        served = self.swap.served(model)
        if served is None:
            return unknown_model(model)
        if served.why_not:
            return Refusal(409, "cannot_be_served", str(served.why_not))
        if served.is_outside:
            return Refusal(
                409, "not_ours", f"`{model}` runs at {served.urls[0]}, and is not ours to start or stop"
            )
        self.swap.tell(LoadRequested(model, is_loaded))
        return None

    def subscribe(self) -> asyncio.Queue[Event]:
        return self.listeners.subscribe()

    def unsubscribe(self, queue: asyncio.Queue[Event]) -> None:
        self.listeners.unsubscribe(queue)

    def metrics(self) -> Iterable[MetricFamily]:
        held = [each.standing for each in self.swap.shown() if each.standing]
        now = GatewayGauges(
            {each.name: ModelGauges(each.phase, each.busy, each.waiting, _bytes(each)) for each in held},
            self.swap.reading.ceiling_bytes, _available(), self._log.written, self._log.dropped,
        )  # fmt: skip
        return self.meter.families(now)

    def engine_metrics(self) -> Awaitable[Mapping[str, str]]:
        return self._engine_metrics()

    # --- beside it ---

    def _models(self, path: bytes, who: Identity) -> GatewayResponse | Refusal | None:
        shown = self.swap.shown()
        if path == b"/v1/models":
            return status.model_list(shown, who)
        name = path.removeprefix(b"/v1/models/").decode("utf-8", "replace")
        name = self._aliased.get(name, name)
        found = next((each for each in shown if each.served.name == name), None)
        if found is None or may_ask(who, name):
            return unknown_model(name)
        return GatewayResponse(200, status.as_json(status.model_row(found)))

    def _health(self, path: bytes, who: Identity) -> GatewayResponse | Refusal:
        shown = self.swap.shown()
        if path == b"/health":
            return status.health(shown, self.is_draining, who)
        name = path.removeprefix(b"/health/").decode("utf-8", "replace")
        name = self._aliased.get(name, name)
        found = next((each for each in shown if each.served.name == name), None)
        if found is None or may_ask(who, name):
            return unknown_model(name)
        return status.model_health(found)

    def _find_places(self, model: str) -> ModelEndpoints | None:
        served = self.swap.served(model)
        if served is None:
            return None
        found = self._places[model] = model_endpoints(served, self.swap.up(model))
        return found

    def _news(self, model: str) -> WaitStatus:
        shown = self.swap.shown()
        mine = next((each for each in shown if each.served.name == model), None)
        loading = next((each for each in shown if status.state(each) == "loading"), None)
        return status.waiting_text(mine, loading) if mine else WaitStatus(f"waiting for {model}")

    def _note(
        self,
        caller: PendingRequest,
        end: RequestOutcome,
        replica: int = 0,
        tally: ModelCounters | None = None,
    ) -> None:
        who, route = caller.who.name, route_of(caller.path)
        (tally or self.meter.tally(caller.model, who)).finish(route, end)
        prompt = bytes(caller.body) if self._logs_prompts else None
        self._log.note(time.time(), who, caller.model, route, end, replica, prompt)

    def _stop_waiting(self, case: RequestRecord) -> None:
        model = case.caller.model
        if waiting := self._waiting.get(model):
            waiting.discard(case)
            if not waiting:
                del self._waiting[model]

    def _names(self, who: Identity) -> list[str]:
        return [
            each.name for each in self.swap.reading.models if who.models is None or each.name in who.models
        ]

    def _model_state(self, shown: ModelView) -> dict[str, Any]:
        served, standing, up = shown.served, shown.standing, shown.up
        measured = up.bytes if up and up.bytes_are != "planned" else None
        return {
            "name": served.name,
            "phase": status.state(shown),
            "busy": standing.busy if standing else 0,
            "waiting": standing.waiting if standing else 0,
            "planned_bytes": served.bytes or None,
            "measured_bytes": measured,
            "since": time.time() - (time.monotonic() - standing.since_s) if standing else None,
            "ttl_s": served.ttl_s,
            "pinned": served.pinned,
            "why": (standing.why if standing else str(served.why_not)) or None,
            "url": up.url if up else served.urls[0] if served.is_outside else None,
            "context": served.context,
            "engine": served.engine,
            "doing": shown.news.words if shown.news else None,
            "eta_s": shown.news.eta_s if shown.news else None,
            "note": shown.note or None,
        }

    async def _engine_metrics(self) -> Mapping[str, str]:
        from firesteel.edge.http import engine_client  # brings aiohttp, which only the control side needs

        ready = [each for each in self.swap.shown() if each.standing and each.standing.phase == "ready"]
        asked = {each.served.name: (each.up.url, each.up.key) for each in ready if each.up}
        asked |= {each.served.name: (each.served.urls[0], None) for each in ready if each.served.is_outside}
        pages_ = await asyncio.gather(
            *(engine_client.metrics(url, timeout_s=_ENGINE_S, key=key) for url, key in asked.values()),
            return_exceptions=True,
        )
        return {name: page for name, page in zip(asked, pages_, strict=True) if isinstance(page, str)}


def _bytes(standing: Any) -> int:
    return standing.bytes if standing.phase != "off" else 0


def _available() -> int | None:
    try:
        return meminfo().available_bytes
    except HostNotReady:
        return None
