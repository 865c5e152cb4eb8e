"""The admin API: state, load, unload, logs, events and metrics, for a web page and a terminal.

    GET  /api/health                                    whether the gateway runs; needs no key
    GET  /api/state                                     models, memory, queue
    POST /api/models/NAME/load     .../unload           202 with the model's state; an unload cancels a load
    POST /api/models/unload                             202; all that are not pinned, once they are idle
    POST /api/models/NAME/pin      .../unpin            202; until the service file is read again
    GET  /api/models/NAME/logs?lines=100&follow=1       the engine's output; follow: as events
    GET  /api/events                                    the state, then every change, as events
    GET  /api/requests?limit=100&before=ID&after=ID     the request log, newest first, with filters
    GET  /api/curves?range=24h&model=NAME               15m, 24h or 30d; any key, for its own models
    GET  /api/usage?by=key,model&since=DAY&format=csv   requests and tokens; any key, its own
    GET  /metrics                                       Prometheus; ours and the engines' own

An aiohttp application on a unix socket that only the HTTP server connects to. The HTTP server has checked the
key and passes the caller in header lines, which it removes from client requests. Everything but the first
path and those in `FOR_EVERY_KEY` needs an admin key. Without keys, everyone on this machine is an admin, and
`http/access.py` keeps foreign web pages out.

Nothing is decided here: requests go to the dispatcher (`AdminActions`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, closing, suppress
from math import ceil
from pathlib import Path
from typing import Protocol

import msgspec
from aiohttp import web
from msgspec import to_builtins

from firesteel import __version__
from firesteel.edge.home import Home
from firesteel.errors import FiresteelError, UsageError
from firesteel.gateway.admin import prometheus
from firesteel.gateway.admin.commands import MAX_TEXT_BYTES, CommandRunner, command_routes
from firesteel.gateway.admin.events import Event, Subscribers, publish_changes
from firesteel.gateway.admin.ollama import ollama_routes
from firesteel.gateway.admin.request_log import LOG_FILTERS, log_path, recent
from firesteel.gateway.admin.usage import csv_text, parse_query, read_report
from firesteel.gateway.http.access import reject_foreign_page
from firesteel.gateway.http.messages import error_body
from firesteel.gateway.http.routes import OLLAMA_PATHS, family_of
from firesteel.gateway.interfaces import AdminRejected, Caller, Rejection
from firesteel.gateway.keys import check_admin, check_metrics, unknown_model
from firesteel.gateway.monitoring.store import RANGES, CurveRange
from firesteel.gateway.state import GatewayState, ModelStatus
from firesteel.run.service import MAX_TAIL_BYTES, folder_of, last_lines
from firesteel.values import plain

VERSION = __version__
WHO, ADMIN, HOST = "X-Firesteel-Who", "X-Firesteel-Admin", "X-Firesteel-Host"
"""Set by the HTTP server: the key's name (empty: no keys are in use), 1 or 0, and the client's own `Host`."""
MODELS = "X-Firesteel-Models"
"""Set by the HTTP server for a key that may use only these models, separated by commas."""
FOR_METRICS = "X-Firesteel-Metrics"
"""Set by the HTTP server for a key that may read /metrics and nothing else."""
FOR_EVERY_KEY = frozenset(("/api/curves", "/api/usage", *(path.decode() for path in OLLAMA_PATHS)))
"""Open to an inference key, for its own models."""
_ENGINE_PAGES_S = 5.0
_SHUTDOWN_S = 2.0
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class AdminActions(Protocol):
    """What the admin API needs from the dispatcher. Called on its loop."""

    @property
    def home(self) -> Home: ...

    @property
    def subscribers(self) -> Subscribers: ...

    def state(self) -> GatewayState: ...

    def set_loaded(self, model: str, is_loaded: bool) -> Rejection | None:
        """Begin to load or unload: None. 404: no such model; 409: not possible, and why."""

    def set_pinned(self, model: str, is_pinned: bool) -> Rejection | None:
        """Keep it loaded, or no longer, until the service file is read again."""

    async def curves_document(self, resolution: CurveRange, models: frozenset[str] | None) -> str:
        """As JSON. `models` None: all, and the machine's own curves."""

    def metrics(self) -> Iterable[prometheus.MetricFamily]: ...

    async def engine_metrics(self) -> Mapping[str, str]:
        """The metrics pages of the engines that are ready, by model."""


ACTIONS = web.AppKey("actions", AdminActions)


def make_app(actions: AdminActions, run_command: CommandRunner | None = None) -> web.Application:
    """`run_command` answers what the planner, the rules and the history of runs know (`commands.py`)."""
    app = web.Application(middlewares=[_authorize], client_max_size=MAX_TEXT_BYTES)
    app[ACTIONS] = actions
    app[STREAMS] = set()
    app[IS_ENDING] = asyncio.Event()
    app.on_shutdown.append(_on_shutdown)
    app.cleanup_ctx.append(_watching_state)
    app.add_routes(
        [
            web.get("/api/health", _health),
            web.get("/api/state", _state),
            web.post(
                "/api/models/{name}/load", _change(lambda actions, name: actions.set_loaded(name, True))
            ),
            web.post(
                "/api/models/{name}/unload", _change(lambda actions, name: actions.set_loaded(name, False))
            ),
            web.post("/api/models/unload", _unload_all),
            web.post("/api/models/{name}/pin", _change(lambda actions, name: actions.set_pinned(name, True))),
            web.post(
                "/api/models/{name}/unpin", _change(lambda actions, name: actions.set_pinned(name, False))
            ),
            web.get("/api/models/{name}/logs", _logs),
            web.get("/api/events", _events),
            web.get("/api/requests", _requests),
            web.get("/api/curves", _curves),
            web.get("/api/usage", _usage),
            web.get("/metrics", _metrics),
            *ollama_routes(_visible_models),
        ]
    )
    if run_command is not None:
        app.add_routes(command_routes(run_command, lambda request: _model(request).name))
    return app


async def _watching_state(app: web.Application) -> AsyncIterator[None]:
    actions = app[ACTIONS]
    task = asyncio.ensure_future(publish_changes(actions.state, actions.subscribers))
    yield
    task.cancel()


async def start(actions: AdminActions, path: Path, run_command: CommandRunner | None = None) -> web.AppRunner:
    """Serve on a unix socket that only its owner may open: callers are trusted. `cleanup()` ends it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    runner = web.AppRunner(
        make_app(actions, run_command),
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=_SHUTDOWN_S,
    )
    await runner.setup()
    mask = os.umask(0o177)
    try:
        await web.UnixSite(runner, str(path)).start()
    finally:
        os.umask(mask)
    return runner


async def _on_shutdown(app: web.Application) -> None:
    end_streams(app)


# --- access and errors ---


@web.middleware
async def _authorize(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        if request.path != "/api/health" and (rejection := _check_access(request)):
            return _error(rejection, request.path)
        return await handler(request)
    except AdminRejected as error:
        return _error(error.rejection, request.path)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        kinds = {404: "not_found", 405: "method_not_allowed", 413: "too_large"}
        why = f"{request.method} {request.path}: {error.reason}"
        return _error(Rejection(error.status, kinds.get(error.status, "bad_request"), why), request.path)
    except (ConnectionError, asyncio.CancelledError):
        raise
    except Exception:
        logging.getLogger(__name__).exception("the admin API failed at %s %s", request.method, request.path)
        return _error(Rejection(500, "internal_error", "the gateway had an internal error; see its log."))


def _check_access(request: web.Request) -> Rejection | None:
    names, admins = request.headers.getall(WHO, []), request.headers.getall(ADMIN, [])
    hosts, models = request.headers.getall(HOST, []), request.headers.getall(MODELS, [])
    if not len(names) == len(admins) == len(hosts) == 1 or len(models) > 1:  # not sent by our HTTP server
        return Rejection(403, "permission_denied", "the request does not name its caller exactly once.")
    # The HTTP server lets pages ask about models that `cors` allows to use them; these change nothing.
    is_open = request.path.encode() in OLLAMA_PATHS
    page = reject_foreign_page(
        request.method,
        hosts[0],
        None if is_open else request.headers.get("Origin"),
        None if is_open else request.headers.get("Sec-Fetch-Site"),
        has_keys=bool(names[0]),
    )
    caller = _caller(request)
    if request.path == "/metrics":
        return page or check_metrics(caller)
    is_open = request.path in FOR_EVERY_KEY and not caller.is_for_metrics
    return page or (None if is_open else check_admin(caller))


def _caller(request: web.Request) -> Caller:
    headers = request.headers
    models = None if MODELS not in headers else frozenset(headers[MODELS].split(","))
    is_for_metrics = headers.get(FOR_METRICS) == "1"
    return Caller(headers[WHO], headers[ADMIN] == "1", models, is_for_metrics=is_for_metrics)


def _visible_models(request: web.Request) -> list[ModelStatus]:
    """Those that the caller may use."""
    models, state = _caller(request).models, request.app[ACTIONS].state()
    return [model for model in state.models if models is None or model.name in models]


def _error(rejection: Rejection, path: str = "") -> web.Response:
    headers = {"Cache-Control": "no-store"}
    if rejection.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, ceil(rejection.retry_after_s)))
    body = error_body(rejection, family_of(path.encode()))
    return web.Response(status=rejection.status, body=body, content_type="application/json", headers=headers)


# --- state and actions ---


async def _health(request: web.Request) -> web.Response:
    return _json({"status": "ok", "version": VERSION})


async def _state(request: web.Request) -> web.Response:
    return _json(to_builtins(request.app[ACTIONS].state()))


def _json(content: object, status: int = 200) -> web.Response:
    text = json.dumps(content, ensure_ascii=False)
    headers = {"Cache-Control": "no-store"}
    return web.Response(status=status, text=text, content_type="application/json", headers=headers)


def _change(begin: Callable[[AdminActions, str], Rejection | None]) -> Handler:
    """Begin a change of the model that the path names."""

    async def handle(request: web.Request) -> web.Response:
        if rejection := begin(request.app[ACTIONS], _model(request).name):
            raise AdminRejected(rejection)
        return _json(to_builtins(_model(request)), 202)

    return handle


async def _unload_all(request: web.Request) -> web.Response:
    """Those that run; a pinned model and one that runs outside firesteel stay."""
    actions = request.app[ACTIONS]
    loaded = [m.name for m in actions.state().models if m.phase == "ready" and not m.pinned]
    return _json({"unloading": [name for name in loaded if actions.set_loaded(name, False) is None]}, 202)


def _model(request: web.Request) -> ModelStatus:
    """Only names that the dispatcher knows are used in paths."""
    name = request.match_info["name"]
    for model in request.app[ACTIONS].state().models:
        if model.name == name:
            return model
    raise AdminRejected(unknown_model(name))


async def _requests(request: web.Request) -> web.Response:
    limit = _number(request, "limit", 100, 1000)
    before, after = _number(request, "before", 2**62, 2**62), _number(request, "after", 0, 2**62)
    path = log_path(request.app[ACTIONS].home)
    filters = {name: request.query[name] for name in LOG_FILTERS if request.query.get(name)}
    try:
        rows = await asyncio.to_thread(recent, path, limit, before, after, filters)
    except sqlite3.Error as error:
        why = f"the request log cannot be read: {error}"
        raise AdminRejected(Rejection(503, "log_unreadable", why)) from error
    return _json({"requests": rows})


async def _curves(request: web.Request) -> web.Response:
    name = request.query.get("range", "15m")
    if name not in RANGES:
        raise AdminRejected(Rejection(400, "bad_request", f"`range` must be one of {', '.join(RANGES)}."))
    caller, state = _caller(request), request.app[ACTIONS].state()
    visible = {model.name for model in state.models}
    visible = visible if caller.models is None else visible & caller.models
    wanted = request.query.getall("model", [])
    if unknown := next((model for model in wanted if model not in visible), None):
        raise AdminRejected(unknown_model(unknown))
    models: frozenset[str] | None = frozenset(wanted or visible)
    if not wanted and caller.is_admin:
        models = None  # with the machine's own curves, and those of models that left the service file
    try:
        text = await request.app[ACTIONS].curves_document(RANGES[name], models)
    except sqlite3.Error as error:
        why = f"the curves cannot be read: {error}"
        raise AdminRejected(Rejection(503, "curves_unreadable", why)) from error
    headers = {"Cache-Control": "no-store"}
    return web.Response(text=text, content_type="application/json", headers=headers)


async def _usage(request: web.Request) -> web.Response:
    return await usage_response(request, _caller(request), request.app[ACTIONS].home)


def _number(request: web.Request, name: str, default: int, maximum: int) -> int:
    text = request.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20 and 1 <= int(text) <= maximum):
        raise AdminRejected(Rejection(400, "bad_request", f"`{name}` must be a number from 1 to {maximum}."))
    return int(text)


async def _metrics(request: web.Request) -> web.Response:
    actions = request.app[ACTIONS]
    own = await prometheus.render(actions.metrics())
    engines: Mapping[str, str] = {}
    with suppress(TimeoutError, OSError):  # only the engines' metrics are missing
        async with asyncio.timeout(_ENGINE_PAGES_S):
            engines = await actions.engine_metrics()
    body = await prometheus.merge(own, engines)
    headers = {"Content-Type": prometheus.CONTENT_TYPE, "Cache-Control": "no-store"}
    return web.Response(body=body, headers=headers)


# --- event streams ---
#
# Bounded in number, kept alive, and ended when the gateway ends. One of them follows a log file that grows,
# is truncated or is replaced.

MAX_STREAMS = 64
HEARTBEAT_S = 15.0
_FOLLOW_S = 0.5
STREAMS = web.AppKey("streams", set[asyncio.Task[object]])
IS_ENDING = web.AppKey("is_ending", asyncio.Event)
"""Set: streams end, and none begins."""


def end_streams(app: web.Application) -> None:
    """Call at the beginning of a drain: event streams do not end by themselves."""
    if not app[IS_ENDING].is_set():
        app[IS_ENDING].set()
        streams = app[STREAMS]
        for task in list(streams):
            task.cancel()


@asynccontextmanager
async def streaming(request: web.Request) -> AsyncIterator[web.StreamResponse]:
    """Server-sent events until the client leaves or the gateway ends; then the response ends properly."""
    streams, is_ending, task = request.app[STREAMS], request.app[IS_ENDING], asyncio.current_task()
    assert task is not None
    if is_ending.is_set():
        raise AdminRejected(Rejection(503, "draining", "the gateway is shutting down.", retry_after_s=10))
    if len(streams) >= MAX_STREAMS:
        why = f"there are already {MAX_STREAMS} event streams."
        raise AdminRejected(Rejection(503, "too_many_listeners", why, retry_after_s=10))
    headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    response = web.StreamResponse(headers=headers)
    streams.add(task)
    try:
        await response.prepare(request)
        try:
            yield response
        except asyncio.CancelledError:
            if not is_ending.is_set():
                raise
            task.uncancel()
        except ConnectionResetError:
            pass  # the page was closed
    finally:
        streams.discard(task)


async def send_event(response: web.StreamResponse, event: str, data: str) -> None:
    """`data` must not contain line breaks."""
    await response.write(f"event: {event}\ndata: {data}\n\n".encode("utf-8", "replace"))


async def send_next(response: web.StreamResponse, queue: asyncio.Queue[Event]) -> None:
    try:
        async with asyncio.timeout(HEARTBEAT_S):
            event = await queue.get()
    except TimeoutError:
        await response.write(b": still here\n\n")
        return
    await send_event(response, str(event.get("event", "message")), json.dumps(event))


async def follow_log(request: web.Request, tail: LogTail, count: int) -> web.StreamResponse:
    quiet_s = 0.0
    async with streaming(request) as response:
        lines = await asyncio.to_thread(tail.last, count)
        while True:
            for line in lines:
                await send_event(response, "line", line)
            quiet_s = 0.0 if lines else quiet_s + _FOLLOW_S
            if quiet_s >= HEARTBEAT_S:
                quiet_s = 0.0
                await response.write(b": still here\n\n")
            await asyncio.sleep(_FOLLOW_S)
            lines = await asyncio.to_thread(tail.more)
    return response


_MAX_LINE_CHARS = 64 * 2**10
_MAX_READ_BYTES = 256 * 2**10


class LogTail:
    """Keeps the file open: otherwise a new file could get the inode of the old one and be taken for it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("rb")
        self._partial_line = ""

    def close(self) -> None:
        self._file.close()

    def last(self, count: int) -> list[str]:
        self._file.seek(max(0, os.fstat(self._file.fileno()).st_size - MAX_TAIL_BYTES))
        return self._read(MAX_TAIL_BYTES)[-count:]

    def more(self) -> list[str]:
        """Lines since the last call; a file that is missing for a moment has none."""
        opened = os.fstat(self._file.fileno())
        with suppress(FileNotFoundError):
            current = self._path.stat()
            if (current.st_ino, current.st_dev) != (opened.st_ino, opened.st_dev):
                self._file.close()
                self._file, self._partial_line = self._path.open("rb"), ""
            elif opened.st_size < self._file.tell():
                self._file.seek(0)
                self._partial_line = ""
        return self._read(_MAX_READ_BYTES)

    def _read(self, max_bytes: int) -> list[str]:
        text = self._partial_line + self._file.read(max_bytes).decode(errors="replace").replace("\r", "\n")
        *lines, self._partial_line = text.split("\n")
        if len(self._partial_line) > _MAX_LINE_CHARS:
            lines, self._partial_line = [*lines, self._partial_line], ""
        return [line[:_MAX_LINE_CHARS] for line in lines]


async def _events(request: web.Request) -> web.StreamResponse:
    subscribers = request.app[ACTIONS].subscribers
    queue = subscribers.subscribe()  # before the state is sent, so that no change is missed
    try:
        async with streaming(request) as response:
            text = msgspec.json.encode(request.app[ACTIONS].state()).decode()
            await send_event(response, "state", text)
            while True:
                await send_next(response, queue)
        return response
    finally:
        subscribers.unsubscribe(queue)


async def _logs(request: web.Request) -> web.StreamResponse:
    count = _number(request, "lines", 100, 10_000)
    name = _model(request).name
    path = folder_of(request.app[ACTIONS].home, name) / "engine.log"
    if not await asyncio.to_thread(path.is_file):
        raise AdminRejected(Rejection(404, "no_log", f"`{name}` has no log: it was never started here."))
    if request.query.get("follow") not in ("1", "true"):
        return _json({"name": name, "lines": await asyncio.to_thread(last_lines, path, count)})
    with closing(await asyncio.to_thread(LogTail, path)) as tail:
        return await follow_log(request, tail, count)


async def usage_response(request: web.Request, caller: Caller, home: Home) -> web.Response:
    """`GET /api/usage`: what `firesteel serve usage` shows. Other keys than an admin's see their own."""
    options: dict[str, str | None] = dict(request.query)
    if not caller.is_admin:
        options["key"] = caller.name
    try:
        report = await asyncio.to_thread(read_report, home, parse_query(options), time.time())
    except UsageError as error:
        raise AdminRejected(Rejection(400, "bad_request", f"{error.what}.")) from error
    except FiresteelError as error:
        raise AdminRejected(Rejection(503, "log_unreadable", f"{error.what}.")) from error
    is_csv = options.get("format") == "csv"
    text = csv_text(report) if is_csv else json.dumps(plain(report))
    kind, headers = "text/csv" if is_csv else "application/json", {"Cache-Control": "no-store"}
    return web.Response(text=text, content_type=kind, headers=headers)
