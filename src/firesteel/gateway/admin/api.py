"""The control side: state, load, unload, logs, events and metrics, for a page and a terminal.

    GET  /api/health                                    whether we are here; for anyone
    GET  /api/state                                     models, memory, queue
    POST /api/models/NAME/load     .../unload           202 with the model's state
    GET  /api/models/NAME/logs?lines=100&follow=1       what its engine printed; follow: as events
    GET  /api/events                                    the state, and then what changes, as events
    GET  /api/requests?limit=100&before=ID              the request log, newest first
    GET  /metrics                                       Prometheus; ours and the engines' own

An aiohttp application on a socket of its own, which only the plane reaches. The plane has asked for the key
and says in head lines who it was; it lets nobody else say so. All but the first needs an admin, and an
inference key is none. Where no keys are in use everybody on this machine is one, and `origin.py` keeps other
people's pages out.

Nothing is decided here: what is asked for goes to the desk, and what it answers is sent.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, closing, suppress
from importlib.metadata import version
from math import ceil
from pathlib import Path
from typing import Protocol, TypedDict, TypeVar

from aiohttp import web

from firesteel.edge.files.home import Home
from firesteel.gateway.admin.prometheus import CONTENT_TYPE, MetricFamily, Steps, merging, paging
from firesteel.gateway.admin.request_log import log_path, recent
from firesteel.gateway.admin.subscribers import Event
from firesteel.gateway.http.error_format import error_body
from firesteel.gateway.interfaces import Identity, Refusal
from firesteel.gateway.keys import may_control, unknown_model
from firesteel.gateway.origin import refuse_page
from firesteel.run.service import MAX_TAIL_BYTES, folder_of, last_lines

VERSION = version("firesteel")
WHO, ADMIN, HOST = "X-Firesteel-Who", "X-Firesteel-Admin", "X-Firesteel-Host"
"""Set by the plane: the key's name (empty: no keys are in use), 1 or 0, and the client's own `Host`."""
MAX_STREAMS = 64
HEARTBEAT_S = 15.0
_FOLLOW_S = 0.5
_ENGINES_S = 5.0
_GOODBYE_S = 2.0
_MAX_LINE_CHARS = 64 * 2**10
_MAX_READ_BYTES = 256 * 2**10
T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ModelStateJson(TypedDict):
    name: str
    phase: str
    busy: int
    waiting: int
    planned_bytes: int | None
    measured_bytes: int | None
    since: float | None
    """Seconds since 1970: from when on it has been in this phase."""
    ttl_s: float | None
    pinned: bool
    why: str | None
    """Why its last load failed."""
    url: str | None


class MemoryStateJson(TypedDict):
    ceiling_bytes: int | None
    loaded_bytes: int
    available_bytes: int | None


class GatewayState(TypedDict):
    models: list[ModelStateJson]
    memory: MemoryStateJson
    waiting: int


class AdminActions(Protocol):
    """What the control side needs of the desk. Called on its loop."""

    @property
    def home(self) -> Home: ...

    def state(self) -> GatewayState: ...

    def want(self, model: str, is_loaded: bool) -> Refusal | None:
        """Begins to load or unload it: None. 404: no such model; 409: not now, or never, and why."""

    def subscribe(self) -> asyncio.Queue[Event]:
        """A bounded queue of changes: `listeners.Listeners` makes them."""

    def unsubscribe(self, queue: asyncio.Queue[Event]) -> None: ...

    def metrics(self) -> Iterable[MetricFamily]:
        """`Meter.families`, with what is so now."""

    def engine_metrics(self) -> Awaitable[Mapping[str, str]]:
        """The pages of the engines that are ready, by model."""


class AdminRefusal(Exception):
    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.why)
        self.refusal = refusal


DESK = web.AppKey("desk", AdminActions)
STREAMS = web.AppKey("streams", set[asyncio.Task[object]])
ENDS = web.AppKey("ends", asyncio.Event)
"""Set: streams end, and none begins."""


def make_app(desk: AdminActions) -> web.Application:
    app = web.Application(middlewares=[_guarded], client_max_size=64 * 2**10)
    app[DESK] = desk
    app[STREAMS] = set()
    app[ENDS] = asyncio.Event()
    app.on_shutdown.append(_end_streams)
    app.add_routes(
        [
            web.get("/api/health", _health),
            web.get("/api/state", _state),
            web.post("/api/models/{name}/load", _load),
            web.post("/api/models/{name}/unload", _unload),
            web.get("/api/models/{name}/logs", _logs),
            web.get("/api/events", _events),
            web.get("/api/requests", _requests),
            web.get("/metrics", _metrics),
        ]
    )
    return app


async def start(desk: AdminActions, path: Path) -> web.AppRunner:
    """Serves on a unix socket of its owner's: whoever reaches it says who they are. `cleanup()` ends it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    runner = web.AppRunner(
        make_app(desk), handler_cancellation=True, access_log=None, shutdown_timeout=_GOODBYE_S
    )
    await runner.setup()
    mask = os.umask(0o177)
    try:
        await web.UnixSite(runner, str(path)).start()
    finally:
        os.umask(mask)
    return runner


def end_streams(runner: web.AppRunner) -> None:
    """At the beginning of a drain: a page that listens to events would listen for as long as it is let."""
    _cut_streams(runner.app)


async def _end_streams(app: web.Application) -> None:
    _cut_streams(app)


def _cut_streams(app: web.Application) -> None:
    if not app[ENDS].is_set():
        app[ENDS].set()
        streams = app[STREAMS]
        for task in list(streams):
            task.cancel()


# Who may


@web.middleware
async def _guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        if request.path != "/api/health" and (refusal := _refusal(request)):
            return _refused(refusal)
        return await handler(request)
    except AdminRefusal as error:
        return _refused(error.refusal)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return _refused(
            Refusal(error.status, _kind(error.status), f"{request.method} {request.path}: {error.reason}")
        )
    except (ConnectionError, asyncio.CancelledError):
        raise
    except Exception:
        logging.getLogger(__name__).exception(
            "the control side failed at %s %s", request.method, request.path
        )
        return _refused(
            Refusal(500, "internal_error", "the gateway met a fault of its own; its log has more.")
        )


def _refusal(request: web.Request) -> Refusal | None:
    names, admins = request.headers.getall(WHO, []), request.headers.getall(ADMIN, [])
    hosts = request.headers.getall(HOST, [])
    if not len(names) == len(admins) == len(hosts) == 1:  # then it was not the plane who asked
        return Refusal(403, "permission_denied", "it was not said, once, who asks.")
    page = refuse_page(
        request.method,
        hosts[0],
        request.headers.get("Origin"),
        request.headers.get("Sec-Fetch-Site"),
        has_keys=bool(names[0]),
    )
    return page or may_control(Identity(names[0], is_admin=admins[0] == "1"))


def _refused(refusal: Refusal) -> web.Response:
    headers = {"Cache-Control": "no-store"}
    if refusal.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, ceil(refusal.retry_after_s)))
    body = error_body(refusal, "openai")
    return web.Response(status=refusal.status, body=body, content_type="application/json", headers=headers)


def _kind(status: int) -> str:
    return {404: "not_found", 405: "method_not_allowed", 413: "too_large"}.get(status, "bad_request")


# What there is


async def _health(request: web.Request) -> web.Response:
    return _json({"status": "ok", "version": VERSION})


async def _state(request: web.Request) -> web.Response:
    return _json(_whole_state(request))


def _whole_state(request: web.Request) -> dict[str, object]:
    return {"version": VERSION, **request.app[DESK].state()}


def _json(found: object, status: int = 200) -> web.Response:
    text = json.dumps(found, ensure_ascii=False)
    headers = {"Cache-Control": "no-store"}
    return web.Response(status=status, text=text, content_type="application/json", headers=headers)


async def _load(request: web.Request) -> web.Response:
    return _wanted(request, is_loaded=True)


async def _unload(request: web.Request) -> web.Response:
    return _wanted(request, is_loaded=False)


def _wanted(request: web.Request, *, is_loaded: bool) -> web.Response:
    name = _model(request)["name"]
    if refusal := request.app[DESK].want(name, is_loaded):
        raise AdminRefusal(refusal)
    return _json(_model(request), 202)


def _model(request: web.Request) -> ModelStateJson:
    """Only what the desk knows is looked for on a disk, or anywhere."""
    name = request.match_info["name"]
    for model in request.app[DESK].state()["models"]:
        if model["name"] == name:
            return model
    raise AdminRefusal(unknown_model(name))


async def _requests(request: web.Request) -> web.Response:
    limit = _number(request, "limit", 100, 1000)
    before = _number(request, "before", 2**62, 2**62)
    path = log_path(request.app[DESK].home)
    try:
        rows = await asyncio.to_thread(recent, path, limit, before)
    except sqlite3.Error as error:
        raise AdminRefusal(
            Refusal(503, "log_unreadable", f"the request log cannot be read: {error}")
        ) from error
    return _json({"requests": rows})


def _number(request: web.Request, name: str, default: int, most: int) -> int:
    text = request.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20 and 1 <= int(text) <= most):
        raise AdminRefusal(Refusal(400, "bad_request", f"`{name}` is a number from 1 to {most}."))
    return int(text)


async def _metrics(request: web.Request) -> web.Response:
    desk = request.app[DESK]
    own = await _gently(paging(desk.metrics()))
    body = await _gently(merging(own, await _engine_pages(desk)))
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE, "Cache-Control": "no-store"})


async def _engine_pages(desk: AdminActions) -> Mapping[str, str]:
    """Engines that do not answer cost their own figures, not ours."""
    try:
        async with asyncio.timeout(_ENGINES_S):
            return await desk.engine_metrics()
    except (TimeoutError, OSError):
        return {}


async def _gently(steps: Steps[T]) -> T:
    """Streams of others go on between two steps."""
    try:
        while True:
            next(steps)
            await asyncio.sleep(0)
    except StopIteration as done:
        result: T = done.value
        return result


# What happens


@asynccontextmanager
async def _streaming(request: web.Request) -> AsyncIterator[web.StreamResponse]:
    """Server-sent events, until the client goes or we do; then the answer is ended as a whole one."""
    streams, ends, task = request.app[STREAMS], request.app[ENDS], asyncio.current_task()
    assert task is not None
    if ends.is_set():
        raise AdminRefusal(Refusal(503, "draining", "the gateway is ending.", retry_after_s=10))
    if len(streams) >= MAX_STREAMS:
        raise AdminRefusal(
            Refusal(503, "too_many_listeners", f"{MAX_STREAMS} listen already.", retry_after_s=10)
        )
    headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    response = web.StreamResponse(headers=headers)
    streams.add(task)
    try:
        await response.prepare(request)
        try:
            yield response
        except asyncio.CancelledError:
            if not ends.is_set():
                raise
            task.uncancel()
    finally:
        streams.discard(task)


async def _send(response: web.StreamResponse, event: str, data: str) -> None:
    """`data` has no line ends."""
    await response.write(f"event: {event}\ndata: {data}\n\n".encode("utf-8", "replace"))


async def _events(request: web.Request) -> web.StreamResponse:
    desk = request.app[DESK]
    queue = desk.subscribe()  # before the state is told, so that nothing falls between
    try:
        async with _streaming(request) as response:
            await _send(response, "state", json.dumps(_whole_state(request)))
            while True:
                await _next_event(response, queue)
        return response
    finally:
        desk.unsubscribe(queue)


async def _next_event(response: web.StreamResponse, queue: asyncio.Queue[Event]) -> None:
    try:
        async with asyncio.timeout(HEARTBEAT_S):
            event = await queue.get()
    except TimeoutError:
        await response.write(b": still here\n\n")
        return
    await _send(response, str(event.get("event", "message")), json.dumps(event))


async def _logs(request: web.Request) -> web.StreamResponse:
    count = _number(request, "lines", 100, 10_000)
    name = _model(request)["name"]
    path = folder_of(request.app[DESK].home, name) / "engine.log"
    if not await asyncio.to_thread(path.is_file):
        raise AdminRefusal(Refusal(404, "no_log", f"no log is kept of `{name}`: it was never started here."))
    if request.query.get("follow") not in ("1", "true"):
        return _json({"name": name, "lines": await asyncio.to_thread(last_lines, path, count)})
    with closing(await asyncio.to_thread(LogTail, path)) as tail:
        return await _follow(request, tail, count)


async def _follow(request: web.Request, tail: LogTail, count: int) -> web.StreamResponse:
    quiet_s = 0.0
    async with _streaming(request) as response:
        lines = await asyncio.to_thread(tail.last, count)
        while True:
            for line in lines:
                await _send(response, "line", line)
            quiet_s = 0.0 if lines else quiet_s + _FOLLOW_S
            if quiet_s >= HEARTBEAT_S:
                quiet_s = 0.0
                await response.write(b": still here\n\n")
            await asyncio.sleep(_FOLLOW_S)
            lines = await asyncio.to_thread(tail.more)
    return response


class LogTail:
    """The end of a file that grows, is cut or is replaced, in whole lines.

    It is held open: else a new file could get the number of the old one, and be taken for it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("rb")
        self._rest = ""

    def close(self) -> None:
        self._file.close()

    def last(self, count: int) -> list[str]:
        self._file.seek(max(0, os.fstat(self._file.fileno()).st_size - MAX_TAIL_BYTES))
        return self._read(MAX_TAIL_BYTES)[-count:]

    def more(self) -> list[str]:
        """What came since; a file that is gone for a moment has nothing new."""
        held = os.fstat(self._file.fileno())
        with suppress(FileNotFoundError):
            found = self._path.stat()
            if (found.st_ino, found.st_dev) != (held.st_ino, held.st_dev):
                self._file.close()
                self._file, self._rest = self._path.open("rb"), ""
            elif held.st_size < self._file.tell():
                self._file.seek(0)
                self._rest = ""
        return self._read(_MAX_READ_BYTES)

    def _read(self, most: int) -> list[str]:
        text = self._rest + self._file.read(most).decode(errors="replace").replace("\r", "\n")
        *lines, self._rest = text.split("\n")
        if len(self._rest) > _MAX_LINE_CHARS:
            lines, self._rest = [*lines, self._rest], ""
        return [line[:_MAX_LINE_CHARS] for line in lines]
