"""Real sockets for the plane's tests: a desk that records, a pretend engine with a script, a raw client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

from firesteel.gateway.http.limits import HttpLimits
from firesteel.gateway.http.server import HttpServer
from firesteel.gateway.interfaces import (
    Endpoint,
    GatewayResponse,
    Identity,
    LatencyRecorder,
    PendingRequest,
    Refusal,
    RequestOutcome,
)

PATIENCE_S = 10.0
"""After so long a test has hung."""


@dataclass
class PretendTally:
    firsts: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)

    def first(self, seconds: float) -> None:
        self.firsts.append(seconds)

    def gap(self, seconds: float) -> None:
        self.gaps.append(seconds)


class PretendDesk:
    """Grants at once, unless told to keep callers waiting, and writes everything down."""

    def __init__(self) -> None:
        self.seat: Endpoint | None = None
        self.refusal: Refusal | None = None
        self.holds = False
        self.keys: dict[bytes | None, Identity] | None = None
        self.owned: dict[bytes, GatewayResponse | Refusal | Endpoint] = {}
        self.tally = PretendTally()
        self.tokens: list[bytes | None] = []
        self.waiting: list[PendingRequest] = []
        self.asked: list[PendingRequest] = []
        self.prefixes: list[int] = []
        self.left: list[PendingRequest] = []
        self.ends: list[RequestOutcome] = []
        self.bodies: list[bytes] = []
        self.changed = asyncio.Event()

    def public(self, method: bytes, path: bytes) -> GatewayResponse | None:
        return GatewayResponse(200, b"{}") if path == b"/health" else None

    def admit(self, token: bytes | None) -> Identity | Refusal:
        self.tokens.append(token)
        self.changed.set()
        if self.keys is None:
            return Identity("somebody")
        return self.keys.get(token) or Refusal(401, "invalid_api_key", "No such key.")

    def own(self, method: bytes, path: bytes, who: Identity) -> GatewayResponse | Refusal | Endpoint | None:
        return self.owned.get(path)

    def ask(self, caller: PendingRequest) -> None:
        self.asked.append(caller)
        self.prefixes.append(caller.prefix)
        self.changed.set()
        if self.refusal is not None:
            caller.refused(self.refusal)
        elif self.holds:
            self.waiting.append(caller)
        else:
            self.grant(caller)

    def grant(self, caller: PendingRequest) -> None:
        assert self.seat is not None
        tally: LatencyRecorder = self.tally
        caller.granted(self.seat, tally)

    def leave(self, caller: PendingRequest, waited_s: float) -> None:
        assert 0 < waited_s < PATIENCE_S
        self.left.append(caller)
        self.changed.set()

    def finish(self, caller: PendingRequest, end: RequestOutcome) -> None:
        assert caller in self.asked
        self.bodies.append(caller.body)
        self.ends.append(end)
        self.changed.set()

    async def until(self, is_so: Callable[[], object]) -> None:
        """Waits for something to be written down."""
        async with asyncio.timeout(PATIENCE_S):
            while not is_so():
                self.changed.clear()
                await self.changed.wait()


@dataclass
class Heard:
    """A request as the engine saw it."""

    head: bytes
    body: bytes

    @property
    def lines(self) -> list[bytes]:
        return self.head.split(b"\r\n")[1:]

    def value(self, name: bytes) -> bytes | None:
        found = [
            line.split(b":", 1)[1].strip()
            for line in self.lines
            if line.lower().startswith(name.lower() + b":")
        ]
        assert len(found) < 2, found
        return found[0] if found else None


Script = Callable[["Line"], Awaitable[None]]


class Line:
    """One connection to the engine, in the hands of a script."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, engine: Engine) -> None:
        self.reader, self.writer, self._engine = reader, writer, engine

    async def hear(self) -> Heard:
        """The next request, read by its Content-Length. Raises IncompleteReadError when there is none."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        heard = Heard(head[:-4], b"")
        length = heard.value(b"content-length")
        if length:
            heard.body = await self.reader.readexactly(int(length))
        self._engine.heard.append(heard)
        self._engine.changed.set()
        return heard

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def closed(self) -> None:
        """Waits until the gateway closes."""
        try:
            while await self.reader.read(65536):
                pass
        except ConnectionError:
            pass

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        self.writer.transport.abort()


class Engine:
    """Pretends to be an engine: plays a script on each connection."""

    def __init__(self) -> None:
        self.script: Script = say_ok
        self.heard: list[Heard] = []
        self.connections = 0
        self.port = 0
        self.changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.failures: list[BaseException] = []

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**20)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        assert not self.failures, self.failures

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self.changed.set()
        try:
            await self.script(Line(reader, writer, self))
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        except BaseException as failure:
            self.failures.append(failure)
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def until(self, is_so: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not is_so():
                self.changed.clear()
                await self.changed.wait()


async def say_ok(line: Line) -> None:
    """Answers every request with the body that it had."""
    while True:
        heard = await line.hear()
        await line.say(answer(heard.body or b"{}"))


def answer(body: bytes, *lines: bytes, status: bytes = b"200 OK") -> bytes:
    head = b"\r\n".join((b"HTTP/1.1 " + status, *lines, b"Content-Length: %d" % len(body)))
    return head + b"\r\n\r\n" + body


STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)


def event(text: str) -> bytes:
    """One SSE event in a chunk of its own, as uvicorn sends it."""
    data = b"data: " + json.dumps({"choices": [{"delta": {"content": text}}]}).encode() + b"\n\n"
    return chunked(data)


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


DONE = chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n"


@dataclass
class Got:
    """An answer as the client saw it."""

    status: int
    lines: list[bytes]
    body: bytes
    raw: bytes

    def value(self, name: bytes) -> bytes | None:
        found = [
            line.split(b":", 1)[1].strip()
            for line in self.lines
            if line.lower().startswith(name.lower() + b":")
        ]
        return found[0] if found else None


class Person:
    """A raw client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> Got:
        async with asyncio.timeout(PATIENCE_S):
            raw = await self.reader.readuntil(b"\r\n\r\n")
        lines = raw[:-4].split(b"\r\n")
        return Got(int(lines[0].split(b" ")[1]), lines[1:], b"", raw)

    async def get(self, *, is_head: bool = False) -> Got:
        """One whole answer; its chunks are put together."""
        got = await self.head()
        async with asyncio.timeout(PATIENCE_S):
            if is_head or got.status in (204, 304):
                return got
            if got.value(b"transfer-encoding") == b"chunked":
                got.body = await self.chunks()
            elif (length := got.value(b"content-length")) is not None:
                got.body = await self.reader.readexactly(int(length))
            else:
                got.body = await self.reader.read()
        return got

    async def chunk(self) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            size = int((await self.reader.readuntil(b"\r\n")).partition(b";")[0], 16)
            data = await self.reader.readexactly(size + 2)
        assert data.endswith(b"\r\n")
        return data[:-2]

    async def chunks(self) -> bytes:
        body = b""
        while piece := await self.chunk():
            body += piece
        return body

    async def ask(
        self, body: bytes = b'{"model":"m"}', *lines: bytes, path: bytes = b"/v1/chat/completions"
    ) -> Got:
        await self.send(request(body, *lines, path=path))
        return await self.get()

    async def is_closed(self) -> bool:
        """Whether nothing more comes, and the other side has closed."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await self.reader.read() == b""
            except ConnectionError:
                return True

    def deafen(self) -> None:
        """Takes nothing more from its socket."""
        cast(asyncio.Transport, self.writer.transport).pause_reading()

    def close(self) -> None:
        self.writer.transport.abort()


def request(
    body: bytes = b'{"model":"m"}',
    *lines: bytes,
    path: bytes = b"/v1/chat/completions",
    method: bytes = b"POST",
) -> bytes:
    head = b"\r\n".join((
        b"%b %b HTTP/1.1" % (method, path), b"Host: gateway", b"Content-Type: application/json", *lines,
        b"Content-Length: %d" % len(body),
    ))  # fmt: skip
    return head + b"\r\n\r\n" + body


STREAMING = b'{"model":"m","stream":true}'


@dataclass
class House:
    """A server, its desk, its engine, and the clients that a test opened."""

    server: HttpServer
    desk: PretendDesk
    engine: Engine
    port: int
    clients: list[Person] = field(default_factory=list)

    async def client(self) -> Person:
        client = Person(*await asyncio.open_connection("127.0.0.1", self.port, limit=2**20))
        self.clients.append(client)
        return client


@asynccontextmanager
async def open_house(desk: PretendDesk, limits: HttpLimits) -> AsyncIterator[House]:
    engine = Engine()
    await engine.start()
    desk.seat = Endpoint("m", ("127.0.0.1", engine.port), authority=b"engine:1")
    server = HttpServer(desk, limits)
    house = House(server, desk, engine, await server.start("127.0.0.1", 0))
    try:
        yield house
    finally:
        for client in house.clients:
            client.close()
        await server.drain(0.0)
        await engine.stop()
