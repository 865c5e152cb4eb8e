"""Servers of each API that answer as the real ones do, for `test_translation.py`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from firesteel.gateway.interfaces import ServerApiName
from firesteel.values import replace
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
