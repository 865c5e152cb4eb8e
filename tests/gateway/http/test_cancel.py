"""A client that goes: the connection to the engine goes with it. Times: `benchmarks/gateway/leave.py`."""

from __future__ import annotations

import asyncio
import socket
import struct
from time import monotonic

import pytest

from firesteel.gateway.http.limits import HttpLimits
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


def leave(client: Person, how: str) -> None:
    """FIN, as a program that closes; or RST, as one that is killed with bytes unread."""
    link = client.writer.get_extra_info("socket")
    if how == "rst":
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.writer.transport.abort()


class Watch:
    """An engine that notes when its connection is closed."""

    def __init__(self, phase: str) -> None:
        self._phase = phase
        self.is_under_way = asyncio.Event()
        self.closed_at: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def __call__(self, connection: EngineConnection) -> None:
        await connection.receive()
        dripping = None
        if self._phase != "before headers":
            await connection.send(STREAM + event("a"))
        if self._phase == "dripping":
            dripping = asyncio.create_task(self._drip(connection))
        self.is_under_way.set()
        await connection.closed()
        self.closed_at.set_result(monotonic())
        if dripping is not None:
            dripping.cancel()

    async def _drip(self, connection: EngineConnection) -> None:
        for number in range(10_000):
            connection.writer.write(event(str(number)))
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("how", ["fin", "rst"])
@pytest.mark.parametrize("phase", ["before headers", "stalled", "dripping"])
async def test_leaving_closes_the_connection_to_the_engine(
    gateway: RunningGateway, phase: str, how: str
) -> None:
    for _ in range(5):
        watch = gateway.engine.script = Watch(phase)
        client = await gateway.client()
        await client.send(request(STREAMING))
        await watch.is_under_way.wait()
        if phase != "before headers":
            await client.head()
            await client.chunk()
        leave(client, how)
        await watch.closed_at
    await gateway.dispatcher.until(lambda: len(gateway.dispatcher.outcomes) == 5)
    assert {outcome.how for outcome in gateway.dispatcher.outcomes} == {"left"}


async def test_leaving_while_it_waits(gateway: RunningGateway) -> None:
    gateway.dispatcher.holds_requests = True
    client = await gateway.client()
    await client.send(request())
    await gateway.dispatcher.until(lambda: gateway.dispatcher.waiting)
    leave(client, "fin")
    await gateway.dispatcher.until(lambda: gateway.dispatcher.abandoned)
    assert gateway.dispatcher.abandoned == gateway.dispatcher.waiting
    assert not gateway.dispatcher.outcomes
    assert not gateway.engine.connections


async def test_leaving_during_a_comment(gateway: RunningGateway) -> None:
    limits = HttpLimits(hold_after_s=0.01, comment_every_s=0.01)
    async with run_gateway(FakeDispatcher(), limits) as quick:
        quick.dispatcher.holds_requests = True
        client = await quick.client()
        await client.send(request(STREAMING))
        await client.head()
        leave(client, "rst")
        await quick.dispatcher.until(lambda: quick.dispatcher.abandoned)
        assert not quick.dispatcher.outcomes


@pytest.mark.parametrize("parts", [(), (STREAM,), (STREAM, event("a"))])
@pytest.mark.parametrize("waits", [False, True])
async def test_half_closed_it_gets_its_stream(
    gateway: RunningGateway, parts: tuple[bytes, ...], waits: bool
) -> None:
    """As `nc -N` does: everything is sent, and nothing received yet."""
    goes_on = asyncio.Event()

    async def script(connection: EngineConnection) -> None:
        await connection.receive()
        for part in parts:
            await connection.send(part)
        await goes_on.wait()
        await connection.send((b"" if parts else STREAM) + event("last") + DONE)

    gateway.engine.script = script
    gateway.dispatcher.holds_requests = waits
    client = await gateway.client()
    await client.send(request(STREAMING))
    client.writer.write_eof()
    await client.head()
    if waits:
        gateway.dispatcher.grant(gateway.dispatcher.waiting[0])
    goes_on.set()
    body = await client.chunks()
    assert b"last" in body and b"[DONE]" in body
    assert await client.is_closed()
    assert gateway.dispatcher.outcomes[0].how == "whole"


async def test_half_closed_without_a_stream_is_leaving(gateway: RunningGateway) -> None:
    """As nginx has it; nothing harmless can be sent to see who is there."""
    watch = gateway.engine.script = Watch("before headers")
    client = await gateway.client()
    await client.send(request())
    await watch.is_under_way.wait()
    client.writer.write_eof()
    await asyncio.wait_for(watch.closed_at, 120)
    await gateway.dispatcher.until(lambda: gateway.dispatcher.outcomes)
    assert gateway.dispatcher.outcomes[0].how == "left"


async def test_drain_reads_to_the_end_and_discards_it(gateway: RunningGateway) -> None:
    assert gateway.dispatcher.endpoint is not None
    gateway.dispatcher.endpoint = Endpoint("m", gateway.dispatcher.endpoint.address, policy="drain")
    goes_on, is_closed = asyncio.Event(), asyncio.Event()

    async def script(connection: EngineConnection) -> None:
        await connection.receive()
        await connection.send(STREAM + event("a"))
        await goes_on.wait()
        for _ in range(2000):
            await connection.send(event("x" * 1000))
        await connection.send(b"0\r\n\r\n")
        await connection.receive()
        await connection.send(answer(b"over the same connection"))
        is_closed.set()

    gateway.engine.script = script
    client = await gateway.client()
    await client.send(request(STREAMING))
    await client.head()
    leave(client, "rst")
    for _ in range(10):
        await asyncio.sleep(0.005)
    assert not gateway.dispatcher.outcomes
    goes_on.set()
    await gateway.dispatcher.until(lambda: gateway.dispatcher.outcomes)
    outcome = gateway.dispatcher.outcomes[0]
    assert outcome.how == "left"
    assert outcome.bytes_out > 2_000_000
    other = await gateway.client()
    assert (await other.ask()).body == b"over the same connection"


async def test_leaving_while_it_connects(gateway: RunningGateway) -> None:
    """A socket whose queue is full answers nobody."""
    full = socket.socket()
    full.bind(("127.0.0.1", 0))
    full.listen(0)
    waiting = [socket.socket() for _ in range(3)]
    for link in waiting:
        link.setblocking(False)
        link.connect_ex(full.getsockname())
    gateway.dispatcher.endpoint = Endpoint("m", full.getsockname())
    client = await gateway.client()
    await client.send(request())
    await gateway.dispatcher.until(lambda: gateway.dispatcher.submitted)
    leave(client, "fin")
    await gateway.dispatcher.until(lambda: gateway.dispatcher.outcomes)
    assert gateway.dispatcher.outcomes[0].how == "left"
    for link in (full, *waiting):
        link.close()


async def test_leaving_in_a_body_submits_nothing(gateway: RunningGateway) -> None:
    client = await gateway.client()
    await client.send(request(b'{"model":"m"}')[:-5])
    for _ in range(5):
        await asyncio.sleep(0.005)
    leave(client, "fin")
    other = await gateway.client()
    assert (await other.ask()).status == 200
    assert len(gateway.dispatcher.submitted) == 1


async def test_drain_goes_on_for_a_client_that_took_nothing(gateway: RunningGateway) -> None:
    """Its engine was told to wait; now nobody is waited for."""
    assert gateway.dispatcher.endpoint is not None
    gateway.dispatcher.endpoint = Endpoint("m", gateway.dispatcher.endpoint.address, policy="drain")
    is_stuck = asyncio.Event()

    async def pour(connection: EngineConnection) -> None:
        await connection.receive()
        await connection.send(STREAM)
        for number in range(40):
            connection.writer.write(event("x" * 2**20))
            try:
                async with asyncio.timeout(0.2 if not is_stuck.is_set() else 5):
                    await connection.writer.drain()
            except TimeoutError:
                assert number < 39
                is_stuck.set()
        await connection.send(b"0\r\n\r\n")
        await connection.closed()

    gateway.engine.script = pour
    client = await gateway.client()
    client.deafen()
    await client.send(request(STREAMING))
    await asyncio.wait_for(is_stuck.wait(), 10)
    leave(client, "rst")
    await gateway.dispatcher.until(lambda: gateway.dispatcher.outcomes)
    assert gateway.dispatcher.outcomes[0].how == "left"
    assert gateway.dispatcher.outcomes[0].bytes_out > 40 * 2**20
