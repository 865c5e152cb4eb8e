"""Anything in place of any value: requests are refused with a reason, answers of servers never raise.

Every value of a complete document is replaced by every kind of junk, one at a time.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from firesteel.gateway.translate.messages_client import MESSAGES_CLIENT
from firesteel.gateway.translate.messages_server import MESSAGES_SERVER
from firesteel.gateway.translate.ollama import ChatWriter, GenerateWriter, chat_response, translate_request
from firesteel.gateway.translate.responses_client import RESPONSES_CLIENT
from firesteel.gateway.translate.responses_server import RESPONSES_SERVER
from firesteel.gateway.translate.stream import StreamTranslator
from firesteel.gateway.translate.values import ChunkWriter, Json, TranslationContext, Untranslatable, dump

JUNK: list[Any] = [None, True, 5, -1, 1.5, "x", "", [], {}, [5], [None], [{}], [[]], {"a": 1}, "{", "\ud800"]
SCHEMA = {"type": "object"}
CHAT: Json = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "s"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "t"},
                {"type": "image_url", "image_url": {"url": "data:a;base64,b"}},
            ],
        },
        {
            "role": "assistant",
            "content": "c",
            "reasoning_content": "r",
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "t"}]},
    ],
    "max_tokens": 5,
    "stop": ["x"],
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 1,
    "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "parallel_tool_calls": False,
    "reasoning_effort": "low",
    "chat_template_kwargs": {"enable_thinking": True},
    "n": 1,
}
MESSAGES: Json = {
    "model": "m",
    "system": [{"type": "text", "text": "s"}],
    "max_tokens": 5,
    "stream": True,
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "t"},
                {"type": "image", "source": {"type": "base64", "media_type": "a", "data": "b"}},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "h"},
                {"type": "text", "text": "t"},
                {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "t"}]}
            ],
        },
    ],
    "stop_sequences": ["x"],
    "tools": [{"name": "f", "description": "d", "input_schema": SCHEMA}],
    "tool_choice": {"type": "tool", "name": "f"},
    "thinking": {"type": "enabled", "budget_tokens": 5},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
    "metadata": {"user_id": "u"},
}
RESPONSES: Json = {
    "model": "m",
    "instructions": "s",
    "max_output_tokens": 5,
    "stream": True,
    "store": False,
    "input": [
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "t"},
                {"type": "input_image", "image_url": "u", "detail": "auto"},
            ],
        },
        {
            "type": "reasoning",
            "summary": [{"text": "s"}],
            "content": [{"type": "reasoning_text", "text": "r"}],
        },
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "t"}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "t"}]},
    ],
    "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}],
    "tool_choice": {"type": "function", "name": "f"},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}, "verbosity": "low"},
    "reasoning": {"effort": "low"},
}
OLLAMA: Json = {
    "model": "m",
    "stream": True,
    "format": SCHEMA,
    "think": True,
    "keep_alive": "5m",
    "options": {"temperature": 1, "stop": ["x"]},
    "messages": [
        {"role": "user", "content": "t", "images": ["b"]},
        {
            "role": "assistant",
            "thinking": "h",
            "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}],
        },
        {"role": "tool", "tool_name": "f", "content": "t"},
    ],
    "tools": [{"type": "function"}],
}
CALL = {"index": 0, "id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
COUNTS = {"prompt_tokens": 5, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 1}}
CHAT_ANSWER: Json = {
    "choices": [
        {
            "message": {"content": "c", "reasoning": "r", "tool_calls": [CALL]},
            "finish_reason": "tool_calls",
            "logprobs": {"content": []},
            "stop_reason": "x",
        }
    ],
    "usage": COUNTS,
    "timings": {"prompt_ms": 1, "predicted_ms": 2},
}
CHAT_CHUNKS: Json = {
    "events": [
        {"choices": [{"delta": {"role": "assistant", "reasoning_content": "r"}}]},
        {"choices": [{"delta": {"content": "c"}, "logprobs": {"content": []}}]},
        {"choices": [{"delta": {"tool_calls": [CALL]}, "finish_reason": "tool_calls"}]},
        {"choices": [], "usage": COUNTS, "timings": {"prompt_ms": 1, "predicted_ms": 2}},
    ]
}
MESSAGES_ANSWER: Json = {
    "id": "i",
    "model": "m",
    "stop_reason": "tool_use",
    "content": [
        {"type": "thinking", "thinking": "h"},
        {"type": "text", "text": "t"},
        {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}},
    ],
    "usage": {"input_tokens": 5, "output_tokens": 5, "cache_read_input_tokens": 1},
}
MESSAGES_EVENTS: Json = {
    "events": [
        {"type": "message_start", "message": {"id": "i", "model": "m", "usage": {"input_tokens": 5}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "a"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "h"}},
        {
            "type": "content_block_start",
            "index": 1,
            "content_block": {"type": "tool_use", "id": "1", "name": "f"},
        },
        {
            "type": "content_block_delta",
            "index": 1,
            "delta": {"type": "input_json_delta", "partial_json": "{}"},
        },
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 5}},
        {"type": "message_stop"},
    ]
}
RESPONSES_ANSWER: Json = {
    "id": "i",
    "model": "m",
    "created_at": 1,
    "incomplete_details": {"reason": "max_output_tokens"},
    "output": [
        {"type": "reasoning", "content": [{"text": "r"}], "summary": [{"text": "s"}]},
        {"type": "message", "content": [{"type": "output_text", "text": "t"}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
    ],
    "usage": {"input_tokens": 5, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 1}},
}
RESPONSES_EVENTS: Json = {
    "events": [
        {"type": "response.created", "response": {"id": "i", "model": "m"}},
        {"type": "response.output_text.delta", "delta": "t"},
        {
            "type": "response.output_item.added",
            "item": {"type": "function_call", "id": "f", "call_id": "1", "name": "f"},
        },
        {"type": "response.function_call_arguments.delta", "item_id": "f", "delta": "{}"},
        {"type": "response.completed", "response": RESPONSES_ANSWER},
        {"type": "response.failed", "response": {"error": {"message": "m"}}},
    ]
}


def paths(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        yield (*here, name)
        yield from paths(inner, (*here, name))


def broken(document: Json, kinds: Sequence[Any] = JUNK) -> Iterator[tuple[Json, str]]:
    for path in paths(document):
        for junk in kinds:
            changed = copy.deepcopy(document)
            inside: Any = changed
            for name in path[:-1]:
                inside = inside[name]
            inside[path[-1]] = copy.deepcopy(junk)
            yield changed, f"{path} = {junk!r}"


def context() -> TranslationContext:
    return TranslationContext("m", lambda: 1.0, 0.0, "i")


@pytest.mark.parametrize(
    ("translate", "document"),
    [
        (MESSAGES_CLIENT.request, MESSAGES),
        (RESPONSES_CLIENT.request, RESPONSES),
        (lambda request: translate_request(b"/api/chat", request).body, OLLAMA),
        (MESSAGES_SERVER.request, CHAT),
        (
            RESPONSES_SERVER.request,
            {name: CHAT[name] for name in CHAT if name not in ("stop", "chat_template_kwargs")},
        ),
    ],
    ids=["messages", "responses", "ollama", "to messages", "to responses"],
)
def test_a_request_is_translated_or_refused(translate: Callable[[Json], Json], document: Json) -> None:
    assert dump(translate(copy.deepcopy(document)))
    for changed, what in broken(document):
        try:
            json.loads(dump(translate(changed)))
        except Untranslatable:
            pass
        except Exception as error:
            raise AssertionError(what) from error


CLIENTS: list[Callable[[Json], Json]] = [
    lambda answer: MESSAGES_CLIENT.response(answer, context()),
    lambda answer: RESPONSES_CLIENT.response(answer, context()),
    lambda answer: chat_response(answer, context()),
]


@pytest.mark.parametrize(
    ("to_chat", "document"),
    [
        (lambda answer: answer, CHAT_ANSWER),
        (MESSAGES_SERVER.response, MESSAGES_ANSWER),
        (RESPONSES_SERVER.response, RESPONSES_ANSWER),
    ],
    ids=["chat", "messages", "responses"],
)
def test_an_odd_answer_never_raises(to_chat: Callable[[Json], Json], document: Json) -> None:
    for changed, what in broken(document):
        for client in CLIENTS:
            try:
                json.loads(dump(client(to_chat(changed))))
            except Exception as error:
                raise AssertionError(what) from error


WRITERS: list[Callable[[], ChunkWriter]] = [
    lambda: MESSAGES_CLIENT.writer(context()),
    lambda: RESPONSES_CLIENT.writer(context()),
    lambda: ChatWriter(context()),
    lambda: GenerateWriter(context()),
]


@pytest.mark.parametrize(
    ("reader", "document"),
    [
        (None, CHAT_CHUNKS),
        (MESSAGES_SERVER.reader, MESSAGES_EVENTS),
        (RESPONSES_SERVER.reader, RESPONSES_EVENTS),
    ],
    ids=["chat", "messages", "responses"],
)
def test_an_odd_stream_never_raises(reader: Any, document: Json) -> None:
    for changed, what in broken(document, (None, 5, "x", [5], {"a": 1})):
        events = changed["events"] if isinstance(changed["events"], list) else []
        for writer in WRITERS:
            stream = StreamTranslator(reader() if reader else None, writer(), lambda why: b"error")
            try:
                for event in events:
                    stream.take(b"data: " + json.dumps(event).encode() + b"\n\n")
                stream.end()
            except Exception as error:
                raise AssertionError(what) from error
