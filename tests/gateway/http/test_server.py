"""Listening, deadlines, back-pressure and going in peace."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
import uvloop

from firesteel.gateway.http.limits import HttpLimits
from firesteel.gateway.http.server import HttpServer, new_loop
from firesteel.gateway.interfaces import Endpoint
from tests.gateway.http.kit import (
    DONE,
    STREAM,
    STREAMING,
    EngineConnection,
    FakeDispatcher,
    Person,
    RunningGateway,
    answer,
    event,
    request,
    run_gateway,
)
from tests.needs import needs_programs

IMPATIENT = HttpLimits(
    head_s=0.1, body_idle_s=0.1, keep_alive_s=0.1, linger_s=0.1, send_idle_s=0.2, sweep_s=0.02, connect_s=0.2
)


def test_new_loop_is_uvloops() -> None:
    loop = new_loop()
    assert type(loop).__module__.startswith("uvloop")
    loop.close()


async def test_idle_connection_is_closed_without_a_word() -> None:
    async with run_gateway(FakeDispatcher(), IMPATIENT) as gateway:
        client = await gateway.client()
        assert (await client.ask()).status == 200
        assert await client.is_closed()


@pytest.mark.parametrize(
    "raw",
    [b"GET / HT", request()[:-5], b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n"],
)
async def test_slow_requests_get_408(raw: bytes) -> None:
    async with run_gateway(FakeDispatcher(), IMPATIENT) as gateway:
        client = await gateway.client()
        await client.send(raw.replace(b"POST / ", b"POST /v1/completions "))
        got = await client.get()
        assert (got.status, got.value(b"connection")) == (408, b"close")
        assert await client.is_closed()


async def test_dripping_head_is_not_a_new_start() -> None:
    async with run_gateway(FakeDispatcher(), IMPATIENT) as gateway:
        client = await gateway.client()
        with pytest.raises((ConnectionError, AssertionError)):
            for _ in range(200):
                await client.send(b"X")
                await asyncio.sleep(0.01)
                assert not client.reader._buffer  # type: ignore[attr-defined]


async def test_long_answers_have_no_deadline() -> None:
    async def slow(connection: EngineConnection) -> None:
        await connection.receive()
        await asyncio.sleep(0.4)
        await connection.send(answer(b"at last"))

    async with run_gateway(FakeDispatcher(), IMPATIENT) as gateway:
        gateway.engine.script = slow
        client = await gateway.client()
        assert (await client.ask()).body == b"at last"


async def test_client_that_takes_nothing_is_let_go() -> None:
    async def endless(connection: EngineConnection) -> None:
        await connection.receive()
        await connection.send(STREAM)
        while True:
            await connection.send(event("x" * 10_000))

    async with run_gateway(FakeDispatcher(), IMPATIENT) as gateway:
        gateway.engine.script = endless
        client = await gateway.client()
        client.deafen()
        await client.send(request(STREAMING))
        await gateway.dispatcher.until(lambda: gateway.dispatcher.outcomes)
        assert gateway.dispatcher.outcomes[0].how == "left"


async def test_slow_reader_of_200_mb_takes_no_memory(gateway: RunningGateway) -> None:
    total = 200 * 2**20
    sent = 0

    async def pour(connection: EngineConnection) -> None:
        nonlocal sent
        await connection.receive()
        await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
        piece = b"x" * 2**18
        while sent < total:
            await connection.send(piece)
            sent += len(piece)
        await connection.closed()  # uvloop drops what is not written yet when it closes a connection

    gateway.engine.script = pour
    client = Person(*await asyncio.open_connection("127.0.0.1", gateway.port, limit=2**16))
    gateway.clients.append(client)
    await client.send(request())
    await client.head()
    before = -1
    async with asyncio.timeout(120):
        while before != sent:  # until the engine can say no more
            before = sent
            await asyncio.sleep(0.05)
    # What was sent and not read lies in the kernel's buffers and in ours: nowhere near the whole.
    assert sent < 32 * 2**20
    read = 0
    while read < total:
        piece = await client.reader.read(2**20)
        assert piece, (read, gateway.dispatcher.outcomes)
        read += len(piece)
    await gateway.dispatcher.until(lambda: gateway.dispatcher.outcomes)
    assert (gateway.dispatcher.outcomes[0].how, gateway.dispatcher.outcomes[0].bytes_out) == ("whole", total)


async def test_drain_lets_streams_end(gateway: RunningGateway) -> None:
    goes_on = asyncio.Event()

    async def script(connection: EngineConnection) -> None:
        await connection.receive()
        await connection.send(STREAM + event("a"))
        await goes_on.wait()
        await connection.send(DONE)

    gateway.engine.script = script
    idle, busy, late = await gateway.client(), await gateway.client(), await gateway.client()
    await busy.send(request(STREAMING))
    await busy.head()
    await late.send(request()[:-3])
    await gateway.dispatcher.until(lambda: len(gateway.dispatcher.tokens) == 2)
    draining = asyncio.create_task(gateway.server.drain(10))
    assert await idle.is_closed()
    with pytest.raises(ConnectionError):
        await gateway.client()
    assert not draining.done()
    goes_on.set()
    assert b"[DONE]" in await busy.chunks()
    assert await busy.is_closed()
    gateway.engine.script = _answer_once
    await late.send(request()[-3:])
    got = await late.get()
    assert (got.body, got.value(b"connection")) == (b"late", b"close")
    await asyncio.wait_for(draining, 120)
    assert not gateway.server.connections()


async def _answer_once(connection: EngineConnection) -> None:
    await connection.receive()
    await connection.send(answer(b"late"))


def test_drain_closes_connections_that_were_just_accepted() -> None:
    """3,000 of them held the gateway for 30 s: accepted, but not announced when the others were closed. On
    uvloop only: asyncio's own listener loses such connections when it is closed."""

    async def run() -> None:
        async with run_gateway(FakeDispatcher(), HttpLimits()) as gateway:
            clients = [socket.socket() for _ in range(300)]
            for client in clients:
                client.setblocking(False)
                with suppress(BlockingIOError):
                    client.connect(("127.0.0.1", gateway.port))
            await asyncio.sleep(0)
            assert await asyncio.wait_for(gateway.server.drain(30), 10) == 0
            for client in clients:
                client.close()

    uvloop.run(run())


async def test_drain_cuts_what_takes_too_long(gateway: RunningGateway) -> None:
    async def stall(connection: EngineConnection) -> None:
        await connection.receive()
        await connection.send(STREAM + event("a"))
        await connection.closed()

    gateway.engine.script = stall
    client = await gateway.client()
    await client.send(request(STREAMING))
    await client.head()
    waiting = await gateway.client()
    gateway.dispatcher.holds_requests = True
    await waiting.send(request())
    await gateway.dispatcher.until(lambda: len(gateway.dispatcher.submitted) == 2)
    assert await asyncio.wait_for(gateway.server.drain(0.05), 5) == 2
    assert gateway.dispatcher.outcomes[0].how == "refused"
    said = await client.chunks()
    assert b'"stopping"' in said and b"[DONE]" not in said
    assert (await waiting.get()).status == 503
    assert len(gateway.dispatcher.abandoned) == 1


async def test_a_broken_stream_is_reported_to_an_http_1_0_client(gateway: RunningGateway) -> None:
    async def dies(connection: EngineConnection) -> None:
        await connection.receive()
        await connection.send(STREAM + event("a"))
        connection.reset()

    gateway.engine.script = dies
    client = await gateway.client()
    body = b'{"model":"m","stream":true}'
    head = b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body)
    await client.send(head + body)
    said = (await client.get()).body
    assert b"engine_broke" in said and b"[DONE]" not in said


@needs_programs("openssl")
async def test_tls(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    ours = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    ours.load_cert_chain(certificate, key)
    theirs = ssl.create_default_context(cafile=str(certificate))
    async with run_gateway(FakeDispatcher(), HttpLimits()) as gateway:
        port = await gateway.server.start("127.0.0.1", 0, ours)
        client = Person(*await asyncio.open_connection("127.0.0.1", port, ssl=theirs))
        gateway.clients.append(client)
        for _ in range(2):
            assert (await client.ask()).status == 200
        gateway.dispatcher.keys = {}
        await client.send(request(b"x" * 1000)[:-500])
        assert (await client.get()).status == 401


async def test_unix_sockets_on_both_sides(tmp_path: Path) -> None:
    dispatcher = FakeDispatcher()
    front, back = str(tmp_path / "front"), str(tmp_path / "back")
    async with run_gateway(dispatcher, HttpLimits()) as gateway:
        engine = await asyncio.start_unix_server(gateway.engine._serve, back)
        dispatcher.endpoint = Endpoint("m", back)
        await gateway.listen_at(front)
        client = Person(*await asyncio.open_unix_connection(front))
        gateway.clients.append(client)
        assert (await client.ask()).body == b'{"model":"m"}'
        engine.close()


async def test_connections_wait_no_longer_than_engines_keep_theirs() -> None:
    limits = HttpLimits(idle_connection_s=0.05, sweep_s=0.02)
    async with run_gateway(FakeDispatcher(), limits) as gateway:
        closed = asyncio.Event()

        async def script(connection: EngineConnection) -> None:
            await connection.receive()
            await connection.send(answer(b"one"))
            await connection.closed()
            closed.set()

        gateway.engine.script = script
        client = await gateway.client()
        await client.ask()
        assert gateway.server.pool.count() == 1
        await asyncio.wait_for(closed.wait(), 5)
        assert gateway.server.pool.count() == 0


async def test_idle_connections_are_bounded() -> None:
    limits = HttpLimits(idle_connections=2)
    async with run_gateway(FakeDispatcher(), limits) as gateway:
        clients = [await gateway.client() for _ in range(5)]
        for client in clients:
            await client.send(request())
        for client in clients:
            assert (await client.get()).status == 200
        assert gateway.server.pool.count() <= 2


async def test_nothing_is_mixed_among_many_streams(gateway: RunningGateway) -> None:
    async def script(connection: EngineConnection) -> None:
        while True:
            received = await connection.receive()
            mark = received.body.split(b'"x":"')[1].split(b'"')[0].decode()
            await connection.send(STREAM)
            for number in range(20):
                await connection.send(event(f"{mark}-{number}"))
                await asyncio.sleep(0)
            await connection.send(DONE)

    gateway.engine.script = script

    async def stream(mark: int) -> None:
        client = await gateway.client()
        for turn in range(2):
            got = await client.ask(b'{"model":"m","stream":true,"x":"%d.%d"}' % (mark, turn))
            want = b"".join(event(f"{mark}.{turn}-{number}").split(b"\r\n")[1] for number in range(20))
            assert got.body == want + b"data: [DONE]\n\n"

    await asyncio.gather(*(stream(mark) for mark in range(50)))
    assert len(gateway.dispatcher.outcomes) == 100
    assert {outcome.how for outcome in gateway.dispatcher.outcomes} == {"whole"}


async def test_slow_client_does_not_slow_others(gateway: RunningGateway) -> None:
    async def endless(connection: EngineConnection) -> None:
        received = await connection.receive()
        if b"stream" not in received.body:
            await connection.send(answer(b"quick"))
            return
        await connection.send(STREAM)
        while True:
            await connection.send(event("x" * 10_000))

    gateway.engine.script = endless
    slow = await gateway.client()
    slow.deafen()
    await slow.send(request(STREAMING))
    quick = await gateway.client()
    assert (await quick.ask()).body == b"quick"


async def test_server_without_limits_has_the_usual_ones() -> None:
    assert HttpServer(FakeDispatcher()).limits == HttpLimits()


async def test_requests_ahead_are_not_piled_up(gateway: RunningGateway) -> None:
    """While an answer is awaited, no more than a little is read of what comes after it."""
    goes_on = asyncio.Event()

    async def slow(connection: EngineConnection) -> None:
        while True:
            received = await connection.receive()
            await goes_on.wait()
            await connection.send(answer(b"%d" % len(received.body)))

    gateway.engine.script = slow
    client = await gateway.client()
    one = request(b'{"model":"m","x":"%b"}' % (b"y" * 1_000_000))
    sent = 0

    async def pour() -> None:
        nonlocal sent
        for _ in range(40):
            await client.send(one)
            sent += len(one)

    pouring = asyncio.create_task(pour())
    before = -1
    async with asyncio.timeout(120):
        while before != sent or not sent:
            before = sent
            await asyncio.sleep(0.1)
    assert sent < 30_000_000
    goes_on.set()
    for _ in range(40):
        assert (await client.get()).status == 200
    await pouring
