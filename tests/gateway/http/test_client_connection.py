"""A client's connection, with a fake engine behind it."""

from __future__ import annotations

import asyncio
import json

import pytest

from firesteel.gateway.http.limits import HttpLimits
from firesteel.gateway.interfaces import Caller, Endpoint, GatewayResponse, Rejection
from tests.gateway.http.kit import (
    STREAM,
    EngineConnection,
    FakeDispatcher,
    RunningGateway,
    chunked,
    event,
    request,
    run_gateway,
)


async def test_request_goes_through(gateway: RunningGateway) -> None:
    client = await gateway.client()
    got = await client.ask(b'{"model":"m","n":1}', b"X-Mine: 1", b"Authorization: Bearer k")
    assert (got.status, got.body) == (200, b'{"model":"m","n":1}')
    received = gateway.engine.received[0]
    assert received.head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\nHost: engine:1\r\n")
    assert received.value(b"x-mine") == b"1"
    assert received.value(b"authorization") is None
    assert gateway.dispatcher.tokens == [b"k"]
    outcome = gateway.dispatcher.outcomes[0]
    assert (outcome.how, outcome.status, outcome.bytes_in, outcome.bytes_out) == ("whole", 200, 19, 19)
    assert (gateway.dispatcher.submitted[0].model, gateway.dispatcher.submitted[0].path) == (
        "m",
        b"/v1/chat/completions",
    )


async def test_many_requests_over_one_connection_each(gateway: RunningGateway) -> None:
    client = await gateway.client()
    for number in range(5):
        body = b'{"model":"m","x":"%b"}' % (b"y" * 10**number)
        assert (await client.ask(body)).body == body
    assert gateway.engine.connections == 1
    assert len(gateway.dispatcher.outcomes) == 5


async def test_pipelined_requests_are_answered_in_order(gateway: RunningGateway) -> None:
    client = await gateway.client()
    bodies = [b'{"model":"m","n":%d}' % number for number in range(20)]
    await client.send(b"".join(request(body) for body in bodies))
    assert [(await client.get()).body for _ in bodies] == bodies
    assert gateway.engine.connections == 1


async def test_pipelined_more_than_we_keep(gateway: RunningGateway) -> None:
    client = await gateway.client()
    bodies = [b'{"model":"m","n":"%b"}' % (b"%d" % number * 40_000) for number in range(8)]
    sending = asyncio.create_task(client.send(b"".join(request(body) for body in bodies)))
    assert [(await client.get()).body for _ in bodies] == bodies
    await sending


async def test_byte_by_byte(gateway: RunningGateway) -> None:
    client = await gateway.client()
    raw = request(b'{"model":"m"}')
    for number in range(len(raw)):
        await client.send(raw[number : number + 1])
        await asyncio.sleep(0)
    assert (await client.get()).body == b'{"model":"m"}'


async def test_chunked_request_is_sent_with_its_length(gateway: RunningGateway) -> None:
    client = await gateway.client()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = chunked(b'{"model":') + chunked(b'"m"}') + b"0\r\nX-Sum: 1\r\n\r\n"
    await client.send(head + body + request(b'{"model":"m","n":2}'))
    assert (await client.get()).body == b'{"model":"m"}'
    assert (await client.get()).body == b'{"model":"m","n":2}'
    assert gateway.engine.received[0].value(b"transfer-encoding") is None
    assert gateway.engine.received[0].value(b"content-length") == b"13"


async def test_served_name_is_put_into_the_body(gateway: RunningGateway) -> None:
    endpoint = gateway.dispatcher.endpoint
    assert endpoint is not None
    gateway.dispatcher.endpoint = Endpoint(
        "m", endpoint.address, served_name=b"org/Model", path=b"/sub", headers=b"X-Engine: 1\r\n"
    )
    client = await gateway.client()
    got = await client.ask(b'{"messages": [{"model": "x"}], "model": "m", "n": 1}')
    assert got.body == b'{"messages": [{"model": "x"}], "model": "org/Model", "n": 1}'
    assert gateway.engine.received[0].head.startswith(b"POST /sub/v1/chat/completions ")
    assert gateway.engine.received[0].value(b"x-engine") == b"1"


async def test_expect_is_answered_once_admitted(gateway: RunningGateway) -> None:
    client = await gateway.client()
    raw = request(b'{"model":"m"}', b"Expect: 100-continue")
    await client.send(raw[:-13])
    assert (await client.head()).raw == b"HTTP/1.1 100 Continue\r\n\r\n"
    await client.send(raw[-13:])
    assert (await client.get()).body == b'{"model":"m"}'
    assert gateway.engine.received[0].value(b"expect") is None


async def test_expect_is_not_answered_for_a_stranger(gateway: RunningGateway) -> None:
    gateway.dispatcher.keys = {}
    client = await gateway.client()
    await client.send(request(b"x" * 1000, b"Expect: 100-continue")[:-1000])
    got = await client.get()
    assert (got.status, got.value(b"www-authenticate")) == (401, b"Bearer")
    assert got.value(b"connection") == b"close"
    assert await client.is_closed()
    assert not gateway.dispatcher.submitted


async def test_stranger_with_a_small_body_keeps_its_connection(gateway: RunningGateway) -> None:
    gateway.dispatcher.keys = {b"good": Caller("good")}
    client = await gateway.client()
    assert (await client.ask(b'{"model":"m"}', b"Authorization: Bearer bad")).status == 401
    assert (await client.ask(b'{"model":"m"}', b"Authorization: Bearer good")).status == 200


async def test_refusal_arrives_although_the_body_is_still_coming(gateway: RunningGateway) -> None:
    gateway.dispatcher.keys = {}
    client = await gateway.client()
    sending = asyncio.create_task(client.send(request(b"x" * 5_000_000)))
    assert (await client.get()).status == 401
    await sending
    assert gateway.dispatcher.tokens == [None]


TOO_MUCH = {
    "body": (413, b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 67108865\r\n\r\n"),
    "head": (431, b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"a" * 33_000 + b"\r\n\r\n"),
    "head that never ends": (431, b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"a" * 33_000),
    "lines": (431, b"GET / HTTP/1.1\r\nHost: h\r\n" + b"X: a\r\n" * 101 + b"\r\n"),
    "target": (414, b"GET /" + b"a" * 9_000 + b" HTTP/1.1\r\nHost: h\r\n\r\n"),
    "target that never ends": (414, b"GET /" + b"a" * 9_000),
    "bare LFs": (400, b"GET / HTTP/1.1\nHost: h\n\n"),
    "bare LFs at the end": (400, b"GET / HTTP/1.1\r\nHost: h\n\r\n"),
    "length and coding": (400, request(b"x", b"Transfer-Encoding: chunked")),
    "chunk": (
        400,
        b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n+1\r\nx\r\n",
    ),
    "TLS": (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\n\n" * 9),
}


@pytest.mark.parametrize("status, raw", TOO_MUCH.values(), ids=TOO_MUCH.keys())
async def test_refused_and_closed(gateway: RunningGateway, status: int, raw: bytes) -> None:
    client = await gateway.client()
    await client.send(raw)
    got = await client.get()
    assert got.status == status
    assert got.value(b"connection") == b"close"
    error = json.loads(got.body)["error"]
    assert error["message"]
    assert await client.is_closed()
    assert not gateway.engine.connections


async def test_chunked_body_past_the_limit(gateway: RunningGateway) -> None:
    client = await gateway.client()
    await client.send(b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
    piece = chunked(b"x" * 2**20)

    async def pour() -> None:
        try:
            for _ in range(66):
                await client.send(piece)
        except ConnectionError:
            pass

    pouring = asyncio.create_task(pour())
    assert (await client.get()).status == 413
    await pouring


async def test_refusals_wear_the_envelope_of_the_path(gateway: RunningGateway) -> None:
    client = await gateway.client()
    got = await client.ask(b"{}", path=b"/v1/messages")
    assert (got.status, json.loads(got.body)["type"]) == (400, "error")
    got = await client.ask(b"{}")
    assert (got.status, "type" in json.loads(got.body)) == (400, False)


async def test_unknown_path_and_method(gateway: RunningGateway) -> None:
    client = await gateway.client()
    assert (await client.ask(b"{}", path=b"/v1/chat/completions/")).status == 404
    await client.send(request(b"", method=b"GET"))
    assert (await client.get()).status == 405


async def test_replies_of_our_own(gateway: RunningGateway) -> None:
    gateway.dispatcher.local_targets[b"/v1/models"] = GatewayResponse(
        200, b'{"data":[]}', headers=((b"X-A", b"b"),)
    )
    client = await gateway.client()
    await client.send(b"GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n" * 50)
    for _ in range(50):
        got = await client.get()
        assert (got.status, got.body, got.value(b"x-a")) == (200, b'{"data":[]}', b"b")
    await client.send(b"HEAD /v1/models HTTP/1.1\r\nHost: h\r\n\r\n")
    got = await client.get(is_head=True)
    assert (got.status, got.value(b"content-length")) == (200, b"11")
    assert (await client.ask(b"a body", path=b"/v1/models")).status == 200


async def test_a_local_endpoint_gets_the_caller(gateway: RunningGateway) -> None:
    assert gateway.dispatcher.endpoint is not None
    gateway.dispatcher.local_targets[b"/firesteel/state"] = gateway.dispatcher.endpoint
    gateway.dispatcher.keys = {b"k": Caller("Jo\r\nX: y", is_admin=True)}
    client = await gateway.client()
    got = await client.ask(
        b"",
        b"Authorization: Bearer k",
        b"X-Firesteel-Who: root",
        b"x-firesteel-admin: 0",
        path=b"/firesteel/state",
    )
    received = gateway.engine.received[0]
    assert got.status == 200
    assert (received.value(b"x-firesteel-who"), received.value(b"x-firesteel-admin")) == (b"Jo__X:_y", b"1")
    assert (received.value(b"x-firesteel-host"), received.value(b"host")) == (b"gateway", b"engine:1")
    assert received.value(b"authorization") is None
    assert not gateway.dispatcher.outcomes


async def test_refused_by_the_dispatcher(gateway: RunningGateway) -> None:
    gateway.dispatcher.rejection = Rejection(503, "queue_full", "Too many wait.", retry_after_s=2.5)
    client = await gateway.client()
    got = await client.ask()
    assert (got.status, got.value(b"retry-after")) == (503, b"3")
    outcome = gateway.dispatcher.outcomes[0]
    assert (outcome.how, outcome.status, outcome.why) == ("refused", 503, "Too many wait.")
    gateway.dispatcher.rejection = None
    assert (await client.ask()).status == 200


async def test_http_10(gateway: RunningGateway) -> None:
    client = await gateway.client()
    await client.send(b'POST /v1/completions HTTP/1.0\r\nContent-Length: 13\r\n\r\n{"model":"m"}')
    got = await client.get()
    assert (got.status, got.body) == (200, b'{"model":"m"}')
    assert await client.is_closed()


@pytest.mark.parametrize("line", [b"", b"Host: 127.0.0.1\r\n"])
async def test_http_10_without_a_host_and_without_keys(gateway: RunningGateway, line: bytes) -> None:
    """It was taken for a foreign page's request; but no browser sends one without `Host`."""
    gateway.dispatcher.keys = {None: Caller()}
    client = await gateway.client()
    await client.send(b'POST /v1/completions HTTP/1.0\r\n%bContent-Length: 13\r\n\r\n{"model":"m"}' % line)
    assert (await client.get()).status == 200


async def test_what_concerns_the_client_stays_here(gateway: RunningGateway) -> None:
    client = await gateway.client()
    await client.ask(
        b'{"model":"m"}', b"Cookie: session=1", b"X-Forwarded-For: 10.0.0.7", b"Forwarded: for=10.0.0.7",
        b"X-Real-IP: 10.0.0.7", b"X-Request-Id: 5",
    )  # fmt: skip
    head = gateway.engine.received[0].head
    assert b"10.0.0.7" not in head and b"session" not in head
    assert gateway.engine.received[0].value(b"x-request-id") == b"5"


async def test_http_10_that_asks_to_stay(gateway: RunningGateway) -> None:
    client = await gateway.client()
    raw = (
        b'POST /v1/completions HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 13\r\n\r\n{"model":"m"}'
    )
    for _ in range(2):
        await client.send(raw)
        got = await client.get()
        assert (got.value(b"connection"), got.body) == (b"keep-alive", b'{"model":"m"}')


async def test_connection_close_is_kept(gateway: RunningGateway) -> None:
    client = await gateway.client()
    got = await client.ask(b'{"model":"m"}', b"Connection: close")
    assert got.value(b"connection") == b"close"
    assert await client.is_closed()


async def test_empty_lines_before_a_request_are_skipped(gateway: RunningGateway) -> None:
    client = await gateway.client()
    await client.send(b"\r\n\r\n" + request(b'{"model":"m"}') + b"\r\n" + request(b'{"model":"m"}'))
    assert [(await client.get()).status for _ in range(2)] == [200, 200]


async def test_prefix_is_the_conversations(gateway: RunningGateway) -> None:
    client = await gateway.client()
    for text in (b"one", b"one", b"two"):
        await client.ask(b'{"model":"m","messages":[{"role":"user","content":"%b"}]}' % text)
    first, again, other = gateway.dispatcher.prefixes
    assert first == again != other
    assert first


@pytest.mark.parametrize("keeps", [True, False])
async def test_body_is_kept_for_a_log_of_prompts(keeps: bool) -> None:
    async with run_gateway(FakeDispatcher(), HttpLimits(keeps_bodies=keeps)) as gateway:
        client = await gateway.client()
        await client.ask(b'{"model":"m","x":1}')
        assert gateway.dispatcher.bodies == ([b'{"model":"m","x":1}'] if keeps else [b""])


async def test_only_a_stream_has_a_first_token(gateway: RunningGateway) -> None:
    client = await gateway.client()
    await client.ask(b'{"model":"m"}')
    assert gateway.dispatcher.recorder.firsts == []


async def test_a_stranger_learns_that_we_are_here(gateway: RunningGateway) -> None:
    gateway.dispatcher.keys = {}
    client = await gateway.client()
    await client.send(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n")
    assert (await client.get()).status == 200
    await client.send(b"GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n")
    assert (await client.get()).status == 401


@pytest.mark.parametrize(
    "lines",
    [
        b"Host: evil.example",
        b"Host: 127.0.0.1\r\nOrigin: http://evil.example",
        b"Host: localhost.evil.example",
    ],
)
async def test_without_keys_a_page_from_elsewhere_is_rejected(gateway: RunningGateway, lines: bytes) -> None:
    gateway.dispatcher.keys = {None: Caller()}
    client = await gateway.client()
    body = b'{"model":"m"}'
    head = b"POST /v1/chat/completions HTTP/1.1\r\n%b\r\nContent-Length: %d\r\n\r\n" % (lines, len(body))
    await client.send(head + body)
    assert (await client.get()).status == 403
    assert gateway.dispatcher.submitted == []


async def test_a_compressed_body_is_rejected(gateway: RunningGateway) -> None:
    client = await gateway.client()
    assert (await client.ask(b'{"model":"m"}', b"Content-Encoding: gzip")).status == 415


async def test_the_query_names_a_model_where_the_body_does_not(gateway: RunningGateway) -> None:
    client = await gateway.client()
    body = b'{"content":"x"}'
    head = b"POST /tokenize?model=m HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
    await client.send(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    got = await client.get()
    assert (got.status, got.body) == (200, body)
    assert gateway.dispatcher.submitted[0].model == "m"


async def test_a_wrong_method_gets_the_allowed_one(gateway: RunningGateway) -> None:
    client = await gateway.client()
    await client.send(b"GET /v1/completions HTTP/1.1\r\nHost: h\r\n\r\n")
    got = await client.get()
    assert (got.status, got.value(b"allow")) == (405, b"POST")


async def test_a_flood_of_pipelined_requests_is_let_in_slowly(gateway: RunningGateway) -> None:
    """What is answered at once must not let in more than is answered."""
    gateway.dispatcher.local_targets[b"/v1/models"] = GatewayResponse(200, b"x" * 100)
    client = await gateway.client()
    one = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
    many = 100_000
    sending = asyncio.create_task(client.send(one * many))
    for _ in range(200):
        assert (await client.get()).body == b"x" * 100
    held = max(len(each._reader.buffer) for each in gateway.server._clients)
    assert held < 640 * 1024
    sending.cancel()


async def test_a_revoked_key_ends_what_it_has_under_way(gateway: RunningGateway) -> None:
    async def stall(connection: EngineConnection) -> None:
        await connection.receive()
        await connection.send(STREAM + event("a"))
        await connection.closed()

    gateway.engine.script = stall
    client = await gateway.client()
    await client.send(request(b'{"model":"m","stream":true}'))
    await client.head()
    await client.chunk()
    gateway.dispatcher.submitted[0].stop(Rejection(401, "invalid_api_key", "this key was revoked."))
    said = await client.chunks()
    assert b"revoked" in said and b"[DONE]" not in said
    await gateway.dispatcher.until(lambda: gateway.dispatcher.outcomes)
    assert gateway.dispatcher.outcomes[0].how == "refused"
