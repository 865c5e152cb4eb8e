"""Real sockets for the HTTP tests: a recording dispatcher, a scripted engine and a raw client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

from firesteel.gateway.http.client_connection import ClientConnection
from firesteel.gateway.http.limits import HttpLimits
from firesteel.gateway.http.server import HttpServer
from firesteel.gateway.interfaces import (
    Caller,
    Endpoint,
    FallbackReason,
    GatewayResponse,
    LatencyRecorder,
    PendingRequest,
    Rejection,
    RequestOutcome,
)

PATIENCE_S = 120.0
"""After this time a test has hung."""


@dataclass
class FakeRecorder:
    firsts: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)

    def first(self, seconds: float) -> None:
        self.firsts.append(seconds)

    def gap(self, seconds: float) -> None:
        self.gaps.append(seconds)

    def record_gaps(self, last: float, arrivals: Sequence[float]) -> None:
        for arrival in arrivals:
            self.gaps.append(arrival - last)
            last = arrival


class FakeDispatcher:
    """Grants at once, unless it is set to hold requests, and records every call."""

    def __init__(self) -> None:
        self.endpoint: Endpoint | None = None
        self.rejection: Rejection | None = None
        self.direct_rejection: Rejection | None = None
        self.holds_requests = False
        self.keys: dict[bytes | None, Caller] | None = None
        self.local_targets: dict[bytes, GatewayResponse | Rejection | Endpoint] = {}
        self.recorder = FakeRecorder()
        self.tokens: list[bytes | None] = []
        self.waiting: list[PendingRequest] = []
        self.submitted: list[PendingRequest] = []
        self.prefixes: list[int] = []
        self.abandoned: list[PendingRequest] = []
        self.prompts: list[bytes] = []
        """Of conversations that were sent to their engine."""
        self.outcomes: list[RequestOutcome] = []
        self.bodies: list[bytes] = []
        self.kept_alive: list[tuple[str, float]] = []
        self.changed = asyncio.Event()

    def public_response(self, method: bytes, path: bytes) -> GatewayResponse | None:
        return GatewayResponse(200, b"{}") if path == b"/health" else None

    def admit(self, token: bytes | None) -> Caller | Rejection:
        self.tokens.append(token)
        self.changed.set()
        if self.keys is None:
            return Caller("somebody")
        return self.keys.get(token) or Rejection(401, "invalid_api_key", "No such key.")

    def local_target(
        self, method: bytes, path: bytes, caller: Caller
    ) -> GatewayResponse | Rejection | Endpoint | None:
        return self.local_targets.get(path)

    def check_direct(self, model: str, caller: Caller, *, is_path: bool) -> Rejection | None:
        return self.direct_rejection

    def submit(self, request: PendingRequest) -> None:
        self.submitted.append(request)
        self.prefixes.append(request.prefix)
        self.changed.set()
        if self.rejection is not None:
            request.rejected(self.rejection)
        elif self.holds_requests:
            self.waiting.append(request)
        else:
            self.grant(request)

    def grant(self, request: PendingRequest) -> None:
        assert self.endpoint is not None
        recorder: LatencyRecorder = self.recorder
        request.granted(self.endpoint, recorder)

    def abandon(self, request: PendingRequest, waited_s: float) -> None:
        assert 0 < waited_s < PATIENCE_S
        self.abandoned.append(request)
        self.changed.set()

    def extend(self, request: PendingRequest) -> Rejection | None:
        raise AssertionError("no request is metered")

    def hold(self, request: PendingRequest, *, was_sent: bool) -> bool:
        return False

    def retry(self, request: PendingRequest, reason: FallbackReason) -> bool:
        return False

    def sent(self, request: PendingRequest, prompt: bytes) -> None:
        self.prompts.append(prompt)

    def keep_alive(self, model: str, seconds: float, caller: Caller) -> Rejection | None:
        self.kept_alive.append((model, seconds))
        return self.rejection

    def finish(self, request: PendingRequest, outcome: RequestOutcome) -> None:
        assert request in self.submitted
        self.bodies.append(request.body)
        self.outcomes.append(outcome)
        self.changed.set()

    async def until(self, is_so: Callable[[], object]) -> None:
        """Wait until a call has been recorded."""
        async with asyncio.timeout(PATIENCE_S):
            while not is_so():
                self.changed.clear()
                await self.changed.wait()


@dataclass
class EngineRequest:
    """A request as the engine received it."""

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


Script = Callable[["EngineConnection"], Awaitable[None]]


class EngineConnection:
    """One connection to the engine, controlled by a script."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, engine: Engine) -> None:
        self.reader, self.writer, self._engine = reader, writer, engine

    async def receive(self) -> EngineRequest:
        """The next request, read by its Content-Length. Raises IncompleteReadError when there is none."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        received = EngineRequest(head[:-4], b"")
        length = received.value(b"content-length")
        if length:
            received.body = await self.reader.readexactly(int(length))
        self._engine.received.append(received)
        self._engine.changed.set()
        return received

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def closed(self) -> None:
        """Wait until the gateway closes."""
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
    """A fake engine that runs a script on each connection."""

    def __init__(self) -> None:
        self.script: Script = echo
        self.received: list[EngineRequest] = []
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
            await self.script(EngineConnection(reader, writer, self))
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


async def echo(connection: EngineConnection) -> None:
    """Answer every request with its own body."""
    while True:
        received = await connection.receive()
        await connection.send(answer(received.body or b"{}"))


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
class ClientResponse:
    """A response as the client received it."""

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

    async def head(self) -> ClientResponse:
        async with asyncio.timeout(PATIENCE_S):
            raw = await self.reader.readuntil(b"\r\n\r\n")
        lines = raw[:-4].split(b"\r\n")
        return ClientResponse(int(lines[0].split(b" ")[1]), lines[1:], b"", raw)

    async def get(self, *, is_head: bool = False) -> ClientResponse:
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
    ) -> ClientResponse:
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
class RunningGateway:
    """A server with its dispatcher, its engine, and the clients that a test opened."""

    server: HttpServer
    dispatcher: FakeDispatcher
    engine: Engine
    port: int
    clients: list[Person] = field(default_factory=list)

    async def listen_at(self, path: str) -> None:
        """Also at a Unix socket, in whose folder no other test can connect."""
        listener = await asyncio.get_running_loop().create_unix_server(
            lambda: ClientConnection(self.server), path
        )
        self.server._listeners.append(listener)

    async def client(self) -> Person:
        client = Person(*await asyncio.open_connection("127.0.0.1", self.port, limit=2**20))
        self.clients.append(client)
        return client


@asynccontextmanager
async def run_gateway(dispatcher: FakeDispatcher, limits: HttpLimits) -> AsyncIterator[RunningGateway]:
    engine = Engine()
    await engine.start()
    dispatcher.endpoint = Endpoint("m", ("127.0.0.1", engine.port), authority=b"engine:1")
    server = HttpServer(dispatcher, limits)
    gateway = RunningGateway(server, dispatcher, engine, await server.start("127.0.0.1", 0))
    try:
        yield gateway
    finally:
        for client in gateway.clients:
            client.close()
        await server.drain(0.0)
        await engine.stop()
