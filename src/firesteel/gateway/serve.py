"""The gateway as a whole: reads the file, finds what runs, listens, and goes in peace.

    async for told in serve_file(Manner(Path("firesteel.yaml")), home, ends):
        print(told.words)

It ends when `ends` is set: no new connections, requests under way have a while to finish, models are stopped
(or left running, `keeps`), the log is written out.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from firesteel.edge.files.home import Home, Locked, lock
from firesteel.errors import DoesNotFit, FiresteelError, HostNotReady, Stopped, UsageError
from firesteel.gateway.address import Address, lock_path, write_address
from firesteel.gateway.admin.request_log import RequestLog, log_path
from firesteel.gateway.dispatcher import RequestDispatcher
from firesteel.gateway.executor import Executor
from firesteel.gateway.file_watch import ServiceFileWatch, file_version
from firesteel.gateway.health import Health
from firesteel.gateway.http.limits import HttpLimits
from firesteel.gateway.http.server import HttpServer
from firesteel.gateway.interfaces import Endpoint
from firesteel.gateway.keys import KeyRing, insist_keys, keys_path
from firesteel.gateway.loader.process import Loader, LoaderFailed, ProcessLoader
from firesteel.gateway.service_config import Reason, ServiceConfig
from firesteel.units import show_seconds

_DRAIN_S = 30.0
_REFRESH_S = 1.0
_MAX_TOLD = 1000
_ERRORS = {kind.kind: kind for kind in (FiresteelError, UsageError, Stopped, DoesNotFit, HostNotReady)}


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """How to serve a file, beyond what it says."""

    file: Path
    listen: str | None = None
    """Instead of the file's."""
    cert: Path | None = None
    cert_key: Path | None = None
    keeps: bool = False
    """Models run on when the gateway ends."""
    logs_prompts: bool = False


@dataclass(frozen=True, slots=True)
class ServeEvent:
    """What happened, for whoever looks on."""

    what: Literal["reading", "listening", "model", "keys", "log", "file", "draining", "drained", "ended"]
    words: str
    url: str = ""
    models: tuple[str, ...] = ()


async def serve_file(manner: ServeOptions, home: Home, ends: asyncio.Event) -> AsyncIterator[ServeEvent]:
    context = _tls(manner)
    yield ServeEvent("reading", str(manner.file))
    hands = ProcessLoader()
    read_as = file_version(str(manner.file))
    reading = await _read(hands, manner.file)
    _insist_on_one(reading)
    listen = manner.listen or reading.listen
    ring = KeyRing.read(keys_path(home))
    insist_keys(listen, ring)
    news: asyncio.Queue[ServeEvent] = asyncio.Queue(_MAX_TOLD)
    async with AsyncExitStack() as stack:
        _be_alone(stack, home)
        desk, end_streams = await _opened(stack, home, ring, news, manner)
        swap = Executor(reading, hands, desk, home)
        health = Health(swap, hands, home)
        desk.attach(swap, health.answers)
        stack.push_async_callback(swap.close, keep=manner.keeps)
        server = HttpServer(desk, HttpLimits(keeps_bodies=manner.logs_prompts))
        stack.push_async_callback(_drain, server, desk, end_streams)
        stack.push_async_callback(health.close)
        await health.start()
        await swap.start()
        url = await _listen(server, listen, context)

        def tell_where() -> None:
            names = tuple(each.name for each in swap.reading.models)
            write_address(home, Address(url, names, not ring.is_open, os.getpid()))

        tell_where()
        watch = ServiceFileWatch(
            str(manner.file),
            hands,
            lambda changed: _change(swap, desk, changed, news, tell_where),
            lambda why: _put(news, ServeEvent("file", str(why))),
            read_as,
        )
        watch.start()
        stack.push_async_callback(watch.close)
        refreshing = asyncio.ensure_future(_refresh_keys(ring, desk, news, tell_where))
        stack.callback(refreshing.cancel)
        yield _listening(url, reading, ring)
        for told in _barred(reading):
            yield told
        async for told in _until(ends, news):
            yield told
        yield ServeEvent(
            "draining", f"no new connections; requests under way have {show_seconds(_DRAIN_S)} to finish"
        )
        yield _drained(await _drain(server, desk, end_streams))
    yield ServeEvent("ended", "models run on" if manner.keeps else "what was started is stopped")


async def _opened(
    stack: AsyncExitStack, home: Home, ring: KeyRing, news: asyncio.Queue[ServeEvent], manner: ServeOptions
) -> tuple[RequestDispatcher, Callable[[], None]]:
    """The desk with its log and its control side, and what ends the streams of that; closed in the other
    order."""
    loop = asyncio.get_running_loop()

    def say(words: str) -> None:
        loop.call_soon_threadsafe(_put, news, ServeEvent("log", words))

    log = RequestLog(log_path(home), say=say)
    stack.push_async_callback(asyncio.to_thread, log.close)
    desk = RequestDispatcher(
        home,
        ring,
        log,
        lambda model, words: _put(news, ServeEvent("model", named(model, words))),
        logs_prompts=manner.logs_prompts,
    )
    desk.control, end_streams = await _control(stack, desk, home)
    return desk, end_streams


async def _control(
    stack: AsyncExitStack, desk: RequestDispatcher, home: Home
) -> tuple[Endpoint, Callable[[], None]]:
    """On a socket in our own folder, reached through the folder's number: paths of sockets are short."""
    from firesteel.gateway.admin import api  # brings aiohttp

    folder = home.root / "gateway"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    stack.callback(os.close, number)
    path = Path(f"/proc/{os.getpid()}/fd/{number}/control.sock")
    path.unlink(missing_ok=True)
    runner = await api.start(desk, path)
    stack.push_async_callback(runner.cleanup)
    return Endpoint("", str(path), authority=b"control"), lambda: api.end_streams(runner)


def _be_alone(stack: AsyncExitStack, home: Home) -> None:
    """One gateway a home: two would load and evict the same models."""
    try:
        stack.enter_context(lock(lock_path(home)))
    except Locked:
        raise FiresteelError(
            "another gateway serves from this FIRESTEEL_HOME",
            next="stop it first, or give this one another FIRESTEEL_HOME",
        ) from None


async def _read(hands: Loader, file: Path) -> ServiceConfig:
    try:
        return await hands.read(str(file))
    except LoaderFailed as error:
        raise _error(error.why) from None


def _error(why: Reason) -> FiresteelError:
    return _ERRORS.get(why.kind, FiresteelError)(why.what, next=why.next)


async def _listen(server: HttpServer, listen: str, context: ssl.SSLContext | None) -> str:
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        bound = await server.start(host, int(port), context)
    except ValueError:
        raise UsageError(f"`{listen}` is no address and port", next="--listen 127.0.0.1:8080") from None
    except OSError as error:
        raise HostNotReady(
            f"nobody can listen at {listen} ({error.strerror or error})", next="--listen 127.0.0.1:8081"
        ) from None
    named = f"[{host}]" if ":" in host else host
    return f"{'https' if context else 'http'}://{named}:{bound}"


def _tls(manner: ServeOptions) -> ssl.SSLContext | None:
    if manner.cert is None:
        if manner.cert_key is not None:
            raise UsageError("a key without its certificate", next="--cert FILE")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(manner.cert, manner.cert_key)
    except (OSError, ssl.SSLError) as error:
        said = getattr(error, "strerror", None) or str(error)
        what = f"{manner.cert} is no certificate with its key: {said}"
        raise UsageError(what, next="--cert PEM --cert-key PEM") from None
    return context


def _barred(reading: ServiceConfig) -> Iterator[ServeEvent]:
    """What the file names and cannot be served."""
    for each in reading.models:
        if each.why_not:
            yield ServeEvent("model", f"{each.name} cannot be served: {each.why_not}")


def _insist_on_one(reading: ServiceConfig) -> None:
    whys = [each.why_not for each in reading.models]
    if all(whys) and whys[0]:
        names = ", ".join(each.name for each in reading.models)
        raise _error(Reason(f"nothing can be served of {names}: {whys[0].what}", whys[0].next, whys[0].kind))


def _listening(url: str, reading: ServiceConfig, ring: KeyRing) -> ServeEvent:
    names = tuple(each.name for each in reading.models if not each.why_not)
    keys = "no keys are in use" if ring.is_open else f"{len(ring.keys)} keys"
    return ServeEvent("listening", f"{url}/v1 serves {', '.join(names)}; {keys}", url, names)


def _change(
    swap: Executor,
    desk: RequestDispatcher,
    reading: ServiceConfig,
    news: asyncio.Queue[ServeEvent],
    tell_where: Callable[[], None],
) -> None:
    swap.change(reading)
    desk.changed()
    for told in _barred(reading):
        _put(news, told)
    tell_where()
    _put(news, ServeEvent("file", f"{reading.path} was read again"))


async def _refresh_keys(
    ring: KeyRing, desk: RequestDispatcher, news: asyncio.Queue[ServeEvent], tell_where: Callable[[], None]
) -> None:
    while True:
        await asyncio.sleep(_REFRESH_S)
        if said := ring.refresh():
            desk.keys_changed()
            tell_where()
            _put(news, ServeEvent("keys", said))


def named(model: str, words: str) -> str:
    """Which model it is about, where the words do not begin with it. Empty: it is of no one model."""
    return words if not model or words.startswith(f"{model} ") else f"{model}: {words}"


async def _drain(server: HttpServer, desk: RequestDispatcher, end_streams: Callable[[], None]) -> int:
    """How many requests were cut. Our own streams have no end to wait for; a second time finds nothing."""
    desk.is_draining = True
    end_streams()
    return await server.drain(_DRAIN_S)


def _drained(cut: int) -> ServeEvent:
    if not cut:
        return ServeEvent("drained", "every request under way was finished")
    were = "1 request was" if cut == 1 else f"{cut} requests were"
    return ServeEvent("drained", f"{were} cut, unfinished after {show_seconds(_DRAIN_S)}")


async def _until(ends: asyncio.Event, news: asyncio.Queue[ServeEvent]) -> AsyncIterator[ServeEvent]:
    ending = asyncio.ensure_future(ends.wait())
    try:
        while not ends.is_set():
            coming = asyncio.ensure_future(news.get())
            await asyncio.wait({coming, ending}, return_when=asyncio.FIRST_COMPLETED)
            if coming.done():
                yield coming.result()
            else:
                coming.cancel()
    finally:
        ending.cancel()


def _put(news: asyncio.Queue[ServeEvent], told: ServeEvent) -> None:
    """What nobody reads is forgotten."""
    with suppress(asyncio.QueueFull):
        news.put_nowait(told)
