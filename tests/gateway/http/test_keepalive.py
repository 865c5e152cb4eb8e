"""A peer that is gone, on real sockets."""

from __future__ import annotations

import asyncio

from firesteel.gateway.http.keepalive import is_reset
from tests.gateway.http.kit import DONE, STREAM, STREAMING, EngineConnection, RunningGateway, event, request


async def test_a_closed_transport_is_gone(gateway: RunningGateway) -> None:
    """Its socket has no descriptor any more, which uvloop reports with a `ValueError`."""
    client = await gateway.client()
    transport = client.writer.transport
    assert not is_reset(transport)
    transport.abort()
    for _ in range(3):
        await asyncio.sleep(0)
    assert is_reset(transport)


async def test_a_half_closed_client_that_got_its_stream_causes_no_error(gateway: RunningGateway) -> None:
    """It is looked at a millisecond after it closed its side, when its connection may have ended."""

    async def script(connection: EngineConnection) -> None:
        await connection.receive()
        await connection.send(STREAM + event("all") + DONE)

    errors: list[dict[str, object]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context))
    gateway.engine.script = script
    for _ in range(5):
        client = await gateway.client()
        await client.send(request(STREAMING))
        client.writer.write_eof()
        await client.head()
        assert b"all" in await client.chunks()
        assert await client.is_closed()
    await asyncio.sleep(0.05)  # the second look comes after 4 ms
    assert not errors
