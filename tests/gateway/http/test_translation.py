"""The official SDKs at servers that speak another API: every pair, whole and streamed, tools and thinking."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import anthropic
import ollama
import openai
import pytest

from firesteel.gateway.interfaces import ServerApiName
from tests.gateway.http.kit import EngineConnection, RunningGateway, answer, chunked

DOT = "iVBORw0KGgo="
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
CALL_ID, ARGUMENTS = "call_7", {"city": "Paris"}


@dataclass
class Got:
    """What a client understood of an answer, in one shape."""

    text: str = ""
    thinking: str = ""
    tool: str = ""
    call_id: str = ""
    arguments: Any = None
    finish: str = ""
    tokens: tuple[int, int] = (0, 0)


EXPECTED = Got("Hello there", "hm, well", "weather", CALL_ID, ARGUMENTS, "tools", (30, 12))


# --- servers ---


def sse(*events: Any) -> bytes:
    lines = []
    for event in events:
        name = f"event: {event['type']}\n" if "type" in event else ""
        lines.append(f"{name}data: {json.dumps(event)}\n\n".encode())
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(map(chunked, lines))


END = chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def chat_server(stream: bool) -> bytes:
    function = {"name": "weather", "arguments": json.dumps(ARGUMENTS)}
    usage = {
        "prompt_tokens": 30,
        "completion_tokens": 12,
        "total_tokens": 42,
        "prompt_tokens_details": {"cached_tokens": 10},
    }
    if not stream:
        call = {"id": CALL_ID, "type": "function", "function": function}
        message = {
            "role": "assistant",
            "content": "Hello there",
            "reasoning_content": "hm, well",
            "tool_calls": [call],
        }
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        return answer(
            json.dumps(
                {
                    "id": "x",
                    "object": "chat.completion",
                    "created": 1,
                    "model": "up",
                    "choices": [choice],
                    "usage": usage,
                }
            ).encode()
        )

    def chunk(delta: Any, finish: str | None = None) -> Any:
        return {
            "id": "x",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "up",
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        }

    first = {"index": 0, "id": CALL_ID, "type": "function", "function": {"name": "weather", "arguments": ""}}
    return (
        sse(
            chunk({"role": "assistant", "content": ""}),
            chunk({"reasoning": "hm, "}),
            chunk({"reasoning": "well"}),
            chunk({"content": "Hello "}),
            chunk({"content": "there"}),
            chunk({"tool_calls": [first]}),
            chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"city": '}}]}),
            chunk({"tool_calls": [{"index": 0, "function": {"arguments": '"Paris"}'}}]}),
            chunk({}, "tool_calls"),
            chunk({}) | {"choices": [], "usage": usage},
        )
        + END
    )


def messages_server(stream: bool) -> bytes:
    usage = {
        "input_tokens": 20,
        "output_tokens": 12,
        "cache_read_input_tokens": 10,
        "cache_creation_input_tokens": 0,
    }
    base = {"id": "msg_1", "type": "message", "role": "assistant", "model": "up", "stop_sequence": None}
    blocks: list[Any] = [
        {"type": "thinking", "thinking": "hm, well", "signature": "s"},
        {"type": "text", "text": "Hello there"},
        {"type": "tool_use", "id": CALL_ID, "name": "weather", "input": ARGUMENTS},
    ]
    if not stream:
        return answer(
            json.dumps({**base, "content": blocks, "stop_reason": "tool_use", "usage": usage}).encode()
        )
    start: Any = {**base, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    return (
        sse(
            {"type": "message_start", "message": start},
            {"type": "ping"},
            {
                "type": "content_block_start",
                "index": 0,
                "content_block": {"type": "thinking", "thinking": "", "signature": ""},
            },
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "thinking_delta", "thinking": "hm, well"},
            },
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "signature_delta", "signature": "s"},
            },
            {"type": "content_block_stop", "index": 0},
            {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Hello "}},
            {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "there"}},
            {"type": "content_block_stop", "index": 1},
            {
                "type": "content_block_start",
                "index": 2,
                "content_block": {"type": "tool_use", "id": CALL_ID, "name": "weather", "input": {}},
            },
            {
                "type": "content_block_delta",
                "index": 2,
                "delta": {"type": "input_json_delta", "partial_json": '{"city": '},
            },
            {
                "type": "content_block_delta",
                "index": 2,
                "delta": {"type": "input_json_delta", "partial_json": '"Paris"}'},
            },
            {"type": "content_block_stop", "index": 2},
            {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 12}},
            {"type": "message_stop"},
        )
        + b"0\r\n\r\n"
    )


def responses_server(stream: bool) -> bytes:
    usage = {
        "input_tokens": 30,
        "input_tokens_details": {"cached_tokens": 10},
        "output_tokens": 12,
        "output_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": 42,
    }
    call = {"type": "function_call", "id": "fc_1", "call_id": CALL_ID, "name": "weather"}
    output: list[Any] = [
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "hm, well"}],
        },
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Hello there", "annotations": []}],
        },
        {**call, "arguments": json.dumps(ARGUMENTS), "status": "completed"},
    ]
    whole = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "up",
        "status": "completed",
        "output": output,
        "usage": usage,
        "error": None,
        "incomplete_details": None,
    }
    if not stream:
        return answer(json.dumps(whole).encode())
    return (
        sse(
            {
                "type": "response.created",
                "response": {**whole, "output": [], "status": "in_progress", "usage": None},
            },
            {"type": "response.output_item.added", "output_index": 0, "item": {**output[0], "content": []}},
            {"type": "response.reasoning_text.delta", "item_id": "rs_1", "delta": "hm, well"},
            {"type": "response.output_item.added", "output_index": 1, "item": {**output[1], "content": []}},
            {"type": "response.output_text.delta", "item_id": "msg_1", "delta": "Hello "},
            {"type": "response.output_text.delta", "item_id": "msg_1", "delta": "there"},
            {"type": "response.output_text.done", "item_id": "msg_1", "text": "Hello there"},
            {"type": "response.output_item.added", "output_index": 2, "item": {**call, "arguments": ""}},
            {
                "type": "response.function_call_arguments.delta",
                "item_id": "fc_1",
                "delta": '{"city": "Paris"}',
            },
            {
                "type": "response.function_call_arguments.done",
                "item_id": "fc_1",
                "arguments": '{"city": "Paris"}',
            },
            {"type": "response.completed", "response": whole},
        )
        + b"0\r\n\r\n"
    )


SERVERS: dict[ServerApiName, tuple[Callable[[bool], bytes], bytes]] = {
    "chat": (chat_server, b"/v1/chat/completions"),
    "messages": (messages_server, b"/v1/messages"),
    "responses": (responses_server, b"/v1/responses"),
}


def behind(gateway: RunningGateway, api: ServerApiName) -> None:
    """Put a server of that API behind the gateway."""
    make = SERVERS[api][0]

    async def script(connection: EngineConnection) -> None:
        while True:
            received = await connection.receive()
            await connection.send(make(bool(json.loads(received.body).get("stream"))))

    gateway.engine.script = script
    assert gateway.dispatcher.endpoint
    gateway.dispatcher.endpoint = replace(
        gateway.dispatcher.endpoint, speaks=(api,), served_name=b"served", headers=b"X-Test-Key: k\r\n"
    )


# --- clients: an agent's second turn, with an image, and the result of a tool ---


async def chat_client(url: str, stream: bool) -> Got:
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
    }
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DOT}"}}
    kind: Any = {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Where?"}, image]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
        ],
        "max_tokens": 99,
        "temperature": 0.5,
        "tools": [
            {"type": "function", "function": {"name": "weather", "description": "d", "parameters": SCHEMA}}
        ],
        "tool_choice": "required",
        "reasoning_effort": "low",
    }
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:
        if stream:
            got = Got(arguments="")
            options: Any = {"include_usage": True}
            async for chunk in await client.chat.completions.create(
                **kind, stream=True, stream_options=options
            ):
                if chunk.usage:
                    got.tokens = (chunk.usage.prompt_tokens, chunk.usage.completion_tokens)
                for choice in chunk.choices:
                    delta: Any = choice.delta
                    got.text += delta.content or ""
                    got.thinking += getattr(delta, "reasoning_content", None) or ""
                    got.finish = {"tool_calls": "tools"}.get(choice.finish_reason or "", got.finish)
                    for piece in delta.tool_calls or []:
                        got.tool += piece.function.name or ""
                        got.call_id += piece.id or ""
                        got.arguments += piece.function.arguments or ""
            got.arguments = json.loads(got.arguments)
            return got
        whole = await client.chat.completions.create(**kind)
        message: Any = whole.choices[0].message
        made = message.tool_calls[0]
        assert whole.model == "m" and whole.usage and whole.choices[0].finish_reason == "tool_calls"
        return Got(
            message.content,
            message.reasoning_content,
            made.function.name,
            made.id,
            json.loads(made.function.arguments),
            "tools",
            (whole.usage.prompt_tokens, whole.usage.completion_tokens),
        )


async def messages_client(url: str, stream: bool) -> Got:
    source = {"type": "base64", "media_type": "image/png", "data": DOT}
    kind: Any = {
        "model": "m",
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {
                "role": "user",
                "content": [{"type": "text", "text": "Where?"}, {"type": "image", "source": source}],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "so", "signature": ""},
                    {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Rome"}},
                ],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "sunny"}],
            },
        ],
        "max_tokens": 99,
        "extra_body": {"temperature": 0.5},
        "tools": [{"name": "weather", "description": "d", "input_schema": SCHEMA}],
        "tool_choice": {"type": "any"},
        "metadata": {"user_id": "u"},
    }
    async with anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as client:
        if stream:
            async with client.messages.stream(**kind) as events:
                async for _ in events:
                    pass
                message = await events.get_final_message()
        else:
            message = await client.messages.create(**kind)
    by_kind: Any = {block.type: block for block in message.content}
    assert message.model == "m"
    tool, usage = by_kind["tool_use"], message.usage
    return Got(
        by_kind["text"].text,
        by_kind["thinking"].thinking,
        tool.name,
        tool.id,
        tool.input,
        {"tool_use": "tools"}[str(message.stop_reason)],
        (usage.input_tokens + (usage.cache_read_input_tokens or 0), usage.output_tokens),
    )


async def responses_client(url: str, stream: bool) -> Got:
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{DOT}", "detail": "auto"}
    kind: Any = {
        "model": "m",
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Where?"}, image]},
            {
                "type": "reasoning",
                "id": "rs_0",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "so"}],
            },
            {
                "type": "function_call",
                "call_id": "call_1",
                "name": "weather",
                "arguments": '{"city": "Rome"}',
            },
            {"type": "function_call_output", "call_id": "call_1", "output": "sunny"},
        ],
        "max_output_tokens": 99,
        "temperature": 0.5,
        "tools": [
            {"type": "function", "name": "weather", "description": "d", "parameters": SCHEMA, "strict": False}
        ],
        "tool_choice": "required",
        "reasoning": {"effort": "low"},
        "store": False,
    }
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:
        if stream:
            text, numbers = "", []
            async with client.responses.stream(**kind) as events:
                async for event in events:
                    numbers.append(event.sequence_number)
                    text += event.delta if event.type == "response.output_text.delta" else ""
                whole: Any = await events.get_final_response()
            assert numbers == list(range(len(numbers))) and text == whole.output_text
        else:
            whole = await client.responses.create(**kind)
    by_kind = {item.type: item for item in whole.output}
    assert whole.status == "completed" and whole.model == "m"
    tool = by_kind["function_call"]
    return Got(
        whole.output_text,
        by_kind["reasoning"].content[0].text,
        tool.name,
        tool.call_id,
        json.loads(tool.arguments),
        "tools",
        (whole.usage.input_tokens, whole.usage.output_tokens),
    )


async def ollama_client(url: str, stream: bool) -> Got:
    kind: Any = {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Where?", "images": [DOT]},
            {
                "role": "assistant",
                "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Rome"}}}],
            },
            {"role": "tool", "tool_name": "weather", "content": "sunny"},
        ],
        "options": {"num_predict": 99, "temperature": 0.5},
        "tools": [
            {"type": "function", "function": {"name": "weather", "description": "d", "parameters": SCHEMA}}
        ],
    }
    client: Any = ollama.AsyncClient(host=url)
    try:
        got = Got()
        answer: Any = await client.chat(**kind, stream=stream)
        parts = [part async for part in answer] if stream else [answer]
        for part in parts:
            got.text += part.message.content or ""
            got.thinking += part.message.thinking or ""
            for call in part.message.tool_calls or []:
                got.tool, got.arguments, got.call_id = (
                    call.function.name,
                    dict(call.function.arguments),
                    CALL_ID,
                )
        got.tokens, got.finish = (parts[-1].prompt_eval_count, parts[-1].eval_count), "tools"
        return got
    finally:
        await client._client.aclose()


CLIENTS: dict[str, Callable[[str, bool], Awaitable[Got]]] = {
    "chat": chat_client,
    "messages": messages_client,
    "responses": responses_client,
    "ollama": ollama_client,
}
PAIRS = [(client, server) for client in CLIENTS for server in SERVERS if client != server]


def check_sent(api: ServerApiName, sent: Any) -> None:
    """The same conversation in each API."""
    assert sent["model"] == "served" and sent["temperature"] == 0.5
    text = json.dumps(sent)
    assert text.index("Be brief.") and text.index("Where?") and "sunny" in text and DOT in text
    if api == "chat":
        assert sent["max_tokens"] == 99
        assert [each["role"] for each in sent["messages"]] == ["system", "user", "assistant", "tool"]
        call = sent["messages"][2]["tool_calls"][0]
        assert json.loads(call["function"]["arguments"]) == {"city": "Rome"}
        assert sent["messages"][3]["tool_call_id"] == call["id"]
        assert sent["tools"][0]["function"]["parameters"] == SCHEMA
    elif api == "messages":
        assert sent["max_tokens"] == 99 and sent["system"] == "Be brief."
        assert [each["role"] for each in sent["messages"]] == ["user", "assistant", "user"]
        call = sent["messages"][1]["content"][-1]
        assert call["input"] == {"city": "Rome"}
        assert sent["messages"][2]["content"][0]["tool_use_id"] == call["id"]
        assert sent["tools"][0]["input_schema"] == SCHEMA
    else:
        assert sent["max_output_tokens"] == 99
        call, output = sent["input"][2:]
        assert call["type"] == "function_call" and output["call_id"] == call["call_id"]
        assert sent["tools"][0]["parameters"] == SCHEMA


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
        ("responses", "chat", {"input": "x", "tools": [{"type": "web_search"}]}, "web_search"),
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
        ("messages/count_tokens", "chat", {"messages": []}, "count_tokens"),
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


@pytest.mark.parametrize("path", [b"/v1/messages", b"/v1/responses"])
@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"model":"m"', 400),
        (b'{"model":"m","a":' + b"[" * 50_000, 400),
        (b'{"model":"m","a":[' + b"{}," * 1_000_000 + b"{}]}", 413),
        (b'{"model":"m","messages":["x"],"input":["x"]}', 400),
        (b'{"model":"m","messages":[{"role":5}],"input":[{"role":5}]}', 400),
    ],
)
async def test_hostile_bodies(gateway: RunningGateway, path: bytes, body: bytes, status: int) -> None:
    behind(gateway, "chat")
    raw = await gateway.client()
    got = await raw.ask(body, path=path)
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
