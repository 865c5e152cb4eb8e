"""Answers of every shape, from a fake engine that says exactly these bytes; a peer that is gone, on real
sockets.
"""

from __future__ import annotations

import asyncio
import json

import pytest

from firesteel.gateway.http.limits import HttpLimits
from firesteel.gateway.http.upstream import is_reset
from firesteel.gateway.interfaces import Endpoint, Rejection, WaitStatus
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


def says(*parts: bytes, closes: bool = False) -> Script:
    """Hears a request, says these, one write each, and then hears the next or closes."""

    async def script(connection: EngineConnection) -> None:
        while True:
            await connection.receive()
            for part in parts:
                await connection.send(part)
                await asyncio.sleep(0.005)
            if closes:
                return

    return script


CHUNKS = chunked(b"one") + b"3;ext=1\r\ntwo\r\n" + b"0\r\n\r\n"
CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX: y\r\n\r\n"


async def test_chunks_are_passed_on_as_they_came(gateway: RunningGateway) -> None:
    gateway.engine.script = says(CHUNKED_HEAD, CHUNKS[:9], CHUNKS[9:])
    client = await gateway.client()
    for _ in range(2):
        await client.send(request())
        head = await client.head()
        assert head.value(b"transfer-encoding") == b"chunked"
        assert await client.reader.readexactly(len(CHUNKS)) == CHUNKS
    assert gateway.engine.connections == 1


@pytest.mark.parametrize("cut", [1, 20, 60, 66, 70, len(CHUNKED_HEAD + CHUNKS) - 1])
async def test_cut_anywhere(gateway: RunningGateway, cut: int) -> None:
    raw = CHUNKED_HEAD + CHUNKS
    gateway.engine.script = says(raw[:cut], raw[cut:])
    client = await gateway.client()
    assert (await client.ask()).body == b"onetwo"
    assert gateway.dispatcher.outcomes[0].how == "whole"


async def test_chunks_for_http_10_are_taken_apart(gateway: RunningGateway) -> None:
    gateway.engine.script = says(CHUNKED_HEAD + CHUNKS)
    client = await gateway.client()
    await client.send(
        b'POST /v1/completions HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 13\r\n\r\n{"model":"m"}'
    )
    got = await client.get()
    assert (got.value(b"transfer-encoding"), got.value(b"connection"), got.body) == (None, None, b"onetwo")
    assert await client.is_closed()


async def test_until_close_becomes_chunked(gateway: RunningGateway) -> None:
    gateway.engine.script = says(b"HTTP/1.1 200 OK\r\nX: y\r\n\r\n", b"one", b"two", closes=True)
    client = await gateway.client()
    for _ in range(2):
        got = await client.ask()
        assert (got.value(b"transfer-encoding"), got.body) == (b"chunked", b"onetwo")
    assert [outcome.how for outcome in gateway.dispatcher.outcomes] == ["whole", "whole"]


async def test_until_close_for_http_10(gateway: RunningGateway) -> None:
    gateway.engine.script = says(b"HTTP/1.0 200 OK\r\n\r\none", closes=True)
    client = await gateway.client()
    await client.send(
        b'POST /v1/completions HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 13\r\n\r\n{"model":"m"}'
    )
    got = await client.get()
    assert (got.value(b"transfer-encoding"), got.body) == (None, b"one")


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
async def test_no_body(gateway: RunningGateway, status: bytes) -> None:
    gateway.engine.script = says(b"HTTP/1.1 " + status + b"\r\nETag: x\r\n\r\n")
    client = await gateway.client()
    for _ in range(2):
        got = await client.ask()
        assert (str(got.status), got.value(b"etag")) == (status[:3].decode(), b"x")
    assert gateway.engine.connections == 1


async def test_head_has_no_body(gateway: RunningGateway) -> None:
    assert gateway.dispatcher.endpoint is not None
    gateway.dispatcher.local_targets[b"/x"] = gateway.dispatcher.endpoint
    gateway.engine.script = says(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n")
    client = await gateway.client()
    for _ in range(2):
        await client.send(b"HEAD /x HTTP/1.1\r\nHost: h\r\n\r\n")
        got = await client.get(is_head=True)
        assert got.value(b"content-length") == b"500"
    assert gateway.engine.received[0].value(b"content-length") is None
    assert gateway.engine.connections == 1


async def test_interim_answers_are_not_passed_on(gateway: RunningGateway) -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    gateway.engine.script = says(b"HTTP/1.1 100 Continue\r\n\r\n" + early, early + answer(b"real"))
    client = await gateway.client()
    got = await client.ask()
    assert (got.status, got.body, got.value(b"link")) == (200, b"real", None)


async def test_head_lines_pass_but_for_the_hops(gateway: RunningGateway) -> None:
    gateway.engine.script = says(
        answer(
            b"x",
            b"Set-Cookie: a",
            b"set-cookie: b",
            b"Connection: X-Hop",
            b"X-Hop: 1",
            b"Keep-Alive: timeout=5",
        )
    )
    client = await gateway.client()
    got = await client.ask()
    assert got.lines == [b"Set-Cookie: a", b"set-cookie: b", b"Content-Length: 1"]


BAD = {
    "no HTTP": b"hello\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "length and coding": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\na",
    "another protocol": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
    "a bad first chunk": CHUNKED_HEAD + b"zz\r\n",
    "a head that never ends": b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70_000,
    "interim without end": b"HTTP/1.1 102 Processing\r\n\r\n" * 20,
}


@pytest.mark.parametrize("raw", BAD.values(), ids=BAD.keys())
async def test_what_is_no_answer_is_502(gateway: RunningGateway, raw: bytes) -> None:
    gateway.engine.script = says(raw)
    client = await gateway.client()
    got = await client.ask()
    assert (got.status, json.loads(got.body)["error"]["src"]) == (502, "engine:m")
    assert gateway.dispatcher.outcomes[0].how == "broke"
    gateway.engine.script = says(answer(b"fine"))
    assert (await client.ask()).body == b"fine"


async def test_bytes_after_the_end_are_never_passed_on(gateway: RunningGateway) -> None:
    gateway.engine.script = says(answer(b"one") + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
    client = await gateway.client()
    for _ in range(3):
        assert (await client.ask()).body == b"one"
    assert gateway.engine.connections == 3


async def test_bytes_after_the_last_chunk_are_never_passed_on(gateway: RunningGateway) -> None:
    gateway.engine.script = says(CHUNKED_HEAD + CHUNKS + b"\r\n\r\n")
    client = await gateway.client()
    await client.send(request() + request())
    for _ in range(2):
        await client.head()
        assert await client.reader.readexactly(len(CHUNKS)) == CHUNKS
    assert gateway.engine.connections == 2


async def test_unexpected_bytes_close_the_connection(gateway: RunningGateway) -> None:
    gone = asyncio.Event()

    async def script(connection: EngineConnection) -> None:
        await connection.receive()
        await connection.send(answer(b"one"))
        await asyncio.sleep(0.02)
        await connection.send(answer(b"evil"))
        await connection.closed()
        gone.set()

    gateway.engine.script = script
    client = await gateway.client()
    assert (await client.ask()).body == b"one"
    await asyncio.wait_for(gone.wait(), 2)  # and not only when it has been idle too long
    assert (await client.ask()).body == b"one"


async def test_connection_close_of_an_engine_is_obeyed(gateway: RunningGateway) -> None:
    gateway.engine.script = says(answer(b"one", b"Connection: close"))
    client = await gateway.client()
    for _ in range(2):
        got = await client.ask()
        assert (got.body, got.value(b"connection")) == (b"one", None)
    assert gateway.engine.connections == 2


async def test_no_subscriber(gateway: RunningGateway) -> None:
    gateway.dispatcher.endpoint = Endpoint("m", ("127.0.0.1", 1))
    client = await gateway.client()
    got = await client.ask()
    assert (got.status, json.loads(got.body)["error"]["src"]) == (502, "engine:m")
    assert [outcome.how for outcome in gateway.dispatcher.outcomes] == ["broke"]


async def test_a_used_connection_that_closes_is_tried_once_more(gateway: RunningGateway) -> None:
    """As when the engine's idle time ends in the moment in which we ask."""

    async def script(connection: EngineConnection) -> None:
        await connection.receive()
        await connection.send(answer(b"first"))
        await connection.receive()
        connection.reset()

    gateway.engine.script = script
    client = await gateway.client()
    assert (await client.ask()).body == b"first"
    assert (await client.ask()).body == b"first"
    assert gateway.engine.connections == 2
    assert len(gateway.engine.received) == 3


async def test_nothing_else_is_sent_twice(gateway: RunningGateway) -> None:
    """A new connection, or one over which something came back."""

    async def deaf(connection: EngineConnection) -> None:
        await connection.receive()

    gateway.engine.script = deaf
    client = await gateway.client()
    assert (await client.ask()).status == 502
    assert len(gateway.engine.received) == 1

    async def half(connection: EngineConnection) -> None:
        await connection.receive()
        await connection.send(answer(b"first"))
        await connection.receive()
        await connection.send(b"HTTP/1.1 2")

    gateway.engine.script = half
    assert (await client.ask()).status == 200
    assert (await client.ask()).status == 502
    assert len(gateway.engine.received) == 3


async def test_stream(gateway: RunningGateway) -> None:
    gateway.engine.script = says(STREAM, event("a"), event("b"), DONE)
    client = await gateway.client()
    got = await client.ask(STREAMING)
    assert got.body == b"".join(piece.split(b"\r\n")[1] for piece in (event("a"), event("b"), DONE))
    assert got.value(b"x-accel-buffering") == b"no"
    outcome = gateway.dispatcher.outcomes[0]
    assert (outcome.how, outcome.is_stream) == ("whole", True)
    assert len(gateway.dispatcher.recorder.gaps) == 2


async def test_head_of_a_stream_does_not_wait_for_its_first_event(gateway: RunningGateway) -> None:
    async def thinks(connection: EngineConnection) -> None:
        await connection.receive()
        await connection.send(STREAM)
        await connection.closed()

    gateway.engine.script = thinks
    client = await gateway.client()
    await client.send(request(STREAMING))
    assert (await client.head()).status == 200


async def test_usage_is_read_from_the_tail(gateway: RunningGateway) -> None:
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":9}}\n\n'
    gateway.engine.script = says(STREAM, *(event(str(n)) for n in range(99)), chunked(usage), DONE)
    client = await gateway.client()
    await client.ask(STREAMING)
    found = gateway.dispatcher.outcomes[0].usage
    assert found is not None
    assert (found.prompt_tokens, found.completion_tokens) == (7, 9)


CUT = event("half of this")


@pytest.mark.parametrize("cut", [0, 1, 4, 20, len(CUT) - 1, len(CUT)])
@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v1/messages"])
async def test_engine_dies_in_a_stream(gateway: RunningGateway, cut: int, path: bytes) -> None:
    gateway.engine.script = says(STREAM, event("a"), CUT[:cut], closes=True)
    client = await gateway.client()
    got = await client.ask(STREAMING, path=path)
    events = [piece for piece in got.body.split(b"\n\n") if piece]
    assert events[0] == event("a").split(b"\r\n")[1].strip()
    # Where token counts are filtered out, events are forwarded without the framing of the engine.
    whole = len(CUT) - 1 if path == b"/v1/chat/completions" else len(CUT)
    assert len(events) == (3 if cut >= whole else 2)
    assert b"[DONE]" not in got.body
    error = json.loads(events[-1].split(b"data: ")[1])
    assert error["error"]["message"]
    assert gateway.dispatcher.outcomes[0].how == "broke"
    gateway.engine.script = says(answer(b"fine"))
    assert (await client.ask()).body == b"fine"


async def test_engine_dies_in_a_body(gateway: RunningGateway) -> None:
    for raw in (answer(b"whole")[:-1], CHUNKED_HEAD + CHUNKS[:-1]):
        gateway.engine.script = says(raw, closes=True)
        client = await gateway.client()
        await client.send(request())
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.get()
        assert gateway.dispatcher.outcomes.pop().how == "broke"


async def test_stream_with_an_encoding_is_cut_off(gateway: RunningGateway) -> None:
    """An event among gzip's bytes would be nonsense."""
    gateway.engine.script = says(
        STREAM[:-2] + b"Content-Encoding: gzip\r\n\r\n" + chunked(b"\x1f\x8b"), closes=True
    )
    client = await gateway.client()
    await client.send(request(STREAMING))
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await client.get()


QUICK = HttpLimits(hold_after_s=0.02, comment_every_s=0.02, sweep_s=0.05)


async def test_a_waiting_stream_gets_comments(gateway: RunningGateway) -> None:
    async with run_gateway(FakeDispatcher(), QUICK) as quick:
        quick.dispatcher.holds_requests = True
        quick.engine.script = says(STREAM + event("a"), DONE)
        client = await quick.client()
        await client.send(request(STREAMING))
        head = await client.head()
        assert (head.status, head.value(b"content-type")) == (200, b"text/event-stream; charset=utf-8")
        assert (await client.chunk()).startswith(b":")
        quick.dispatcher.waiting[0].update_wait_status(WaitStatus("loading m: weights 43 %", eta_s=12.0))
        while b"weights 43 %" not in (comment := await client.chunk()):
            assert comment.startswith(b":")
        assert (await client.chunk()).startswith(b":")
        quick.dispatcher.grant(quick.dispatcher.waiting[0])
        body = await client.chunks()
        assert b"[DONE]" in body
        assert event("a").split(b"\r\n")[1] in body
        assert quick.dispatcher.outcomes[0].how == "whole"
        quick.dispatcher.holds_requests = False
        assert (await client.ask()).status == 200


@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v1/messages", b"/v1/responses"])
async def test_refused_after_the_head(gateway: RunningGateway, path: bytes) -> None:
    async with run_gateway(FakeDispatcher(), QUICK) as quick:
        quick.dispatcher.holds_requests = True
        client = await quick.client()
        await client.send(request(STREAMING, path=path))
        await client.head()
        quick.dispatcher.waiting[0].rejected(Rejection(503, "load_failed", "It did not fit."))
        body = await client.chunks()
        assert b"It did not fit." in body
        assert b"[DONE]" not in body
        assert [(outcome.how, outcome.why) for outcome in quick.dispatcher.outcomes] == [
            ("refused", "It did not fit.")
        ]


async def test_engine_rejects_after_the_head(gateway: RunningGateway) -> None:
    async with run_gateway(FakeDispatcher(), QUICK) as quick:
        quick.dispatcher.holds_requests = True
        quick.engine.script = says(answer(b'{"error":"too long"}', status=b"400 Bad Request"))
        client = await quick.client()
        await client.send(request(STREAMING))
        await client.head()
        quick.dispatcher.grant(quick.dispatcher.waiting[0])
        body = await client.chunks()
        assert b"HTTP 400" in body
        assert b"too long" in body
        assert b"[DONE]" not in body


async def test_engine_dies_behind_our_head(gateway: RunningGateway) -> None:
    async with run_gateway(FakeDispatcher(), QUICK) as quick:
        quick.dispatcher.holds_requests = True
        quick.engine.script = says(STREAM + event("a") + CUT[:9], closes=True)
        client = await quick.client()
        await client.send(request(STREAMING))
        await client.head()
        quick.dispatcher.grant(quick.dispatcher.waiting[0])
        body = await client.chunks()
        assert b"half" not in body
        assert json.loads(body.split(b"data: ")[-1])["error"]
        assert quick.dispatcher.outcomes[0].how == "broke"


async def test_what_is_no_stream_waits_in_silence(gateway: RunningGateway) -> None:
    async with run_gateway(FakeDispatcher(), QUICK) as quick:
        quick.dispatcher.holds_requests = True
        client = await quick.client()
        await client.send(request())
        await quick.dispatcher.until(lambda: quick.dispatcher.waiting)
        await asyncio.sleep(0.1)
        quick.dispatcher.waiting[0].rejected(Rejection(503, "load_failed", "It did not fit."))
        assert (await client.get()).status == 503


@pytest.mark.parametrize("is_cut", [False, True])
async def test_every_event_is_counted_although_they_are_looked_at_in_batches(
    gateway: RunningGateway, is_cut: bool
) -> None:
    """One event at a time, so that each is a piece of its own; among them split and large ones."""
    read = asyncio.Semaphore(0)
    texts = [b"x" * (6000 if n == 40 else 10) for n in range(100)]
    events = [b'data: {"choices":[{"delta":{"content":"%b"}}]}\n\n' % text for text in texts]

    async def script(connection: EngineConnection) -> None:
        await connection.receive()
        await connection.send(STREAM)
        for number, each in enumerate(events):
            data = chunked(each)
            cut = 7 if number == 60 else len(data)
            await connection.send(data[:cut])
            await asyncio.sleep(0)
            await connection.send(data[cut:])
            await read.acquire()
        await (connection.closed() if is_cut else connection.send(b"0\r\n\r\n"))

    gateway.engine.script = script
    client = await gateway.client()
    await client.send(request(b'{"model":"m","stream":true,"stream_options":{"include_usage":true}}'))
    assert (await client.head()).status == 200
    for each in events:
        assert await client.chunk() == each
        read.release()
    client.close() if is_cut else await client.chunk()
    await gateway.dispatcher.until(lambda: gateway.dispatcher.outcomes)
    (outcome,) = gateway.dispatcher.outcomes
    assert outcome.how == ("left" if is_cut else "whole")
    assert outcome.usage and outcome.usage.completion_tokens == 100, "each has at least one token"
    framed = sum(len(chunked(each)) for each in events)
    assert outcome.bytes_out == framed + (0 if is_cut else 5)
    gaps = gateway.dispatcher.recorder.gaps
    assert 95 <= len(gaps) <= 110 and all(gap >= 0 for gap in gaps), "a large one may come in pieces"


async def test_a_stream_with_a_length_is_cut_off_when_it_breaks(gateway: RunningGateway) -> None:
    """An event with the error would be more than its head announced, or less."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 200\r\n\r\n"
    gateway.engine.script = says(head, closes=True)
    client = await gateway.client()
    await client.send(request(STREAMING))
    assert (await client.head()).value(b"content-length") == b"200"
    assert await client.is_closed()
    assert gateway.dispatcher.outcomes[0].how == "broke"


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
