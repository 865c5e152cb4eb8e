"""The official SDKs, each in an agent's second turn, with an image and the result of a tool."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
import ollama
import openai

from firesteel.gateway.interfaces import ServerApiName
from tests.gateway.http.translation_servers import CALL_ID, DOT, SCHEMA, SERVERS, Got


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
