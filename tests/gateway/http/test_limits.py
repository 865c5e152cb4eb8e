"""One bound for the bytes of all clients: bodies, unfinished heads, and responses that nobody reads."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from firesteel.gateway.http.limits import BufferBudget, HttpLimits
from firesteel.gateway.http.request_reader import BodyReader
from tests.gateway.http.kit import (
    STREAM,
    EngineConnection,
    FakeDispatcher,
    Person,
    RunningGateway,
    chunked,
    request,
    run_gateway,
)

MB = 1_000_000
SMALL = HttpLimits(buffer_bytes=8 * MB, body_bytes=4 * MB, sweep_s=0.02, buffer_wait_s=0.5)
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\n"


async def _silent(connection: EngineConnection) -> None:
    await connection.receive()
    await connection.closed()


def _body(size: int) -> bytes:
    return b'{"model":"m","x":"' + b"a" * (size - 20) + b'"}'


async def _until_free(gateway: RunningGateway) -> None:
    async with asyncio.timeout(120):
        while gateway.server.buffers.used_bytes:
            await asyncio.sleep(0.01)


async def _upload(client: Person, data: bytes) -> None:
    with suppress(ConnectionError):
        await client.send(data)


async def test_many_long_bodies_to_a_silent_engine() -> None:
    """16 of 60 MB took 2 GB; now as many as there is room for are read, and the others wait, then get 503."""
    async with run_gateway(FakeDispatcher(), SMALL) as gateway:
        gateway.engine.script = _silent
        clients = [await gateway.client() for _ in range(16)]
        uploads = [asyncio.ensure_future(_upload(each, request(_body(3 * MB)))) for each in clients]
        await gateway.dispatcher.until(lambda: len(gateway.dispatcher.submitted) == 2)
        assert gateway.server.buffers.used_bytes <= SMALL.buffer_bytes
        small = await gateway.client()
        await small.send(b"GET /health HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer x\r\n\r\n")
        assert (await small.get()).status == 404  # it is answered; this dispatcher has no such path
        done = [asyncio.ensure_future(each.head()) for each in clients]
        async with asyncio.timeout(120):
            while sum(each.done() for each in done) < 14:
                await asyncio.sleep(0.02)
        heads = [each.result() for each in done if each.done()]
        assert {(head.status, head.value(b"retry-after")) for head in heads} == {(503, b"5")}
        assert len(gateway.dispatcher.submitted) == 2
        for task in (*done, *uploads):
            task.cancel()
        for client in clients:
            client.close()
        await _until_free(gateway)


async def test_who_waits_is_read_when_there_is_room() -> None:
    async with run_gateway(FakeDispatcher(), HttpLimits(buffer_bytes=8 * MB, body_bytes=4 * MB)) as gateway:
        clients = [await gateway.client() for _ in range(12)]
        bodies = [_body(3 * MB + number) for number in range(12)]
        uploads = [
            asyncio.ensure_future(client.ask(body)) for client, body in zip(clients, bodies, strict=True)
        ]
        answers = await asyncio.gather(*uploads)
        assert [answer.body for answer in answers] == bodies
        await _until_free(gateway)


async def test_a_body_without_a_length() -> None:
    async with run_gateway(FakeDispatcher(), HttpLimits(buffer_bytes=2 * MB, body_bytes=4 * MB)) as gateway:
        client = await gateway.client()
        upload = asyncio.ensure_future(
            _upload(client, HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(_body(3 * MB)))
        )
        assert (await client.head()).status == 503
        upload.cancel()
        client.close()
        await _until_free(gateway)


async def test_unfinished_heads_count() -> None:
    async with run_gateway(FakeDispatcher(), HttpLimits(buffer_bytes=100_000)) as gateway:
        clients = [await gateway.client() for _ in range(8)]
        for client in clients:
            await client.send(HEAD + b"X: " + b"a" * 20_000)
        heads = [asyncio.ensure_future(client.head()) for client in clients]
        async with asyncio.timeout(120):
            while sum(each.done() for each in heads) < 4:
                await asyncio.sleep(0.01)
        assert {each.result().status for each in heads if each.done()} == {503}
        assert gateway.server.buffers.used_bytes <= 100_000
        for each in heads:
            each.cancel()
        for client in clients:
            client.close()
        await _until_free(gateway)


async def test_slow_readers_count() -> None:
    """Beyond the bound the slowest reader is cut off, not the memory taken."""

    async def flood(connection: EngineConnection) -> None:
        await connection.receive()
        await connection.send(STREAM)
        while True:
            await connection.send(chunked(b"data: " + b"x" * 60_000 + b"\n\n"))

    async with run_gateway(FakeDispatcher(), HttpLimits(buffer_bytes=MB, sweep_s=0.05)) as gateway:
        gateway.engine.script = flood
        for _ in range(12):
            client = await gateway.client()
            client.deafen()
            await client.send(request(b'{"model":"m","stream":true}', path=b"/v1/messages"))
        await gateway.dispatcher.until(lambda: gateway.dispatcher.outcomes)
        assert gateway.server.buffers.used_bytes <= MB
        for client in gateway.clients:
            client.close()
        await _until_free(gateway)


@pytest.mark.parametrize("size", [1, 7, 300_000])
@pytest.mark.parametrize("length", [10, 2**20 + 5])
def test_pieces_of_any_size(size: int, length: int) -> None:
    body = bytes(number % 251 for number in range(length)) + b"next"
    reader, position = BodyReader(length), 0
    for start in range(0, min(len(body), size * 5000), size):
        position += reader.take(body[start : start + size])
    while not reader.is_whole():
        position += reader.take(body[position : position + 65536])
    assert (position, bytes(reader.body())) == (length, body[:length])


def test_the_order_of_waiting() -> None:
    budget, began = BufferBudget(100), list[str]()

    class Waiter:
        def __init__(self, name: str) -> None:
            self.name = name

        def read_on(self) -> None:
            began.append(self.name)

    first, second, third = Waiter("first"), Waiter("second"), Waiter("third")
    assert budget.take(90)
    assert budget.wait(first, 60, 5)
    assert budget.wait(second, 20, 5)
    assert not budget.wait(third, 20, 20)
    budget.give(20)
    assert not began  # the first one's turn, and it does not fit yet
    budget.give(70)
    assert began == ["first", "second"]
    assert budget.used_bytes == 80
