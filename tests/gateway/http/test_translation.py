"""The official SDKs at servers that speak another API: every pair, whole and streamed, tools and thinking."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import openai
import pytest

from firesteel.gateway.http.limits import HttpLimits
from firesteel.gateway.interfaces import Endpoint, ServerApiName
from tests.gateway.http.kit import EngineConnection, FakeDispatcher, RunningGateway, answer, run_gateway
from tests.gateway.http.translation_clients import CLIENTS, PAIRS, check_sent
from tests.gateway.http.translation_servers import EXPECTED, SERVERS, behind, chat_server


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("client", "server"), PAIRS, ids=[f"{client}-at-{server}" for client, server in PAIRS]
)
async def test_every_pair(gateway: RunningGateway, client: str, server: ServerApiName, stream: bool) -> None:
    behind(gateway, server)
    got = await CLIENTS[client](f"http://127.0.0.1:{gateway.port}", stream)
    assert got == EXPECTED
    (received,) = gateway.engine.received
    assert received.head.startswith(b"POST " + SERVERS[server][1] + b" HTTP/1.1\r\n")
    assert received.value(b"x-test-key") == b"k" and received.value(b"x-api-key") is None
    assert (received.value(b"anthropic-version") is not None) == (server == "messages")
    check_sent(server, json.loads(received.body))
    (outcome,) = gateway.dispatcher.outcomes
    assert outcome.how == "whole" and outcome.status == 200 and outcome.is_stream is stream
    assert outcome.usage and (outcome.usage.prompt_tokens, outcome.usage.completion_tokens) == (30, 12)


@pytest.mark.parametrize("client", ["chat", "messages", "responses"])
async def test_the_servers_own_api_is_forwarded(gateway: RunningGateway, client: ServerApiName) -> None:
    behind(gateway, client)
    raw = await gateway.client()
    body = b'{"model":"m",  "odd": [1]}'
    got = await raw.ask(body, path=SERVERS[client][1])
    assert got.status == 200 and b"up" in got.body
    assert gateway.engine.received[0].body == body.replace(b'"m"', b'"served"')


@pytest.mark.parametrize(
    ("path", "server", "body", "name"),
    [
        ("messages", "chat", {"messages": 5, "max_tokens": 1}, "messages"),
        ("messages", "chat", {"messages": [], "container": "c"}, "container"),
        ("messages", "chat", {"messages": [], "mcp_servers": [{}]}, "mcp_servers"),
        (
            "messages",
            "chat",
            {"messages": [], "tools": [{"type": "web_search_20250305"}]},
            "web_search_20250305",
        ),
        ("messages", "chat", {"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "document"),
        (
            "messages",
            "chat",
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "source",
        ),
        ("responses", "chat", {"input": "x", "previous_response_id": "resp_1"}, "previous_response_id"),
        ("responses", "chat", {"input": "x", "background": True}, "background"),
        (
            "responses",
            "chat",
            {"input": "x", "tools": [{"type": "web_search"}], "tool_choice": "required"},
            "web_search",
        ),
        ("responses", "chat", {"input": [{"type": "item_reference"}]}, "item_reference"),
        (
            "responses",
            "chat",
            {"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
            "input_file",
        ),
        ("responses", "chat", {"input": 5}, "input"),
        ("chat/completions", "messages", {"messages": [], "n": 2}, "n"),
        ("chat/completions", "messages", {"messages": [], "logit_bias": {"1": 2}}, "logit_bias"),
        (
            "chat/completions",
            "messages",
            {"messages": [], "response_format": {"type": "json_object"}},
            "response_format",
        ),
        (
            "chat/completions",
            "messages",
            {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
            "input_audio",
        ),
        ("chat/completions", "responses", {"messages": [], "stop": ["x"]}, "stop"),
        ("chat/completions", "responses", {"messages": [], "seed": 5}, "seed"),
        ("chat/completions", "messages", {}, "messages"),
    ],
)
async def test_what_cannot_be_translated_is_named(
    gateway: RunningGateway, path: str, server: ServerApiName, body: Any, name: str
) -> None:
    behind(gateway, server)
    raw = await gateway.client()
    got = await raw.ask(json.dumps({"model": "m", **body}).encode(), path=f"/v1/{path}".encode())
    assert got.status in (400, 501), got.body
    error = json.loads(got.body)["error"]
    assert name in error["message"]
    assert error["type"] in ("invalid_request_error", "api_error", "server_error")
    assert not gateway.engine.received
    (outcome,) = gateway.dispatcher.outcomes
    assert outcome.how == "refused"


DEEP = b'{"model":"m","tools":[{"type":"function","name":"f","parameters":{"a":%b%b}}],"input":"x"}'


@pytest.mark.parametrize("path", [b"/v1/messages", b"/v1/responses"])
@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"model":"m"', 400),
        (b'{"model":"m","a":' + b"[" * 50_000, 400),
        *((DEEP % (b"[" * depth, b"]" * depth), 400) for depth in (900, 930, 950, 970, 990)),
        (b'{"model":"m","a":[' + b"{}," * 1_000_000 + b"{}]}", 413),
        (b'{"model":"m","messages":["x"],"input":["x"]}', 400),
        (b'{"model":"m","messages":[{"role":5}],"input":[{"role":5}]}', 400),
    ],
)
async def test_hostile_bodies(gateway: RunningGateway, path: bytes, body: bytes, status: int) -> None:
    behind(gateway, "chat")
    raw = await gateway.client()
    got = await raw.ask(body, path=path)
    if body.startswith(DEEP[:30]) and got.status == 200:
        return  # not too deep after all: it depends on how deep the caller is
    assert got.status == status, got.body[:300]
    assert not gateway.engine.received


@pytest.mark.parametrize("stream", [False, True])
async def test_a_servers_error_in_the_clients_format(gateway: RunningGateway, stream: bool) -> None:
    behind(gateway, "chat")

    async def script(connection: EngineConnection) -> None:
        await connection.receive()
        await connection.send(
            answer(b'{"error":{"message":"too long"}}', b"Connection: close", status=b"400 Bad")
        )

    gateway.engine.script = script
    url = f"http://127.0.0.1:{gateway.port}"
    async with anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as client:
        with pytest.raises(anthropic.BadRequestError, match="too long"):
            await client.messages.create(
                model="m", max_tokens=5, messages=[{"role": "user", "content": "x"}], stream=stream
            )


async def test_a_stream_that_breaks_has_no_proper_end(gateway: RunningGateway) -> None:
    behind(gateway, "chat")

    async def script(connection: EngineConnection) -> None:
        await connection.receive()
        await connection.send(chat_server(True)[:900])
        connection.reset()

    gateway.engine.script = script
    raw = await gateway.client()
    body = b'{"model":"m","max_tokens":5,"stream":true,"messages":[{"role":"user","content":"x"}]}'
    got = await raw.ask(body, path=b"/v1/messages")
    assert got.body.startswith(b"event: message_start") and b"message_stop" not in got.body
    assert got.body.rstrip().splitlines()[-2] == b"event: error"


@pytest.mark.real
@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_schema_of_a_response_holds_at_llamacpp(embedded_engine: int, is_stream: bool) -> None:
    """Its own Responses drop `text.format` without a word."""
    schema = {
        "type": "object",
        "properties": {"colour": {"type": "string", "enum": ["mauve"]}},
        "required": ["colour"],
        "additionalProperties": False,
    }
    text_format: Any = {"format": {"type": "json_schema", "name": "colour", "schema": schema, "strict": True}}
    asked: Any = {"model": "m", "input": "Say hello.", "max_output_tokens": 40, "text": text_format}
    async with run_gateway(FakeDispatcher(), HttpLimits()) as gateway:
        gateway.dispatcher.endpoint = Endpoint("m", ("127.0.0.1", embedded_engine), counting="timings")
        url = f"http://127.0.0.1:{gateway.port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as client:
            if is_stream:
                events = [event async for event in await client.responses.create(**asked, stream=True)]
                said = next(e.response.output_text for e in events if e.type == "response.completed")
            else:
                said = (await client.responses.create(**asked)).output_text
    assert json.loads(said) == {"colour": "mauve"}
