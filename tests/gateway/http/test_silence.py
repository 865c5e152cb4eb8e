"""A silent engine: comments for streaming clients, and an end."""

from __future__ import annotations

import asyncio
import json

import pytest

from firesteel.gateway.http.limits import HttpLimits
from firesteel.gateway.interfaces import Timeouts
from firesteel.values import replace
from tests.gateway.http.kit import (
    DONE,
    STREAM,
    STREAMING,
    EngineConnection,
    FakeDispatcher,
    RunningGateway,
    Script,
    answer,
    chunked,
    event,
    request,
    run_gateway,
)

QUICK = HttpLimits(hold_after_s=0.05, comment_every_s=0.05, sweep_s=0.01)


def waits(*parts: bytes, then: asyncio.Event) -> Script:
    """Send these, wait, and end with an event."""

    async def script(connection: EngineConnection) -> None:
        await connection.receive()
        for part in parts:
            await connection.send(part)
        await then.wait()
        await connection.send((b"" if parts else STREAM) + event("last") + DONE)

    return script


@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v1/messages", b"/v1/responses"])
@pytest.mark.parametrize("parts", [(), (STREAM,), (STREAM, event("first"))])
async def test_comments_until_the_next_event(path: bytes, parts: tuple[bytes, ...]) -> None:
    """Granted, the prompt takes minutes; or the engine pauses between two events."""
    goes_on = asyncio.Event()
    async with run_gateway(FakeDispatcher(), QUICK) as gateway:
        gateway.engine.script = waits(*parts, then=goes_on)
        client = await gateway.client()
        await client.send(request(STREAMING, path=path))
        assert (await client.head()).status == 200
        if len(parts) > 1:
            assert b"first" in await client.chunk()
        for _ in range(3):
            assert await client.chunk() == b": m is processing the request\n\n"
        goes_on.set()
        rest = await client.chunks()
        assert rest.replace(b": m is processing the request\n\n", b"").count(b"data: ") == 2
    assert gateway.dispatcher.outcomes[0].how == "whole"


@pytest.mark.parametrize("half", [b"data: {", b"data: {}\n", chunked(b"data: {}\n\n")[:-3]])
async def test_no_comment_within_an_event(half: bytes) -> None:
    """Nor in a response that is no stream, has a length, or is compressed."""
    goes_on = asyncio.Event()
    whole = event("first") + (half if half[:1].isdigit() else chunked(half))
    async with run_gateway(FakeDispatcher(), QUICK) as gateway:

        async def script(connection: EngineConnection) -> None:
            await connection.receive()
            await connection.send(STREAM + whole)
            await goes_on.wait()
            await connection.send(b"}\r\n" if half[:1].isdigit() else chunked(b"\n\n"))
            await connection.send(b"0\r\n\r\n")

        gateway.engine.script = script
        client = await gateway.client()
        await client.send(request(STREAMING, path=b"/v1/messages"))
        await client.head()
        await client.chunk()
        await asyncio.sleep(0.2)  # several comments would have come
        goes_on.set()
        if not half[:1].isdigit():
            assert b": m" not in await client.chunks()


async def test_a_whole_answer_gets_no_comment() -> None:
    goes_on = asyncio.Event()
    async with run_gateway(FakeDispatcher(), QUICK) as gateway:

        async def script(connection: EngineConnection) -> None:
            await connection.receive()
            await goes_on.wait()
            await connection.send(answer(b"{}"))

        gateway.engine.script = script
        client = await gateway.client()
        await client.send(request())
        await asyncio.sleep(0.2)
        goes_on.set()
        assert (await client.get()).body == b"{}"


async def _silent(connection: EngineConnection) -> None:
    await connection.receive()
    await connection.closed()


def _impatient(gateway: RunningGateway, **timeouts: float) -> None:
    assert gateway.dispatcher.endpoint is not None
    gateway.dispatcher.endpoint = replace(gateway.dispatcher.endpoint, timeouts=Timeouts(**timeouts))


@pytest.mark.parametrize(("body", "key"), [(b'{"model":"m"}', "answer"), (STREAMING, "first_byte")])
async def test_a_server_that_never_answers(body: bytes, key: str) -> None:
    """It was held for ever. The sentence names the key to set."""
    async with run_gateway(FakeDispatcher(), HttpLimits(sweep_s=0.01, comment_every_s=0.1)) as gateway:
        _impatient(gateway, **{f"{key}_s": 0.05})
        gateway.engine.script = _silent
        client = await gateway.client()
        got = await client.ask(body)
        error = json.loads(got.body)["error"]
        assert (got.status, error["code"], error["src"]) == (504, "engine_timeout", "engine:m")
        assert f"`timeouts: {{{key}: " in error["message"]
        outcome = gateway.dispatcher.outcomes[0]
        assert (outcome.how, outcome.status) == ("broke", 504)
        gateway.engine.script = waits(then=asyncio.Event())
        assert (await client.ask(body)).status == 504  # the connection is still good


async def test_a_stream_that_stops() -> None:
    async with run_gateway(FakeDispatcher(), QUICK) as gateway:
        _impatient(gateway, gap_s=0.2)
        gateway.engine.script = waits(STREAM, event("first"), then=asyncio.Event())
        client = await gateway.client()
        got = await client.ask(STREAMING)
        assert b"first" in got.body
        assert b'"engine_timeout"' in got.body and b"gap: " in got.body and b"[DONE]" not in got.body


async def test_a_stream_that_is_drained_ends_too() -> None:
    """Its client has left; the engine was not cancelled, and is silent from then on."""
    async with run_gateway(FakeDispatcher(), QUICK) as gateway:
        assert gateway.dispatcher.endpoint is not None
        gateway.dispatcher.endpoint = replace(
            gateway.dispatcher.endpoint, policy="drain", timeouts=Timeouts(gap_s=0.2)
        )
        gateway.engine.script = waits(STREAM, event("first"), then=asyncio.Event())
        client = await gateway.client()
        await client.send(request(STREAMING))
        await client.head()
        client.close()
        await gateway.dispatcher.until(lambda: gateway.dispatcher.outcomes)
        assert gateway.dispatcher.outcomes[0].how == "left"
