"""Runs the gateway: reads the service file, finds what runs already, listens, and shuts down cleanly.

    async for event in serve_file(ServeOptions(Path("firesteel.yaml")), home, ends):
        print(event.text)

When `ends` is set, it accepts no new connections, lets active requests finish for a while, stops its models
(or leaves them running, `keep_models`) and writes out the log. When the service file changes, a child process
reads it, and only what changed is touched.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from firesteel.edge.home import Home, Locked, lock, write_text
from firesteel.errors import DoesNotFit, FiresteelError, HostNotReady, Stopped, UsageError
from firesteel.gateway.address import Address, lock_path, write_address
from firesteel.gateway.admin.request_log import RequestLog, log_path
from firesteel.gateway.dispatcher import RequestDispatcher
from firesteel.gateway.executor import Executor
from firesteel.gateway.health import Health
from firesteel.gateway.http.limits import buffered_limits
from firesteel.gateway.http.server import HttpServer
from firesteel.gateway.interfaces import Endpoint
from firesteel.gateway.keys import KeyRing, keys_path, require_keys
from firesteel.gateway.loader.process import Loader, LoaderFailed, ProcessLoader
from firesteel.gateway.page import page_responses
from firesteel.gateway.periodic import BackgroundTasks, repeat
from firesteel.gateway.service_config import Reason, ServiceConfig
from firesteel.run.service import load
from firesteel.service_settings import ANY
from firesteel.units import show_seconds
from firesteel.values import Value

if TYPE_CHECKING:
    from firesteel.gateway.admin.commands import CommandRunner


_DRAIN_S = 30.0
_REFRESH_S = 1.0
_MAX_EVENTS = 1000
_ERRORS = {kind.kind: kind for kind in (FiresteelError, UsageError, Stopped, DoesNotFit, HostNotReady)}


class ServeOptions(Value):
    """How to serve a file, beyond its content."""

    file: Path
    listen: str | None = None
    """Overrides the file's."""
    cert: Path | None = None
    cert_key: Path | None = None
    cors: tuple[str, ...] | None = None
    """Overrides the file's."""
    keep_models: bool = False
    """Leave the models running when the gateway ends."""
    logs_prompts: bool = False
    page_files: Mapping[str, bytes] = {}
    """The web page, by file name."""
    run_command: CommandRunner | None = None
    """How the page's API runs `firesteel` commands; None: it has none of them."""


class ServeEvent(Value):
    """Something that happened, for the operator."""

    kind: Literal["reading", "listening", "model", "keys", "log", "file", "draining", "drained", "ended"]
    text: str
    url: str = ""
    models: tuple[str, ...] = ()


class _EventQueue:
    """Events for the operator. Those that do not fit in the queue are dropped."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[ServeEvent] = asyncio.Queue(_MAX_EVENTS)

    def put(self, event: ServeEvent) -> None:
        with suppress(asyncio.QueueFull):
            self._queue.put_nowait(event)

    async def until(self, ends: asyncio.Event) -> AsyncIterator[ServeEvent]:
        ending = asyncio.ensure_future(ends.wait())
        try:
            while not ends.is_set():
                coming = asyncio.ensure_future(self._queue.get())
                await asyncio.wait({coming, ending}, return_when=asyncio.FIRST_COMPLETED)
                if coming.done():
                    yield coming.result()
                else:
                    coming.cancel()
        finally:
            ending.cancel()


async def serve_file(options: ServeOptions, home: Home, ends: asyncio.Event) -> AsyncIterator[ServeEvent]:
    """Serve the models of a service file until `ends` is set; the file is read again whenever it changes."""
    ssl_context = _ssl_context(options)
    yield ServeEvent("reading", str(options.file))
    loader = ProcessLoader()
    first_read = file_version(str(options.file))
    config = await _read(loader, options.file)
    _require_a_model(config)
    listen = options.listen or config.listen
    ring = KeyRing.read(keys_path(home))
    require_keys(listen, ring)
    origins = config.cors if options.cors is None else options.cors
    _require_keys_for_any(origins, ring)
    events = _EventQueue()
    async with AsyncExitStack() as stack:
        _lock_home(stack, home)
        dispatcher, end_streams = await _start_dispatcher(stack, home, ring, events, options)
        executor = Executor(config, loader, dispatcher, home)
        health = Health(executor, loader, home)
        dispatcher.attach(executor, health.replica_health)
        stack.push_async_callback(executor.close, keep=options.keep_models)
        server = HttpServer(
            dispatcher, buffered_limits(config.gateway_bytes, keeps_bodies=options.logs_prompts)
        )
        server.origins = origins
        server.use_clients(config)
        stack.push_async_callback(_drain, server, dispatcher, end_streams)
        stack.push_async_callback(health.close)
        await health.start()
        await executor.start()
        dispatcher.monitoring.start()
        stack.push_async_callback(dispatcher.monitoring.close)
        url = await _listen(server, listen, ssl_context)

        served = _Served(options, home, executor, dispatcher, server, ring, events, url)
        served.publish_address()
        watch = ServiceFileWatch(
            str(options.file), loader, served.apply, served.refuse, first_read, str(home.releases_path)
        )
        watch.start()
        stack.push_async_callback(watch.close)
        ring.on_change = served.keys_changed
        refreshing = asyncio.ensure_future(_refresh_keys(ring))
        stack.callback(refreshing.cancel)
        yield _listening(url, config, ring)
        for event in _unservable(config, executor.impossible()):
            yield event
        async for event in events.until(ends):
            yield event
        yield ServeEvent(
            "draining", f"no new connections; active requests have {show_seconds(_DRAIN_S)} to finish"
        )
        yield _drained(await _drain(server, dispatcher, end_streams))
    yield ServeEvent("ended", _what_runs(home, executor.config))


class _Served(NamedTuple):
    """A gateway that listens, and what a changed service file or key changes of it."""

    options: ServeOptions
    home: Home
    executor: Executor
    dispatcher: RequestDispatcher
    server: HttpServer
    ring: KeyRing
    events: _EventQueue
    url: str

    def publish_address(self) -> None:
        """For `client`, `top` and other commands, which ask for the gateway of this home."""
        names = tuple(model.name for model in self.executor.config.models)
        certificate = str(self.options.cert.absolute()) if self.options.cert else ""
        write_address(self.home, Address(self.url, names, not self.ring.is_open, os.getpid(), certificate))

    def apply(self, changed: ServiceConfig) -> None:
        self.executor.change(changed)
        self.dispatcher.config_changed()
        self.server.change_buffers(changed.gateway_bytes)
        self.server.use_clients(changed)
        if self.options.cors is None:
            self.server.origins = _safe_origins(changed.cors, self.ring, self.events)
        for event in _unservable(changed, self.executor.impossible()):
            self.events.put(event)
        self.publish_address()
        self.dispatcher.monitoring.file_problem = ""
        self.events.put(ServeEvent("file", f"{changed.path} was read again"))

    def refuse(self, why: Reason) -> None:
        self.dispatcher.monitoring.file_problem = str(why)
        self.dispatcher.subscribers.publish({"event": "note", "model": "", "words": str(why)})
        self.events.put(ServeEvent("file", str(why)))

    def keys_changed(self, text: str) -> None:
        self.dispatcher.keys_changed()
        self.publish_address()
        self.events.put(ServeEvent("keys", text))


def _what_runs(home: Home, config: ServiceConfig) -> str:
    """As a look shows: some are kept, some were not started by this gateway, one may not have stopped."""
    services = [load(home, model.name) for model in config.models if not model.is_outside]
    running = [service.name for service in services if service and service.phase != "dead"]
    return f"still running: {', '.join(running)}" if running else "none of its models runs"


async def _start_dispatcher(
    stack: AsyncExitStack, home: Home, ring: KeyRing, events: _EventQueue, options: ServeOptions
) -> tuple[RequestDispatcher, Callable[[], None]]:
    """Return the dispatcher with its log and its admin API, and a function that ends the API's streams."""
    loop = asyncio.get_running_loop()

    def report(text: str) -> None:  # called from the log's thread
        loop.call_soon_threadsafe(events.put, ServeEvent("log", text))

    log = RequestLog(log_path(home), report=report, journal=home.root / "gateway" / "charges.jsonl")
    stack.push_async_callback(asyncio.to_thread, log.close)
    dispatcher = RequestDispatcher(
        home,
        ring,
        log,
        lambda model, text: events.put(ServeEvent("model", with_model_name(model, text))),
        logs_prompts=options.logs_prompts,
    )
    dispatcher.page_files = page_responses(options.page_files)
    dispatcher.admin_endpoint, end_streams = await _start_admin_api(
        stack, dispatcher, home, options.run_command
    )
    return dispatcher, end_streams


async def _start_admin_api(
    stack: AsyncExitStack, dispatcher: RequestDispatcher, home: Home, run_command: CommandRunner | None
) -> tuple[Endpoint, Callable[[], None]]:
    """On a socket in our own folder, addressed by a file descriptor: socket paths are limited to 107
    bytes."""
    from firesteel.gateway.admin import api  # import aiohttp

    folder = home.root / "gateway"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    stack.callback(os.close, descriptor)
    path = Path(f"/proc/{os.getpid()}/fd/{descriptor}/control.sock")
    path.unlink(missing_ok=True)
    runner = await api.start(dispatcher, path, run_command)
    stack.push_async_callback(runner.cleanup)
    return Endpoint("", str(path), authority=b"control"), lambda: api.end_streams(runner.app)


def _lock_home(stack: AsyncExitStack, home: Home) -> None:
    """One gateway per home: two would load and evict the same models."""
    try:
        stack.enter_context(lock(lock_path(home)))
    except Locked:
        raise FiresteelError(
            "another gateway serves from this FIRESTEEL_HOME",
            next="stop it first, or give this one another FIRESTEEL_HOME",
        ) from None


async def _read(loader: Loader, file: Path) -> ServiceConfig:
    try:
        return await loader.read(str(file))
    except LoaderFailed as error:
        raise _error(error.why) from None


def _error(why: Reason) -> FiresteelError:
    return _ERRORS.get(why.kind, FiresteelError)(why.what, next=why.next)


async def _listen(server: HttpServer, listen: str, ssl_context: ssl.SSLContext | None) -> str:
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        bound_port = await server.start(host, int(port), ssl_context)
    except ValueError:
        raise UsageError(
            f"`{listen}` is not an address with a port", next="--listen 127.0.0.1:8080"
        ) from None
    except OSError as error:
        raise HostNotReady(
            f"cannot listen on {listen} ({error.strerror or error})", next="--listen 127.0.0.1:8081"
        ) from None
    url_host = f"[{host}]" if ":" in host else host
    return f"{'https' if ssl_context else 'http'}://{url_host}:{bound_port}"


def _ssl_context(options: ServeOptions) -> ssl.SSLContext | None:
    if options.cert is None:
        if options.cert_key is not None:
            raise UsageError("--cert-key needs --cert", next="--cert FILE")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(options.cert, options.cert_key)
    except (OSError, ssl.SSLError) as error:
        why = getattr(error, "strerror", None) or str(error)
        what = f"{options.cert} is not a certificate with its key: {why}"
        raise UsageError(what, next="--cert PEM --cert-key PEM") from None
    return context


def _require_keys_for_any(origins: tuple[str, ...], ring: KeyRing) -> None:
    if ANY in origins and ring.is_open:
        raise UsageError(
            "`cors: any` lets every web page use the models, and no keys are in use",
            next="firesteel serve key add NAME, or `cors: loopback`",
        )


def _safe_origins(origins: tuple[str, ...], ring: KeyRing, events: _EventQueue) -> tuple[str, ...]:
    """Of a changed file."""
    try:
        _require_keys_for_any(origins, ring)
    except UsageError as error:
        events.put(ServeEvent("file", f"{error}; it is off until then"))
        return ()
    return origins


def _unservable(config: ServiceConfig, impossible: Mapping[str, str]) -> Iterator[ServeEvent]:
    for model in config.models:
        if why := model.why_not or impossible.get(model.name):
            yield ServeEvent("model", f"{model.name} cannot be served: {why}")


def _require_a_model(config: ServiceConfig) -> None:
    reasons = [model.why_not for model in config.models]
    if all(reasons) and (first := reasons[0]):
        names = ", ".join(model.name for model in config.models)
        raise _error(Reason(f"none of {names} can be served: {first.what}", first.next, first.kind))


def _listening(url: str, config: ServiceConfig, ring: KeyRing) -> ServeEvent:
    names = tuple(model.name for model in config.models if not model.why_not)
    keys = "no keys are in use" if ring.is_open else f"{len(ring.keys)} keys"
    return ServeEvent("listening", f"{url}/v1 serves {', '.join(names)}; {keys}", url, names)


async def _refresh_keys(ring: KeyRing) -> None:
    while True:
        await asyncio.sleep(_REFRESH_S)
        if text := ring.refresh():
            ring.on_change(text)


def with_model_name(model: str, text: str) -> str:
    """Put the model's name first, unless the text begins with it. Empty: the text concerns no single
    model."""
    return text if not model or text.startswith(f"{model} ") else f"{model}: {text}"


async def _drain(server: HttpServer, dispatcher: RequestDispatcher, end_streams: Callable[[], None]) -> int:
    """Return how many requests were cut off. Event streams do not end by themselves. Safe to call twice."""
    dispatcher.is_draining = True
    end_streams()
    return await server.drain(_DRAIN_S)


def _drained(cut: int) -> ServeEvent:
    if not cut:
        return ServeEvent("drained", "all active requests finished")
    requests = "1 request was" if cut == 1 else f"{cut} requests were"
    return ServeEvent("drained", f"{requests} cut off after {show_seconds(_DRAIN_S)}")


# --- a service file that changes ---

_POLL_S = 1.0


class FileVersion(Value):
    """Differs whenever the file has changed."""

    changed_ns: int
    size: int
    inode: int


def file_version(path: str) -> FileVersion | None:
    """None if the file is missing. Links are followed: Kubernetes replaces those."""
    try:
        stat = Path(path).stat()
    except OSError:
        return None
    return FileVersion(stat.st_mtime_ns, stat.st_size, stat.st_ino)


class ServiceFileWatch:
    """`problem` is what is wrong with the file now; None: what is served matches it.

    Polls once a second: notifications do not pass bind mounts, and an editor that writes a new file and
    renames it replaces the watched one. The file must look the same twice before it is read, so that a
    half-written one is not. A file with errors changes nothing: the old one stays in use.
    """

    def __init__(
        self,
        path: str,
        loader: Loader,
        on_change: Callable[[ServiceConfig], None],
        on_problem: Callable[[Reason], None],
        first_read: FileVersion | None = None,
        releases: str = "",
    ) -> None:
        """`first_read` is the version of the file just before it was read for the first time. `releases`: a
        file that changes what the models of this one are, written by `upgrade`."""
        self._path, self._loader, self._on_change, self._on_problem = path, loader, on_change, on_problem
        self._releases = releases
        self._read = (first_read or file_version(path), file_version(releases))
        self._last = self._read
        self._tasks = BackgroundTasks()
        self.problem: Reason | None = None

    def start(self) -> None:
        self._tasks.start(repeat(self.check, _POLL_S))

    async def close(self) -> None:
        await self._tasks.close()

    async def check(self) -> bool:
        """Return whether the file was read."""
        now, before = (file_version(self._path), file_version(self._releases)), self._last
        self._last = now
        if now == self._read or now != before:
            return False
        self._read = now
        if now[0] is None:
            self._report(
                Reason(f"{self._path} is missing; its last content stays in use", "restore the file")
            )
            return False
        try:
            config = await self._loader.read(self._path)
        except LoaderFailed as error:
            self._report(error.why)
        else:
            self.problem = None
            self._on_change(config)
        return True

    def _report(self, problem: Reason) -> None:
        self.problem = problem
        self._on_problem(problem)


# --- a service file for models that were only named ---


def write_service_file(models: Iterable[str], home: Home) -> Path:
    """`serve MODEL...`: a service file for models that were only named. Loads no PyYAML: the gateway's
    process stays small.

    As JSON, which is YAML too and quotes what must be quoted.
    """
    models = tuple(models)
    entries = {_plain(model): {"recipe": model} for model in models}
    if len(entries) < len(models):
        raise UsageError(
            "two of these models have the same name", next="write a service file that names each"
        )
    path = home.root / "serve.yaml"
    write_text(path, json.dumps({"models": entries}, indent=1))
    return path


def _plain(model: str) -> str:
    """`org/Repo` is served as `Repo`."""
    return model.rpartition("/")[2]


# --- memory settings for a process that moves bytes for weeks ---
#
#     retain_free_memory()        before the event loop starts
#     freeze_startup_objects()    when everything is loaded
#     release_free_memory()       every few seconds
#
# Prompts of 400 KB come and go. By default glibc returns the pages of each to the kernel and requests them
# again for the next, and these page faults cost as much as everything else done for such a request. So free
# memory is kept for some seconds, and then returned wherever it lies; glibc by itself returns only the end of
# the heap.
#
# Python's garbage collector examines all objects now and then. 45,000 of them belong to modules and classes
# that are never freed, and examining them stops every stream for 20 ms. Objects that exist when the gateway
# begins to listen are not examined again.

_RETAINED_BYTES = 4 * 2**20
_MMAP_BYTES = 2**20
"""Larger blocks are mapped separately and returned at once."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
"""As in glibc's <malloc.h>; `man 3 mallopt` explains them."""


def retain_free_memory() -> None:
    """Has an effect only with glibc's allocator; others have no `mallopt`, or one that does nothing."""
    with suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, _RETAINED_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        mallopt(_M_ARENA_MAX, 1)  # our threads allocate little: an arena for each would waste memory


def release_free_memory() -> None:
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def freeze_startup_objects() -> None:
    gc.collect()
    gc.freeze()
